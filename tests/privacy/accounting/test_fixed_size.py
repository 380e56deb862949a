"""Fixed-size batches are not Poisson batches, and their account knows it."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq

from dpfed_kan.privacy.accounting import account
from dpfed_kan.privacy.accounting.fixed_size import (
    fixed_size_amplified_epsilon,
    fixed_size_epsilon,
    without_replacement_deltas,
)
from dpfed_kan.privacy.joint_sampling import FixedSize
from dpfed_kan.privacy.mechanism import NEIGHBORING_RELATIONS, Mechanism
from dpfed_kan.privacy.noising import GaussianNoise
from dpfed_kan.privacy.sampling import Poisson

Z = np.linspace(-16, 16, 400_001)


def hockey_stick(epsilon, upper, lower):
    """∫ (P − e^ε Q)₊ of two mixtures of unit Gaussians, given as {mean: probability}."""

    def density(mixture):
        return sum(p * np.exp(-((Z - mean) ** 2) / 2) for mean, p in mixture.items())

    positive = np.maximum(density(upper) - math.exp(epsilon) * density(lower), 0.0)
    return positive.sum() * (Z[1] - Z[0]) / math.sqrt(2 * math.pi)


def least_epsilon(upper, lower, delta):
    return brentq(lambda e: hockey_stick(e, upper, lower) - delta, 0.0, 12.0, xtol=1e-5)


def mechanism(kappa, correlation=0.0, rounds=1, relation="zero_out", sampling=None):
    return Mechanism(
        sampling=FixedSize(batch_size=125) if sampling is None else sampling,
        noise=GaussianNoise(noise_multiplier=kappa, correlation=correlation),
        l2_clip_norm=1.0,
        num_rounds=rounds,
        neighboring_relation=relation,
    )


def test_the_counterexample_is_above_the_poisson_account_and_below_ours():
    # every other gradient is −u and the target's is +u: a batch sums to −B u without the target,
    # −(B−2) u with it and −(B−1) u with it zeroed out; T = 1, κ = 1, r = .025, δ = 1e-5
    present, zeroed = {0.0: 0.975, 2.0: 0.025}, {0.0: 0.975, 1.0: 0.025}
    truth = max(least_epsilon(present, zeroed, 1e-5), least_epsilon(zeroed, present, 1e-5))
    assert truth == pytest.approx(3.11, abs=0.01)
    poisson = account(mechanism(1.0, sampling=Poisson(sampling_prob=0.025)), delta=1e-5)
    assert poisson.epsilon < 0.6
    ours = account(mechanism(1.0), delta=1e-5, num_records=5000)
    assert truth <= ours.epsilon < 4.5


def test_replacing_is_above_its_own_counterexample():
    first, second = {0.0: 0.975, 2.0: 0.025}, {0.0: 0.975, 1.6: 0.025}
    truth = max(least_epsilon(first, second, 1e-5), least_epsilon(second, first, 1e-5))
    ours = account(mechanism(1.0, relation="replace_one"), delta=1e-5, num_records=5000)
    assert truth <= ours.epsilon


def test_one_round_has_the_amplification_lemma_as_its_answer():
    # ε' = log(1 + r(e^ε − 1)) with r δ₂(ε) = δ: MATH.md section 3 says 4.45
    for relation in NEIGHBORING_RELATIONS:
        epsilon = fixed_size_amplified_epsilon(
            inclusion_prob=0.025,
            noise_multiplier=1.0,
            num_rounds=1,
            delta=1e-5,
            neighboring_relation=relation,
        )
        assert epsilon == pytest.approx(4.45, abs=0.006)


@pytest.mark.parametrize("prob", [0.02, 0.3, 0.9])
@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
def test_the_curve_dominates_every_pair_of_one_round_both_ways(prob, mu):
    epsilons = np.array([-1.5, -0.4, -0.05, 0.0, 0.05, 0.4, 1.5])
    curve = without_replacement_deltas(epsilons, inclusion_prob=prob, mu=mu)
    radius = mu / 2  # one clip norm
    for others, target, changed in [
        (-radius, radius, 0.0),
        (-radius, radius, -radius),
        (radius, radius, 0.0),
        (0.3 * radius, radius, -radius),
        (-radius, 0.4 * radius, radius),
    ]:
        first = {others - radius * 1e-9: 1 - prob, target: prob}
        second = {others - radius * 1e-9: 1 - prob, changed: prob}
        for epsilon, bound in zip(epsilons, curve, strict=True):
            assert hockey_stick(epsilon, first, second) <= bound + 1e-8
            assert hockey_stick(epsilon, second, first) <= bound + 1e-8


def test_the_curve_is_convex_in_the_exponential_and_falling():
    alphas = np.exp(np.linspace(-3, 3, 4001))
    for prob, mu in [(0.025, 2.0), (0.5, 0.7), (1.0, 1.0)]:
        curve = without_replacement_deltas(np.log(alphas), inclusion_prob=prob, mu=mu)
        slopes = np.diff(curve) / np.diff(alphas)
        assert (np.diff(slopes) >= -1e-9).all()
        assert (slopes <= 1e-12).all()


def test_a_full_batch_is_one_gaussian_at_sensitivity_two():
    amplified = fixed_size_amplified_epsilon(
        inclusion_prob=1.0,
        noise_multiplier=2.0,
        num_rounds=4,
        delta=1e-5,
        neighboring_relation="zero_out",
    )
    full = account(mechanism(2.0, rounds=4, relation="replace_one"), delta=1e-5, num_records=125)
    assert amplified == pytest.approx(full.tried[0].epsilon, rel=1e-9)


def test_it_is_never_below_the_poisson_account():
    for relation in NEIGHBORING_RELATIONS:
        for correlation in (0.0, 0.5, 0.9):
            fixed = mechanism(6.3, correlation, 100, relation)
            poisson = mechanism(
                6.3, correlation, 100, relation, sampling=Poisson(sampling_prob=0.025)
            )
            ours = account(fixed, delta=1e-5, num_records=5000).epsilon
            assert ours > account(poisson, delta=1e-5).epsilon


def test_revealing_wins_where_correlation_is_strong():
    ours = account(mechanism(6.3, 0.9, 400), delta=1e-5, num_records=5000)
    assert ours.best.method == "revealed pattern"
    assert ours.epsilon == pytest.approx(9.05, rel=0.02)
    plain = account(mechanism(6.3, 0.0, 400), delta=1e-5, num_records=5000)
    assert "sensitivity 2" in plain.best.method
    assert 0.597 <= plain.epsilon <= 0.70  # 0.597 is the Poisson pair at sensitivity 2


def test_the_plain_function_and_the_account_agree():
    by_hand = fixed_size_epsilon(
        GaussianNoise(correlation=0.5),
        noise_multiplier=6.3,
        batch_size=125,
        num_records=5000,
        num_rounds=50,
        horizon=50,
        delta=1e-5,
        neighboring_relation="zero_out",
    )
    guarantee = account(mechanism(6.3, 0.5, 50), delta=1e-5, num_records=5000)
    assert guarantee.epsilon == pytest.approx(by_hand, rel=1e-12)


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(ValueError, match="num_records=100"):
        fixed_size_epsilon(
            GaussianNoise(),
            noise_multiplier=1.0,
            batch_size=125,
            num_records=100,
            num_rounds=1,
            horizon=1,
            delta=1e-5,
            neighboring_relation="zero_out",
        )
