"""Which sampling and which correlation λ let the least noise through at a given (ε, δ).

What a model sees of the noise is mostly its prefix sums: W_t moves by the sum of the first t noisy
gradients. Their root mean square error, κ ‖A C⁻¹‖_F/√T per coordinate and clip norm, A the prefix
sums, is what the rows are ranked by, divided by the batch size so that different ones compare.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import brentq

from dpfed_kan._validate import check_count
from dpfed_kan.privacy.accounting.patterns import has_run_law, run_law
from dpfed_kan.privacy.accounting.revealed_pattern import revealed_pattern_epsilon
from dpfed_kan.privacy.calibration import calibrate
from dpfed_kan.privacy.joint_sampling import BallsInBins, FixedSize, Sampling
from dpfed_kan.privacy.mechanism import Mechanism, NeighboringRelation
from dpfed_kan.privacy.noising import GaussianNoise, Noise
from dpfed_kan.privacy.sampling import Cyclic, FullBatch, Poisson
from dpfed_kan.privacy.sensitivity import spectral_norm

CORRELATIONS = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
_COARSE, _FINE = 5e-3, 1e-3  # of log κ


@dataclass(frozen=True, kw_only=True)
class Advice:
    """One setting that keeps the target, and the noise it lets through.

    Args:
        sampling: The sampler.
        correlation: λ.
        column_normalized: Whether row t is scaled by d_t.
        noise_multiplier: κ that keeps the target.
        prefix_error: κ ‖A C⁻¹‖_F/√T, in clip norms, of sums of gradients.
        error_per_record: The same divided by the batch size: the rank.
        refined: Whether κ was calibrated with every bound, or with the quick ones only.
    """

    sampling: Sampling
    correlation: float
    column_normalized: bool
    noise_multiplier: float
    prefix_error: float
    error_per_record: float
    refined: bool


def prefix_error(noise: Noise, *, num_rounds: int) -> float:
    """Return ‖A C⁻¹‖_F/√T, A the prefix sums: the noise in a prefix sum per unit of κ.

    Column j of A C⁻¹ is d_j in row j and d_j − λ d_{j+1} in all later rows.

    Args:
        noise: Gives λ and the row scales.
        num_rounds: T.
    """
    scales = noise.row_scales(num_rounds)
    later = scales[:-1] - noise.correlation * scales[1:]
    rows_below = np.arange(num_rounds - 1, 0, -1)
    total = np.square(scales).sum() + (rows_below * np.square(later)).sum()
    return math.sqrt(float(total) / num_rounds)


def advise(
    *,
    target_epsilon: float,
    target_delta: float,
    num_records: int,
    batch_size: int,
    num_rounds: int,
    neighboring_relation: NeighboringRelation = "zero_out",
    correlations: Sequence[float] = CORRELATIONS,
    samplings: Sequence[Sampling] | None = None,
) -> tuple[Advice, ...]:
    """Return settings that keep the target, least noise first.

    A coarse grid of λ is calibrated with quick bounds and refined once around the best of each
    sampler; that λ, plain and column-normalised, is then calibrated with every bound.

    Args:
        target_epsilon: ε > 0.
        target_delta: δ in (0, 1/n).
        num_records: n, over all sites.
        batch_size: B, over all sites.
        num_rounds: T.
        neighboring_relation: What may differ between two data sets.
        correlations: The coarse grid.
        samplings: Samplers to rank; None for all at this batch size, and full batches.

    Raises:
        ValueError: If a target or size is out of range.
    """
    check_count("batch_size", batch_size)
    check_count("num_records", num_records, low=batch_size, advice="a batch cannot be larger")
    check_count("num_rounds", num_rounds)
    if samplings is None:
        period = max(1, round(num_records / batch_size))
        samplings = (
            Poisson(sampling_prob=batch_size / num_records),
            FixedSize(batch_size=batch_size),
            BallsInBins(num_bins=period),
            Cyclic(num_batches=period),
            FullBatch(),
        )
    rows: list[Advice] = []
    for sampling in samplings:
        mechanism = Mechanism(
            sampling=sampling,
            noise=GaussianNoise(),
            l2_clip_norm=1.0,
            num_rounds=num_rounds,
            neighboring_relation=neighboring_relation,
        )
        rows += _ranked_correlations(
            mechanism, correlations, target_epsilon, target_delta, num_records
        )
    return tuple(sorted(rows, key=lambda advice: advice.error_per_record))


def _ranked_correlations(
    mechanism: Mechanism,
    correlations: Sequence[float],
    target_epsilon: float,
    target_delta: float,
    num_records: int,
) -> list[Advice]:
    """Return one sampler's rows: the grid, then twice around its best, which is refined."""
    multiplier_fn = _multiplier_fn(mechanism, target_epsilon, target_delta, num_records)

    def row(correlation: float, column_normalized: bool) -> Advice:
        noise = GaussianNoise(correlation=correlation, column_normalized=column_normalized)
        return _advice(mechanism, noise, multiplier_fn(noise), num_records)

    tried = [row(correlation, False) for correlation in correlations]
    for correlation in _beside(_best(tried).correlation, correlations):
        tried.append(row(correlation, False))
    best = _best(tried)
    if best.correlation > 0:
        tried.append(row(best.correlation, True))
    for advice in [a for a in tried if a.correlation == best.correlation]:
        noise = GaussianNoise(
            correlation=advice.correlation, column_normalized=advice.column_normalized
        )
        exact = calibrate(
            replace(mechanism, noise=noise),
            target_epsilon=target_epsilon,
            target_delta=target_delta,
            num_records=num_records,
            tolerance=_FINE,
            known_multiplier=1.001 * advice.noise_multiplier,
        )
        tried[tried.index(advice)] = _advice(
            mechanism, noise, exact.noise_multiplier, num_records, refined=True
        )
    return tried


