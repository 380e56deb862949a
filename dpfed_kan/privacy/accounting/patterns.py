"""The law of ‖C y‖ when a record joins every round independently with probability r.

Norms are only ever rounded up, and what is not listed counts in full towards δ: both keep every
bound that is built on the law an upper bound (README.md, "Gaussian comparison").
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.signal import lfilter
from scipy.stats import binom

from dpfed_kan.privacy.accounting.mixture import NormLaw, rounded_up
from dpfed_kan.privacy.clipping import Vector
from dpfed_kan.privacy.noising import Noise

MAX_ENUMERATED = 16
MAX_ROUNDS = 2_000
_LEAST = 1e-3


def block_law(
    *,
    correlation: float,
    weights: tuple[float, ...],
    is_last: bool,
    sampling_prob: float,
    resolution: float,
) -> NormLaw:
    """Return the law of s(x) = sqrt(xᵀ W A⁻¹ W x), x ∈ {0,1}^w independent Bernoulli(r).

    A is tridiagonal: 1+λ² on the diagonal, less λ in both corners (2λ if w = 1), −λ beside; the
    last block of a run is not cut at its end and keeps 1+λ² there. All 2^w patterns are listed:
    with A = L D Lᵀ, u = L⁻¹ W x has u_t = x_t/d_t + (λ/D_{t−1}) u_{t−1} and s² = Σ u_t²/D_t.

    Args:
        correlation: λ.
        weights: 1/d_t of the block's rounds, W's diagonal, shape (w,), w ≤ 16.
        is_last: Whether no block follows.
        sampling_prob: r.
        resolution: Relative rounding of the norms, upwards.
    """
    corner = (1 - correlation) + correlation**2
    diagonal = np.full(len(weights), 1 + correlation**2)
    diagonal[0] = corner
    if not is_last:
        diagonal[-1] = corner if len(weights) > 1 else (1 - correlation) ** 2
    encoded, squares, probs = np.zeros(1), np.zeros(1), np.ones(1)
    pivot = math.inf
    for entry, weight in zip(diagonal, weights, strict=True):
        carried = correlation / pivot * encoded
        pivot = float(entry) - correlation**2 / pivot
        encoded = np.concatenate([carried, carried + weight])
        squares = np.concatenate([squares, squares]) + encoded**2 / pivot
        probs = np.concatenate([probs * (1 - sampling_prob), probs * sampling_prob])
    slack = 1e-12 + 1e-15 * len(weights) / (1 - correlation) ** 2  # roundings of the pivots
    return rounded_up(np.sqrt(squares) * (1 + slack), probs, resolution=resolution)


def has_run_law(noise: Noise, *, num_rounds: int) -> bool:
    """Return whether `run_law` takes seconds rather than minutes."""
    return noise.correlation == 0 or num_rounds <= MAX_ROUNDS


def run_law(
    noise: Noise, *, sampling_prob: float, num_rounds: int, horizon: int, cutoff: float
) -> NormLaw:
    """Return the law of ‖C y‖ over a whole run.

    Args:
        noise: Gives λ and the row scales.
        sampling_prob: r.
        num_rounds: Rounds that happened.
        horizon: Rounds planned.
        cutoff: The most probability that may be left to unlisted norms.

    Raises:
        ValueError: If the run is too long for it (`has_run_law`).
    """
    if not has_run_law(noise, num_rounds=num_rounds):
        raise ValueError(
            f"expected num_rounds={num_rounds} of at most {MAX_ROUNDS} for the law of ‖C y‖ at "
            "correlation > 0; use the spectral bounds for longer runs"
        )
    return _run_law(
        noise.correlation,
        noise.column_normalized,
        float(sampling_prob),
        num_rounds,
        tuple(noise.row_scales(horizon)[:num_rounds]) if noise.column_normalized else None,
        float(cutoff),
    )


@lru_cache(maxsize=32)
def _run_law(
    correlation: float,
    column_normalized: bool,
    sampling_prob: float,
    num_rounds: int,
    row_scales: tuple[float, ...] | None,
    cutoff: float,
) -> NormLaw:
    if correlation == 0:
        return _binomial_law(num_rounds, sampling_prob, cutoff)
    weights = np.ones(num_rounds) if row_scales is None else 1 / np.array(row_scales)
    if num_rounds <= 12:
        return _listed(correlation, weights, sampling_prob)
    return _by_dynamic_programming(correlation, weights, sampling_prob, cutoff)


def _binomial_law(num_rounds: int, sampling_prob: float, cutoff: float) -> NormLaw:
    """Return the law of the square root of a binomial count; few participations round up."""
    least = int(binom.ppf(1e-3 * cutoff, num_rounds, sampling_prob))
    most = int(min(binom.isf(cutoff / 2, num_rounds, sampling_prob) + 1, num_rounds))
    counts = np.arange(least, most + 1)
    probs = binom.pmf(counts, num_rounds, sampling_prob)
    probs[0] = binom.cdf(least, num_rounds, sampling_prob)
    return NormLaw(
        norms=np.sqrt(counts.astype(float)),
        probs=probs / probs.sum(),
        beyond=float(binom.sf(most, num_rounds, sampling_prob)),
    )


def _listed(correlation: float, weights: Vector, sampling_prob: float) -> NormLaw:
    """List all patterns: (C y)_t = λ (C y)_{t−1} + y_t weight_t."""
    encoded, squares, probs = np.zeros(1), np.zeros(1), np.ones(1)
    for weight in weights:
        encoded = np.concatenate([correlation * encoded, correlation * encoded + weight])
        squares = np.concatenate([squares, squares]) + encoded**2
        probs = np.concatenate([probs * (1 - sampling_prob), probs * sampling_prob])
    return rounded_up(np.sqrt(squares) * (1 + 1e-12), probs, resolution=0.001)


def _by_dynamic_programming(
    correlation: float, weights: Vector, sampling_prob: float, cutoff: float
) -> NormLaw:
    """Run over the rounds with the state (h, Σ), h = (C y)_t and Σ = ‖C y‖² if y ends here.

    A participation in round t raises the whole run's ‖C y‖² by D_t (2 h a_t + a_t²), a_t its
    weight, h what was left of the earlier ones and D_t = Σ_{s≥t} λ^{2(s−t)}: Σ moves, and is
    rounded up, only then. h lives on a geometric grid that λ maps onto itself, so it too is
    rounded up only at a participation; below the grid it stays at its least value.
    """
    rounds = len(weights)
    reach = -np.expm1(2 * math.log(correlation) * np.arange(rounds, 0, -1)) / (1 - correlation**2)
    mean = lfilter([1.0], [1.0, -correlation], weights) * sampling_prob
    spread = lfilter([1.0], [1.0, -(correlation**2)], weights**2) * sampling_prob
    expected = float((mean**2 + spread).sum())
    top = float(weights.max()) / (1 - correlation) * 1.0001  # λ·top + weight stays below it
    levels_per_factor = max(1, round(-math.log(correlation) / 0.02))
    ratio = correlation ** (1 / levels_per_factor)
    num_levels = math.ceil(math.log(_LEAST / top) / math.log(ratio)) + 1
    levels = top * ratio ** np.arange(num_levels)
    most = 6.0 * expected
    while True:
        law = _one_run(levels, levels_per_factor, weights, reach, sampling_prob, most / 1000, 1000)
        if law.beyond <= cutoff or most > 1e6 * expected:
            return law
        most *= 1.6


def _one_run(
    levels: Vector,
    levels_per_factor: int,
    weights: Vector,
    reach: Vector,
    sampling_prob: float,
    cell: float,
    num_cells: int,
) -> NormLaw:
    mass = np.zeros((len(levels), num_cells + 1))
    mass[-1, 0] = 1.0
    beyond = 0.0
    for weight, total in zip(weights, reach, strict=True):
        joined = np.zeros_like(mass)
        decayed = np.zeros_like(mass)
        decayed[levels_per_factor:] = mass[:-levels_per_factor]
        decayed[-1] += mass[-levels_per_factor:].sum(axis=0)
        occupied = np.flatnonzero(decayed.any(axis=1))
        after = levels[occupied] + weight
        targets = np.searchsorted(-levels, -after, side="right") - 1
        moves = np.ceil(total * (2 * levels[occupied] * weight + weight**2) / cell).astype(int)
        for source, target, move in zip(occupied, targets, moves, strict=True):
            row = decayed[source]
            if move <= num_cells:
                joined[target, move:] += row[: num_cells + 1 - move]
                beyond += sampling_prob * float(row[num_cells + 1 - move :].sum())
            else:
                beyond += sampling_prob * float(row.sum())
        mass = (1 - sampling_prob) * decayed + sampling_prob * joined
    probs = mass.sum(axis=0)
    kept = np.flatnonzero(probs)
    return NormLaw(
        norms=np.sqrt(kept * cell) * (1 + 1e-12), probs=probs[kept] / probs.sum(), beyond=beyond
    )
