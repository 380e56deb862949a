import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfed_kan.privacy.accounting.bin_monte_carlo import (
    add_sample,
    least_epsilon,
    remove_sample,
    shown_epsilons,
)
from dpfed_kan.privacy.accounting.gaussian import gaussian_delta, gaussian_epsilon

GRAM = np.array([[1.0, 0.4, 0.1], [0.4, 0.8, 0.3], [0.1, 0.3, 0.5]])


def grams(seed: int, num_bins: int, scale: float) -> np.ndarray:
    root = np.random.default_rng(seed).random((num_bins, num_bins + 1))
    return scale * root @ root.T


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    num_bins=st.integers(1, 6),
    scale=st.floats(0.01, 4.0),
    tilt=st.floats(0.0, 6.0),
    epsilon=st.floats(0.0, 3.0),
    draw=st.sampled_from([remove_sample, add_sample]),
)
def test_no_weighted_draw_exceeds_the_range_that_was_proven(
    seed, num_bins, scale, tilt, epsilon, draw
):
    gram, tilt = grams(seed, num_bins, scale), tilt + (draw is remove_sample)
    rng = np.random.default_rng(seed)
    sample = draw(gram, tilt=tilt, num_samples=600, rng=rng)
    over = sample.losses > epsilon
    parts = sample.weights[over] * -np.expm1(epsilon - sample.losses[over])
    assert parts.max(initial=0.0) <= math.exp(sample.log_range(epsilon)) * (1 + 1e-9)


@pytest.mark.parametrize(("draw", "plain"), [(remove_sample, 1.0), (add_sample, 0.0)])
def test_tilted_and_plain_draws_estimate_the_same_delta(draw, plain):
    rng = np.random.default_rng(4)
    base = draw(GRAM, tilt=plain, num_samples=400_000, rng=rng)
    tilted = draw(GRAM, tilt=plain + 1.0, num_samples=400_000, rng=rng)
    for epsilon in (0.1, 0.5, 1.0):
        expected = base.mean(epsilon)
        error = math.sqrt(expected / 400_000)
        assert tilted.mean(epsilon) == pytest.approx(expected, abs=5 * error)


@pytest.mark.parametrize("draw", [remove_sample, add_sample])
def test_with_one_bin_the_mean_is_the_gaussian_delta(draw):
    mu, num_samples = 1.3, 300_000
    rng = np.random.default_rng(2)
    sample = draw(np.array([[mu**2]]), tilt=1.8, num_samples=num_samples, rng=rng)
    for epsilon in (0.5, 2.0, 4.0):
        exact = gaussian_delta(epsilon=epsilon, mu=mu)
        error = math.sqrt(exact * math.exp(sample.log_range(epsilon)) / num_samples)
        assert sample.mean(epsilon) == pytest.approx(exact, abs=5 * error)


def test_an_epsilon_is_shown_wrongly_no_more_often_than_stated_and_the_estimate_is():
    """One Gaussian, whose ε is known: 400 small verifications at β = 0.1 per direction."""
    mu, delta, beta, repeats = 1.0, 0.02, 0.1, 400
    exact, rng = gaussian_epsilon(delta=delta, mu=mu), np.random.default_rng(6)
    shown, estimated = [], []
    for _ in range(repeats):
        sample = remove_sample(np.array([[mu**2]]), tilt=1.0, num_samples=2000, rng=rng)
        shown.append(
            least_epsilon(lambda e, s=sample: s.shows(e, delta=delta, failure_probability=beta))
        )
        estimated.append(least_epsilon(lambda e, s=sample: s.mean(e) <= delta))
    limit = beta + 4 * math.sqrt(beta * (1 - beta) / repeats)
    assert np.mean(np.array(shown) < exact) <= limit
    assert np.mean(np.array(estimated) < exact) > limit
    assert np.mean(shown) < 1.3 * exact


def test_what_is_shown_keeps_the_folded_delta_of_the_design():
    """δ ≥ min_τ [τ δ_b + q (1 − τ δ_b)] with q = exp(−N KL(δ_b ‖ τ δ_b)), at range 1."""
    delta, beta, num_samples = 1e-3, 1e-6, 200_000
    true_delta = (delta - beta) / (1 - beta)
    rng = np.random.default_rng(1)
    sample = remove_sample(GRAM, tilt=1.0, num_samples=num_samples, rng=rng)
    assert sample.log_range(0.3) == 0.0
    epsilon = least_epsilon(lambda e: sample.shows(e, delta=true_delta, failure_probability=beta))
    shown = sample.mean(epsilon)

    def folded(tau):
        p, x = tau * shown, shown
        divergence = x * math.log(x / p) + (1 - x) * math.log((1 - x) / (1 - p))
        q = math.exp(-sample.num_samples * divergence)
        return p + q * (1 - p)

    least = min(folded(tau) for tau in np.linspace(1.001, 4, 4000))
    assert 0.97 * delta <= least <= delta * (1 + 1e-6)


def test_more_draws_give_a_sharper_epsilon_and_a_smaller_failure_probability_a_larger_one():
    def shown(num_samples, beta):
        return max(
            shown_epsilons(
                GRAM,
                delta=1e-4,
                failure_probability=beta,
                num_samples=num_samples,
                guess=1.0,
                rng=np.random.default_rng(0),
            )
        )

    assert shown(200_000, 1e-7) < shown(5_000, 1e-7)
    assert shown(20_000, 1e-3) < shown(20_000, 1e-12)


def test_the_least_epsilon_is_rounded_up():
    assert 0.3 <= least_epsilon(lambda e: e >= 0.3) <= 0.3 + 1e-7
    assert least_epsilon(lambda e: True) == 0.0
    assert least_epsilon(lambda e: e >= 3, highest=2.0) == math.inf
    assert 3.0 <= least_epsilon(lambda e: e >= 3, highest=7.0) <= 3.0 + 1e-6
