"""The mixture pairs, their patterns and their discretisation, by brute force."""

import itertools
import math
from typing import Any

import mpmath as mp
import numpy as np
import pytest

from dpfed_kan.privacy.accounting.loss_distribution import mixture_loss
from dpfed_kan.privacy.accounting.mixture import (
    NormLaw,
    mixture_deltas,
    mixture_epsilon,
    rounded_up,
)
from dpfed_kan.privacy.accounting.patterns import block_law, run_law
from dpfed_kan.privacy.noising import GaussianNoise
from dpfed_kan.privacy.sensitivity import encoded_norm

LAW = NormLaw(norms=np.array([0.0, 0.7, 1.9]), probs=np.array([0.8, 0.15, 0.05]))


def integral(law, epsilon, direction):
    sign = {"remove": (1, 0), "add": (0, -1), "replace": (1, -1)}[direction]
    z = np.linspace(-12, 12, 400_001)

    def density(factor):
        return sum(
            p * np.exp(-((z - factor * s) ** 2) / 2)
            for s, p in zip(law.norms, law.probs, strict=True)
        )

    positive = np.maximum(density(sign[0]) - math.exp(epsilon) * density(sign[1]), 0.0)
    return positive.sum() * (z[1] - z[0]) / math.sqrt(2 * math.pi)


@pytest.mark.parametrize("direction", ["remove", "add", "replace"])
def test_the_curve_is_the_integral(direction):
    epsilons = np.array([-2.0, -0.5, -0.1, 0.0, 0.1, 0.2, 0.6, 1.5, 3.0])
    curve = mixture_deltas(LAW, epsilons, direction=direction)
    for epsilon, delta in zip(epsilons, curve, strict=True):
        assert delta == pytest.approx(integral(LAW, epsilon, direction), abs=3e-9)


@pytest.mark.parametrize("direction", ["remove", "add", "replace"])
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-9])
def test_epsilon_and_delta_are_inverse(direction, delta):
    epsilon = mixture_epsilon(LAW, delta=delta, direction=direction)
    found = mixture_deltas(LAW, np.array([epsilon]), direction=direction)[0]
    assert found == pytest.approx(delta, rel=1e-4)


@pytest.mark.parametrize("interval", [0.3, 0.1, 0.02])
def test_the_discrete_pair_dominates_on_any_grid_and_converges(interval):
    loss = mixture_loss(LAW, neighboring_relation="zero_out", interval=interval, cutoff=1e-12)
    epsilons = np.array([0.01, 0.05, 0.2, 0.33, 0.71, 1.2])
    truth = np.maximum(
        mixture_deltas(LAW, epsilons, direction="remove"),
        mixture_deltas(LAW, epsilons, direction="add"),
    )
    found = np.array([loss.get_delta_for_epsilon(float(epsilon)) for epsilon in epsilons])
    assert (found >= truth - 1e-10).all()
    assert (found <= truth + interval**2).all()


def test_what_is_not_listed_counts_in_full():
    unsure = NormLaw(norms=LAW.norms, probs=LAW.probs, beyond=1e-6)
    epsilons = np.array([0.1, 1.0, 20.0])
    known = mixture_deltas(LAW, epsilons, direction="remove")
    found = mixture_deltas(unsure, epsilons, direction="remove")
    assert found == pytest.approx(known * (1 - 1e-6) + 1e-6, rel=1e-12)
    assert mixture_epsilon(unsure, delta=1e-6, direction="remove") == math.inf


def test_rounding_is_upward_only():
    rng = np.random.default_rng(1)
    norms, probs = rng.random(500) * 3, rng.dirichlet(np.ones(500))
    law = rounded_up(norms, probs, resolution=0.01)
    assert len(law.norms) < 400
    assert law.probs.sum() == pytest.approx(1.0)
    order = np.argsort(norms)
    for threshold in (0.1, 0.5, 1.0, 2.0):  # stochastic dominance
        above = probs[order][norms[order] > threshold].sum()
        assert law.probs[law.norms > threshold].sum() >= above - 1e-12
    mean = float(law.norms @ law.probs)
    assert float(norms @ probs) <= mean <= 1.01 * float(norms @ probs)


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("is_last", [False, True])
def test_block_norms_are_those_of_the_inverse(correlation, is_last):
    weights = (1.0, 1.0, 0.8, 0.7)
    law = block_law(
        correlation=correlation,
        weights=weights,
        is_last=is_last,
        sampling_prob=0.3,
        resolution=0.0,
    )
    width = len(weights)
    block = (1 + correlation**2) * np.eye(width)
    block -= correlation * (np.eye(width, k=1) + np.eye(width, k=-1))
    block[0, 0] -= correlation
    block[-1, -1] -= 0.0 if is_last else correlation
    inverse = np.linalg.inv(block)
    patterns = [np.array(x) * np.array(weights) for x in itertools.product([0, 1], repeat=width)]
    expected = {}
    for x in patterns:
        value = round(math.sqrt(x @ inverse @ x), 9)
        expected[value] = expected.get(value, 0.0) + 0.3 ** (x > 0).sum() * 0.7 ** (x == 0).sum()
    assert len(law.norms) >= len(expected)
    for value, prob in expected.items():
        near = np.abs(law.norms - value) < 1e-6
        assert law.probs[near].sum() == pytest.approx(prob)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("correlation", [0.3, 0.9])