def _advice(
    mechanism: Mechanism,
    noise: GaussianNoise,
    multiplier: float,
    num_records: int,
    refined: bool = False,
) -> Advice:
    error = multiplier * prefix_error(noise, num_rounds=mechanism.num_rounds)
    return Advice(
        sampling=mechanism.sampling,
        correlation=noise.correlation,
        column_normalized=noise.column_normalized,
        noise_multiplier=multiplier,
        prefix_error=error,
        error_per_record=error / mechanism.sampling.expected_batch_size(num_records),
        refined=refined,
    )


def _best(rows: Sequence[Advice]) -> Advice:
    return min(rows, key=lambda advice: advice.error_per_record)


def _beside(center: float, grid: Sequence[float]) -> list[float]:
    """Return the midpoints to the neighbours of a grid point."""
    ordered = sorted(grid)
    place = ordered.index(center)
    neighbours = ordered[max(0, place - 1) : place] + ordered[place + 1 : place + 2]
    return [(center + neighbour) / 2 for neighbour in neighbours]


def _multiplier_fn(
    mechanism: Mechanism, target_epsilon: float, target_delta: float, num_records: int
) -> Callable[[GaussianNoise], float]:
    """Return noise ↦ a κ that keeps the target, by quick bounds."""

    def calibrated(noise: GaussianNoise, sampling: Sampling, known: float) -> float:
        return calibrate(
            replace(mechanism, noise=noise, sampling=sampling),
            target_epsilon=target_epsilon,
            target_delta=target_delta,
            num_records=num_records,
            quick=True,
            tolerance=_COARSE,
            known_multiplier=known,
        ).noise_multiplier

    sampling, rounds = mechanism.sampling, mechanism.num_rounds
    match sampling:
        case BallsInBins(num_bins=num_bins):
            order = Cyclic(num_batches=num_bins)  # a fixed order needs no less noise

            def through_cyclic(noise: GaussianNoise) -> float:
                return calibrated(noise, sampling, 1.001 * calibrated(noise, order, 100.0))

            return through_cyclic
        case Poisson() | FixedSize():
            independent = calibrated(GaussianNoise(), sampling, 100.0)

            def spectral(noise: GaussianNoise) -> float:
                return independent * spectral_norm(noise, num_rounds=rounds, horizon=rounds)

            if isinstance(sampling, Poisson):
                return spectral
            revealed = _revealed_fn(mechanism, sampling, target_epsilon, target_delta, num_records)
            return lambda noise: min(spectral(noise), revealed(noise))
        case _:
            return lambda noise: calibrated(noise, sampling, 100.0)


def _revealed_fn(
    mechanism: Mechanism,
    sampling: FixedSize,
    target_epsilon: float,
    target_delta: float,
    num_records: int,
) -> Callable[[GaussianNoise], float]:
    """Return noise ↦ κ by the revealed pattern, ∞ for runs too long for it."""
    rounds = mechanism.num_rounds
    factor = 1 if mechanism.neighboring_relation == "zero_out" else 2

    def multiplier(noise: GaussianNoise) -> float:
        if not has_run_law(noise, num_rounds=rounds):
            return math.inf
        law = run_law(
            noise,
            sampling_prob=sampling.batch_size / num_records,
            num_rounds=rounds,
            horizon=rounds,
            cutoff=1e-3 * target_delta,
        )

        def excess(log_multiplier: float) -> float:
            epsilon = revealed_pattern_epsilon(
                law,
                noise_multiplier=math.exp(log_multiplier),
                sensitivity_factor=factor,
                delta=target_delta,
            )
            return epsilon - target_epsilon

        low, high = -3.0, 0.0
        while excess(high) > 0:
            low, high = high, high + 2.0
        return math.exp(float(brentq(excess, low, high, xtol=_COARSE)) + _COARSE)

    return multiplier
