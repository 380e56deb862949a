import math

import numpy as np
import pytest
from scipy.stats import binom, binomtest, norm

from dpfed_kan.privacy.accounting.gaussian import gaussian_epsilon
from dpfed_kan.privacy.auditing import (
    Rates,
    encode,
    epsilon_from_mu,
    epsilon_from_one_run,
    epsilon_from_rates,
    guess,
    one_run_p_value,
    raw_scores,
    raw_shifts,
    shifts,
    whitened_scores,
)
from dpfed_kan.privacy.noising import GaussianNoise, NoNoise
from dpfed_kan.privacy.sensitivity import noising_matrix, strategy_matrix

ROUNDS = 12
NOISES = [
    GaussianNoise(noise_multiplier=2.0, correlation=correlation, column_normalized=normalized)
    for correlation in (0.0, 0.5, 0.9)
    for normalized in (False, True)
]


@pytest.mark.parametrize("noise", NOISES)
def test_whitening_is_the_strategy_matrix(noise: GaussianNoise) -> None:
    seen = np.random.default_rng(0).normal(size=(ROUNDS - 2, 3))
    expected = strategy_matrix(noise, num_rounds=ROUNDS - 2, horizon=ROUNDS) @ seen
    np.testing.assert_allclose(encode(noise, seen, horizon=ROUNDS), expected, atol=1e-12)


@pytest.mark.parametrize("noise", NOISES)
def test_a_score_is_standard_normal_and_shifted_by_mu(noise: GaussianNoise) -> None:
    rng, many = np.random.default_rng(1), 20_000
    pattern = (np.arange(ROUNDS) % 3 == 0).astype(float)[:, None] * np.ones(many)
    correlated = noising_matrix(noise, num_rounds=ROUNDS, horizon=ROUNDS) @ rng.normal(
        size=(ROUNDS, many)
    )
    out = 2.0 * correlated
    for score, shift in ((whitened_scores, shifts), (raw_scores, raw_shifts)):
        mu = shift(noise, pattern[:, :1], horizon=ROUNDS)[0]
        for seen, mean in ((out, 0.0), (out + pattern, mu)):
            scores = score(noise, seen, pattern, horizon=ROUNDS)
            assert scores.mean() == pytest.approx(mean, abs=4 / math.sqrt(many))
            assert scores.std() == pytest.approx(1.0, abs=4 / math.sqrt(2 * many))


def test_at_lambda_point_nine_the_unwhitened_score_sees_a_third() -> None:
    noise = GaussianNoise(noise_multiplier=1.0, correlation=0.9)
    pattern = (np.arange(400) % 40 == 0).astype(float)[:, None]
    share = raw_shifts(noise, pattern, horizon=400) / shifts(noise, pattern, horizon=400)
    assert share[0] == pytest.approx(1 / 3, abs=0.02)


@pytest.mark.parametrize("noise", [NoNoise(), GaussianNoise()])
def test_a_score_needs_noise(noise: GaussianNoise | NoNoise) -> None:
    with pytest.raises(ValueError, match="above 0"):
        whitened_scores(noise, np.ones((2, 1)), np.ones((2, 1)), horizon=2)


def test_the_bound_of_two_rates_is_that_of_their_exact_limits() -> None:
    rates = Rates(num_in=400, true_positives=300, num_out=500, false_positives=60)
    low = binomtest(300, 400).proportion_ci(0.95, method="exact").low
    high = binomtest(60, 500).proportion_ci(0.95, method="exact").high
    expected = max(math.log((low - 0.01) / high), math.log((1 - high - 0.01) / (1 - low)))
    assert epsilon_from_rates(rates, delta=0.01) == pytest.approx(expected, rel=1e-9)
    mu = norm.ppf(low) - norm.ppf(high)
    assert epsilon_from_mu(rates, delta=0.01) == pytest.approx(gaussian_epsilon(delta=0.01, mu=mu))


@pytest.mark.parametrize("bound", [epsilon_from_rates, epsilon_from_mu])
def test_chance_proves_nothing_and_certainty_stays_finite(bound: object) -> None:
    assert callable(bound)
    chance = Rates(num_in=100, true_positives=50, num_out=100, false_positives=50)
    inverse = Rates(num_in=100, true_positives=0, num_out=100, false_positives=100)
    assert bound(chance, delta=1e-5) == 0.0
    assert 0.0 <= bound(inverse, delta=1e-5) < 5.0
    sure = Rates(num_in=100, true_positives=100, num_out=100, false_positives=0)
    assert 3.0 < bound(sure, delta=1e-5) < 60.0


def test_the_gaussian_form_covers_the_truth_and_rejects_a_fifth_less() -> None:
    rng, mu, runs = np.random.default_rng(2), 1.0, 2000
    true, above, below = gaussian_epsilon(delta=1e-3, mu=mu), 0, 0
    for _ in range(300):
        rates = Rates(
            num_in=runs,
            true_positives=int(rng.binomial(runs, norm.sf(-mu / 2))),
            num_out=runs,
            false_positives=int(rng.binomial(runs, norm.sf(mu / 2))),
        )
        found = epsilon_from_mu(rates, delta=1e-3)
        above += found > true
        below += found > gaussian_epsilon(delta=1e-3, mu=0.8 * mu)
    assert above / 300 <= 0.05
    assert below / 300 >= 0.9


def test_one_run_without_delta_is_a_binomial_test() -> None:
    p = one_run_p_value(num_canaries=90, num_guesses=60, num_correct=50, epsilon=1.0, delta=0.0)
    assert p == pytest.approx(binom.sf(49, 60, 1 / (1 + math.exp(-1.0))))


def test_one_run_pays_for_delta_as_the_theorem_says() -> None:
    m, r, v, epsilon, delta = 90, 60, 50, 0.5, 1e-4
    accuracy = math.exp(epsilon) / (1 + math.exp(epsilon))
    law = [binom.pmf(k, r, accuracy) for k in range(r + 1)]
    steepest = max(sum(law[max(0, v - i) : v]) / i for i in range(1, m + 1))
    expected = sum(law[v:]) + 2 * m * delta * steepest
    found = one_run_p_value(num_canaries=m, num_guesses=r, num_correct=v, epsilon=0.5, delta=delta)
    assert found == pytest.approx(expected, rel=1e-9)


def test_one_run_covers_randomized_response_and_rejects_half_of_it() -> None:
    rng, epsilon, m = np.random.default_rng(3), 1.5, 400
    accuracy = 1 / (1 + math.exp(-epsilon))
    found = np.array(
        [
            epsilon_from_one_run(num_canaries=m, num_guesses=m, num_correct=int(v), delta=0.0)
            for v in rng.binomial(m, accuracy, size=300)
        ]
    )
    assert (found > epsilon).mean() <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 300)
    assert (found > epsilon / 2).mean() >= 0.95


def test_one_run_is_modest() -> None:
    bound = epsilon_from_one_run
    assert bound(num_canaries=100, num_guesses=40, num_correct=20, delta=1e-5) == 0.0
    sure = bound(num_canaries=400, num_guesses=160, num_correct=160, delta=1e-3)
    assert 2.5 < sure < 4.0
    more = bound(num_canaries=400, num_guesses=160, num_correct=160, delta=1e-5)
    assert more > sure
    with pytest.raises(ValueError, match="num_correct=41"):
        bound(num_canaries=100, num_guesses=40, num_correct=41, delta=0.0)


def test_guesses_are_made_at_the_ends_only() -> None:
    guesses = guess(np.array([0.1, 5.0, -3.0, 2.0, -1.0]), num_guesses=4)
    assert guesses.tolist() == [0, 1, -1, 1, -1]
