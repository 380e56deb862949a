"""Batches of a fixed size, drawn without replacement: not the Poisson account.

Whether a record is in the batch also decides whether another one is, so that two neighbouring
runs differ by up to two clip norms in a round even when only one record is zeroed out (MATH.md
section 3: T = 1, κ = 1, r = .025, δ = 1e-5 has ε ≥ 3.11, the Poisson account says 0.55). Two bounds
hold, and the smaller is the answer.

Revealed pattern. Given all batches, the runs differ in the record's own contribution: one clip
norm for zero-out, two for replace-one. The batches' law does not depend on the data, so joint
convexity gives E_y δ_Gauss, y_t independent Bernoulli(B/n): the rounds' batches are independent and
each holds the record with probability B/n. Under add-or-remove the batch law differs; couple the
batches so that another record takes the removed one's place: two clip norms.

Amplification at sensitivity 2. Draw R of B−1 of the other records and one more, j: the batch is
R ∪ {i} with probability r = B/n, else R ∪ {j}; both are uniform. Given R and j the pair of one
round is P = (1−r) N(a) + r N(b), Q = (1−r) N(a) + r N(c), with a of record j, b of i, and c of i
changed (0 for zero-out), at distances of at most 2 clip norms. By advanced joint convexity (Balle,
Barthe, Gaboardi, arXiv 1807.01647, theorems 2 and 9), for ε' = log(1 + r(e^ε − 1)), ε ≥ 0,
    δ'(ε') = r ((1−β) H_ε(N(b)‖N(a)) + β H_ε(N(b)‖N(c))) ≤ r δ_Gauss(ε; 2/σ),
and the same with P and Q exchanged, so that δ'(−ε') ≤ 1 − e^{−ε'} + e^{−ε'} δ'(ε'). This symmetric
curve is convex in e^ε (its slopes at 1 are a − 1 + r(1 − 2a) ≤ −a, a = Φ(−1/σ) ≤ 1/2): it is that
of a dominating pair, and T adaptive rounds are its T-fold composition. The pairs of Poisson removal
and addition, each composed by itself, are smaller and not used: neither of them dominates alone.
Under add-or-remove Q = N(a), which is the Poisson pair at sensitivity 2, in both directions.
For λ > 0 both rest on independent noise of std σ = κ/‖C‖₂ (spectral.py).
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import log_ndtr

from dpfed_kan._validate import check_count
from dpfed_kan.privacy.accounting.gaussian import gaussian_epsilon
from dpfed_kan.privacy.accounting.loss_distribution import (
    LossDistribution,
    connect_the_dots,
    fitting_interval,
    grid_interval,
    loss_epsilon,
    repeated,
)
from dpfed_kan.privacy.accounting.patterns import has_run_law, run_law
from dpfed_kan.privacy.accounting.poisson import poisson_epsilon
from dpfed_kan.privacy.accounting.revealed_pattern import revealed_pattern_epsilon
from dpfed_kan.privacy.accounting.spectral import independent_noise
from dpfed_kan.privacy.clipping import Vector
from dpfed_kan.privacy.mechanism import NeighboringRelation
from dpfed_kan.privacy.noising import Noise


def fixed_size_epsilon(
    noise: Noise,
    *,
    noise_multiplier: float,
    batch_size: int,
    num_records: int,
    num_rounds: int,
    horizon: int,
    delta: float,
    neighboring_relation: NeighboringRelation,
) -> float:
    """Return the smaller bound for batches of B of n records drawn without replacement.

    Args:
        noise: Gives λ and the row scales.
        noise_multiplier: κ > 0.
        batch_size: B, over all sites.
        num_records: n ≥ B, over all sites.
        num_rounds: Rounds that happened.
        horizon: Rounds planned.
        delta: δ in (0, 1).
        neighboring_relation: Decides the pairs.

    Raises:
        ValueError: If the batch is larger than the data.
    """
    check_count("batch_size", batch_size)
    check_count("num_records", num_records, low=batch_size, advice="a batch cannot be larger")
    prob = batch_size / num_records
    amplified = fixed_size_amplified_epsilon(
        inclusion_prob=prob,
        noise_multiplier=independent_noise(
            noise, noise_multiplier=noise_multiplier, num_rounds=num_rounds, horizon=horizon
        ),
        num_rounds=num_rounds,
        delta=delta,
        neighboring_relation=neighboring_relation,
    )
    if not has_run_law(noise, num_rounds=num_rounds):
        return amplified
    law = run_law(
        noise,
        sampling_prob=prob,
        num_rounds=num_rounds,
        horizon=horizon,
        cutoff=1e-3 * delta,
    )
    revealed = revealed_pattern_epsilon(
        law,
        noise_multiplier=noise_multiplier,
        sensitivity_factor=1 if neighboring_relation == "zero_out" else 2,
        delta=delta,
    )
    return min(amplified, revealed)


def fixed_size_amplified_epsilon(
    *,
    inclusion_prob: float,
    noise_multiplier: float,
    num_rounds: int,
    delta: float,
    neighboring_relation: NeighboringRelation,
) -> float:
    """Return the account at sensitivity 2 with independent noise.

    Args:
        inclusion_prob: r = B/n in (0, 1].
        noise_multiplier: σ > 0, per clip norm.
        num_rounds: T.
        delta: δ in (0, 1).
        neighboring_relation: Decides the pair.
    """
    if neighboring_relation == "add_remove":
        return poisson_epsilon(
            sampling_prob=inclusion_prob,
            noise_multiplier=noise_multiplier / 2,
            num_rounds=num_rounds,
            delta=delta,
            neighboring_relation=neighboring_relation,
        )
    bound = gaussian_epsilon(delta=delta, mu=2 * math.sqrt(num_rounds) / noise_multiplier)
    if inclusion_prob == 1 or bound == 0:
        return bound
    interval = math.inf
    for _ in range(4):
        finer = grid_interval(epsilon=bound, num_compositions=num_rounds, accuracy=0.5)
        if finer > 0.7 * interval:
            break
        interval = finer
        try:
            loss = fixed_size_loss(
                inclusion_prob=inclusion_prob,
                noise_multiplier=noise_multiplier,
                num_rounds=num_rounds,
                interval=interval,
                cutoff=1e-5 * delta,
            )
        except OverflowError:
            break
        bound = min(bound, loss_epsilon(loss, delta=delta, num_compositions=num_rounds))
    return bound


def fixed_size_loss(
    *,
    inclusion_prob: float,
    noise_multiplier: float,
    num_rounds: int,
    interval: float,
    cutoff: float,
) -> LossDistribution:
    """Return the loss distribution of T rounds of the symmetric pair (zero-out, replace-one).

    Raises:
        OverflowError: If the grid would not fit.
    """
    mu = 2 / noise_multiplier
    step_cutoff = cutoff / num_rounds

    def curve(epsilons: Vector) -> Vector:
        return without_replacement_deltas(epsilons, inclusion_prob=inclusion_prob, mu=mu)

    high = math.log1p(
        inclusion_prob * math.expm1(min(gaussian_epsilon(delta=step_cutoff, mu=mu), 700.0))
    )
    if fitting_interval(interval, low=-high, high=high) > interval:
        raise OverflowError(f"interval={interval:g} is too fine for losses up to {high:g}")
    pmf = connect_the_dots(curve, low=-high, high=high, interval=interval)
    return repeated(LossDistribution(pmf), num_rounds)


def without_replacement_deltas(epsilons: Vector, *, inclusion_prob: float, mu: float) -> Vector:
    """Return the symmetric curve δ'(ε) of one round, for ε of any sign.

    Args:
        epsilons: ε, shape (N,).
        inclusion_prob: r.
        mu: 2/σ, sensitivity over noise.
    """
    size = np.abs(epsilons)
    inner = np.log1p(np.expm1(size) / inclusion_prob)
    first = log_ndtr(mu / 2 - inner / mu)
    second = inner + log_ndtr(-mu / 2 - inner / mu)
    above = inclusion_prob * np.exp(first) * -np.expm1(np.minimum(second - first, 0.0))
    below = -np.expm1(-size) + np.exp(-size) * above
    return np.asarray(np.where(epsilons >= 0, above, below))
