"""The steps of the block-spectral proof (privacy/README.md), checked one by one."""

import itertools
import math

import numpy as np
import pytest
from scipy.linalg import block_diag

from dpfed_kan.privacy.accounting.block_spectral import (
    block_spectral_epsilon,
    cut_into_blocks,
)
from dpfed_kan.privacy.accounting.mixture import NormLaw, mixture_deltas
from dpfed_kan.privacy.accounting.patterns import block_law, run_law
from dpfed_kan.privacy.accounting.poisson import poisson_epsilon
from dpfed_kan.privacy.accounting.spectral import independent_noise
from dpfed_kan.privacy.noising import GaussianNoise
from dpfed_kan.privacy.sensitivity import noising_matrix, strategy_matrix

CORRELATIONS = (0.05, 0.3, 0.6, 0.9, 0.99)


def block(correlation, width, is_last):
    matrix = (1 + correlation**2) * np.eye(width)
    matrix -= correlation * (np.eye(width, k=1) + np.eye(width, k=-1))
    matrix[0, 0] -= correlation
    if not is_last:
        matrix[-1, -1] -= correlation
    return matrix


def cut(correlation, width, rounds):
    starts = range(0, rounds, width)
    return block_diag(
        *(
            block(correlation, min(width, rounds - start), start + width >= rounds)
            for start in starts
        )
    )