@pytest.mark.parametrize("rounds", [8, 14])
def test_the_law_of_the_run_is_the_law_of_all_patterns_rounded_up(scaled, correlation, rounds):
    noise = GaussianNoise(correlation=correlation, column_normalized=scaled)
    law = run_law(noise, sampling_prob=0.2, num_rounds=rounds, horizon=rounds + 3, cutoff=1e-8)
    norms, probs = [], []
    for pattern in itertools.product([0.0, 1.0], repeat=rounds):
        y = np.array(pattern)
        norms.append(encoded_norm(noise, y, horizon=rounds + 3))
        probs.append(0.2 ** y.sum() * 0.8 ** (rounds - y.sum()))
    norms, probs = np.array(norms), np.array(probs)
    assert law.beyond <= 1e-8
    for threshold in np.linspace(0.05, norms.max(), 25):
        exact = probs[norms > threshold * (1 + 1e-9)].sum()
        assert law.probs[law.norms > threshold].sum() + law.beyond >= exact - 1e-9
    mean = float(norms @ probs)
    assert mean * (1 - 1e-9) <= float(law.norms @ law.probs) <= 1.03 * mean


def exact_delta(law: NormLaw, epsilon: float, direction: str) -> float:
    """P(L > ε) − e^ε Q(L > ε) by bisection for L(z) = ε, with forty digits."""
    with mp.workdps(40):
        p, s = ([mp.mpf(float(x)) for x in part] for part in (law.probs, law.norms))
        up = [x if direction != "add" else 0 for x in s]
        down = [x if direction != "remove" else 0 for x in s]

        def loss(z: Any) -> Any:
            upper = mp.fsum(w * mp.exp(-((z - a) ** 2) / 2) for w, a in zip(p, up, strict=True))
            lower = mp.fsum(w * mp.exp(-((z + b) ** 2) / 2) for w, b in zip(p, down, strict=True))
            return mp.log(upper) - mp.log(lower)

        low, high = mp.mpf(-300), mp.mpf(300)
        if loss(high) < epsilon:
            return 0.0
        if loss(low) <= epsilon:
            for _ in range(150):
                middle = (low + high) / 2
                low, high = (middle, high) if loss(middle) < epsilon else (low, middle)
        upper = mp.fsum(w * mp.ncdf(a - low) for w, a in zip(p, up, strict=True))
        lower = mp.fsum(w * mp.ncdf(-b - low) for w, b in zip(p, down, strict=True))
        return float(upper - mp.exp(epsilon) * lower)


@pytest.mark.parametrize("direction", ["remove", "add", "replace"])
@pytest.mark.parametrize(
    "law",
    [
        {0.0: 0.99, 100.0: 0.01},
        {0.0: 0.5, 15.0: 0.5},
        {0.0: 0.999, 8.0: 0.001},
        {0.0: 0.9, 1.0: 0.1},
        {0.0: 1 - 1e-11, 7.4: 1e-11},
        {0.3: 1.0},
    ],
    ids=str,
)
def test_delta_is_never_below_the_exact_one_also_for_long_norms(
    law: dict[float, float], direction: Any
) -> None:
    """With norms above 7.5 it was: 0 for .01 (add, ε = 0), .632 for .816 (replace, ε = −1)."""
    epsilons = np.array([-30.0, -5.0, -1.0, -0.01, 0.0, 0.01, 0.5, 3.0])
    made = NormLaw(norms=np.array([*law]), probs=np.array([*law.values()]))
    found = mixture_deltas(made, epsilons, direction=direction)
    for epsilon, delta in zip(epsilons, found, strict=True):
        exact = exact_delta(made, float(epsilon), direction)
        assert exact - 1e-15 <= delta <= exact + 1e-10


def test_epsilon_of_a_rare_and_long_norm_is_not_nothing() -> None:
    made = NormLaw(norms=np.array([0.0, 100.0]), probs=np.array([0.99, 0.01]))
    assert mixture_epsilon(made, delta=1e-3, direction="add") == pytest.approx(0.00905, abs=1e-5)