@pytest.mark.parametrize("correlation", CORRELATIONS)
@pytest.mark.parametrize("width", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("rounds", [1, 2, 7, 16, 33])
@pytest.mark.parametrize("scaled", [False, True])
def test_the_noise_contains_the_blocks_noise(correlation, width, rounds, scaled):
    noise = GaussianNoise(correlation=correlation, column_normalized=scaled)
    inverse = noising_matrix(noise, num_rounds=rounds, horizon=rounds)
    covariance = inverse @ inverse.T
    scales = np.diag(noise.row_scales(rounds)[:rounds])
    rest = covariance - scales @ cut(correlation, width, rounds) @ scales
    assert np.linalg.eigvalsh(rest).min() >= -1e-12 * np.abs(covariance).max()


@pytest.mark.parametrize("correlation", CORRELATIONS)
@pytest.mark.parametrize("width", [1, 2, 5, 12])
@pytest.mark.parametrize("is_last", [False, True])
def test_a_block_is_an_m_matrix_with_a_nonnegative_encoder(correlation, width, is_last):
    matrix = block(correlation, width, is_last)
    assert np.linalg.eigvalsh(matrix).min() >= (1 - correlation) ** 2 - 1e-12
    assert (np.linalg.inv(matrix) > 0).all()
    lower = np.linalg.cholesky(matrix)
    assert (np.linalg.inv(lower) >= -1e-12).all()  # û_x ≥ 0, causal


@pytest.mark.parametrize("correlation", CORRELATIONS)
@pytest.mark.parametrize("scaled", [False, True])
def test_independent_noise_inside_the_correlated_one_is_not_overstated(correlation, scaled):
    noise = GaussianNoise(correlation=correlation, column_normalized=scaled)
    for rounds in (1, 2, 9, 40):
        inverse = noising_matrix(noise, num_rounds=rounds, horizon=rounds + 2)
        inside = independent_noise(
            noise, noise_multiplier=1.0, num_rounds=rounds, horizon=rounds + 2
        )
        rest = inverse @ inverse.T - inside**2 * np.eye(rounds)
        assert np.linalg.eigvalsh(rest).min() >= -1e-12
        norm = np.linalg.norm(strategy_matrix(noise, num_rounds=rounds, horizon=rounds + 2), 2)
        assert inside == pytest.approx(1 / norm, rel=1e-6)


@pytest.mark.parametrize("scaled", [False, True])
def test_the_cut_covers_every_round_once_with_weights_not_understated(scaled):
    noise = GaussianNoise(correlation=0.9, column_normalized=scaled)
    for rounds, width in itertools.product((1, 7, 40, 100), (1, 3, 8)):
        blocks = cut_into_blocks(noise, width=width, num_rounds=rounds, horizon=120)
        assert sum(len(b.weights) * b.count for b in blocks) == rounds
        assert [b.count for b in blocks if b.is_last] == [1]
        found = np.sort(np.concatenate([np.tile(b.weights, b.count) for b in blocks]))
        exact = np.sort(1 / noise.row_scales(120)[:rounds])
        assert (found >= exact * (1 - 1e-9)).all()
        assert (found <= exact * 1.0041).all()


Z = np.linspace(-11, 11, 441)
ADVERSARIES = {
    "constant": lambda v: np.ones_like(v),
    "flips with the sign": np.sign,
    "flips against the sign": lambda v: -np.sign(v),
    "waits for a large first release": lambda v: (v > 1.0).astype(float),
    "holds back after a large one": lambda v: (v < 1.0).astype(float),
    "smooth": lambda v: np.tanh(2 * v - 0.5),
}


def adaptive_delta(epsilon, correlation, kappa, prob, second, *, relation, direction):
    """δ of two rounds by integration, the second gradient chosen after the first release."""
    step = Z[1] - Z[0]
    v1, v2 = Z[:, None], Z[None, :]
    chosen = second(v1 + 0 * v2)

    def density(sign):
        total = 0.0
        for x1, x2 in itertools.product((0, 1), repeat=2):
            p = (prob if x1 else 1 - prob) * (prob if x2 else 1 - prob)
            z1 = (v1 - sign * x1) / kappa
            z2 = (v2 - sign * x2 * chosen) / kappa + correlation * z1
            total = total + p * np.exp(-(z1**2 + z2**2) / 2)
        return total / (2 * math.pi * kappa**2)

    upper, lower = density(1.0), density(-1.0 if relation == "replace_one" else 0.0)
    if direction == "add":
        upper, lower = lower, upper
    return float(np.maximum(upper - math.exp(epsilon) * lower, 0.0).sum() * step**2)


@pytest.mark.parametrize("name", ADVERSARIES)
@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
def test_no_adaptive_choice_inside_a_block_beats_the_aligned_mixture(name, correlation, relation):
    kappa, prob = 1.3, 0.2
    law = run_law(
        GaussianNoise(correlation=correlation),
        sampling_prob=prob,
        num_rounds=2,
        horizon=2,
        cutoff=1e-9,
    ).scaled(1 / kappa)
    for direction in ("replace",) if relation == "replace_one" else ("remove", "add"):
        for epsilon in (0.0, 0.4, 1.2):
            bound = mixture_deltas(law, np.array([epsilon]), direction=direction)[0]
            found = adaptive_delta(
                epsilon,
                correlation,
                kappa,
                prob,
                ADVERSARIES[name],
                relation=relation,
                direction=direction,
            )
            assert found <= bound + 1e-5


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("direction", ["remove", "add", "replace"])
def test_aligned_means_are_the_worst_directions(seed, direction):
    """E(Σ a_i exp(⟨u_i, Z⟩ − ‖u_i‖²/2))₊ in two dimensions is at most the one-dimensional one."""
    rng = np.random.default_rng(seed)
    norms, probs = rng.random(4) * 2, rng.dirichlet(np.ones(4))
    angles = rng.random((2, 4)) * 2 * math.pi
    one, two = Z[:, None], Z[None, :]
    base = np.exp(-(one**2 + two**2) / 2) / (2 * math.pi)

    def mixture(which, moved):
        if not moved:
            return base
        return base * sum(
            p * np.exp(s * (math.cos(t) * one + math.sin(t) * two) - s * s / 2)
            for p, s, t in zip(probs, norms, angles[which], strict=True)
        )

    upper = mixture(0, direction != "add")
    lower = mixture(1, direction != "remove")
    order = np.argsort(norms)
    law = NormLaw(norms=norms[order], probs=probs[order])
    for epsilon in (-0.5, 0.0, 0.4, 1.0):
        found = np.maximum(upper - math.exp(epsilon) * lower, 0.0).sum() * (Z[1] - Z[0]) ** 2
        bound = mixture_deltas(law, np.array([epsilon]), direction=direction)[0]
        assert found <= bound + 1e-5


def test_one_round_wide_blocks_are_the_poisson_account():
    for relation in ("zero_out", "replace_one"):
        for correlation in (0.0, 0.5):
            bound = block_spectral_epsilon(
                GaussianNoise(correlation=correlation),
                noise_multiplier=3.0,
                sampling_prob=0.05,
                num_rounds=60,
                horizon=60,
                delta=1e-5,
                neighboring_relation=relation,
                known_epsilon=2.0,
                width=1,
            )
            expected = poisson_epsilon(
                sampling_prob=0.05,
                noise_multiplier=3.0 * (1 - correlation),
                num_rounds=60,
                delta=1e-5,
                neighboring_relation=relation,
            )
            assert bound.epsilon == pytest.approx(expected, rel=0.02)
            assert bound.epsilon <= expected * 1.001


def test_a_composed_block_distribution_is_what_draws_of_its_losses_say():
    """50 blocks of 8 rounds, κ = 6.3, λ = .9, r = .025: δ at our ε by plain Monte Carlo."""
    rng = np.random.default_rng(7)
    bound = block_spectral_epsilon(
        GaussianNoise(correlation=0.9),
        noise_multiplier=6.3,
        sampling_prob=0.025,
        num_rounds=400,
        horizon=400,
        delta=1e-3,
        neighboring_relation="zero_out",
        known_epsilon=5.0,
        width=8,
    )
    law = block_law(
        correlation=0.9,
        weights=(1.0,) * 8,
        is_last=False,
        sampling_prob=0.025,
        resolution=0.001,
    ).scaled(1 / 6.3)
    z = np.linspace(-10, law.norms[-1] + 10, 20_001)
    offset = np.log(law.probs) - law.norms**2 / 2
    losses = np.logaddexp.reduce(np.multiply.outer(z, law.norms) + offset, axis=1)
    total = 0.0
    for _ in range(4):
        norms = rng.choice(law.norms, p=law.probs / law.probs.sum(), size=(50_000, 50))
        drawn = np.interp(norms + rng.standard_normal(norms.shape), z, losses).sum(axis=1)
        total += np.maximum(-np.expm1(bound.epsilon - drawn), 0.0).mean() / 4
    assert 0.8e-3 <= total <= 1.35e-3  # the natural end of the last block makes it the larger
