"""Balls in bins, deterministic bounds: reveal part of the bin, then add up lognormals.

The pair (MATH.md section 3, arXiv 2410.06266): a record that joins bin i moves the encoded run
by m_i = Σ_e C[:, e b + i]; with the bin uniform and G_ij = ⟨m_i, m_j⟩/κ² the likelihood ratio is
e^L = (1/b) Σ_i exp(a_i − G_ii/2), a ~ N(0, G) under Q, and δ_remove(ε) = E_Q[(e^L − e^ε)_+],
δ_add(ε) = E_Q[(1 − e^{ε+L})_+]: expectations of convex functions of e^L.

Adaptive gradients. The true ratio is Σ_i p_i M^i, where M^i is the exponential martingale of a
predictable drift v^i_t with ⟨v^i_t, v^j_t⟩ ≤ (C y_i)_t (C y_j)_t / κ², because C ≥ 0 and
contributions have norm ≤ 1. For convex F let V(t, M) be E[F(Σ_i p_i M^i_T)] when the constant
drifts drive M from time t on: ∂²V/∂M^i∂M^j ≥ 0, so along the true process V has drift
½ Σ_ij V_ij M^i M^j (⟨v^i, v^j⟩ − ⟨·,·⟩ of the constant one) ≤ 0, hence E F ≤ V(0, 1). It holds for
any law of the pattern and also shows that raising an entry of G raises δ (Kahane's inequality).

Three steps, each of which can only raise δ:
1. Reveal i mod r. Hockey-stick divergence is jointly convex, so δ ≤ the mean over the r cells of
   the account of a mixture of w = b/r bins. w = 1 is the revealed bin: Gaussians of μ = ‖m_i‖/κ.
2. Raise the cell's G entry by entry to c 11ᵀ + diag(d): then e^L = Y · (1/w) Σ_k X_k with
   independent lognormals of mean 1. Or (spectral) M ⪰ ‖C‖₂⁻² I: independent noise at κ/‖C‖₂,
   the rest is post-processing; G becomes ‖C‖₂² diag(participations)/κ², all b bins are kept.
3. Put X_k and Y on grids without changing their means: a mean-preserving spread raises the
   expectation of a convex function. The sum is then an exact convolution.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import ndtr, ndtri

from dpfed_kan.privacy.clipping import Matrix, Vector

_CELLS, _FACTOR_POINTS, _TAIL_SHARE = 2**18, 1000, 1e-4
_LEAST_COMMON = 1e-12

Spectrum = NDArray[np.complex128]


def cell_structure(gram: Matrix, *, num_cells: int) -> tuple[Vector, float]:
    """Return (d, c) such that c 11ᵀ + diag(d) dominates every cell's Gram matrix.

    Args:
        gram: G, shape (b, b), in units of the noise variance, with entries ≥ 0.
        num_cells: r, a divisor of b; cell j holds the bins j, j + r, j + 2r, ...

    Returns:
        d of shape (b/r,), and c.
    """
    num_bins = len(gram)
    cells = [np.arange(start, num_bins, num_cells) for start in range(num_cells)]
    blocks = np.stack([gram[np.ix_(cell, cell)] for cell in cells])
    diagonal = np.einsum("cii->ci", blocks).max(axis=0)
    off_diagonal = blocks * (1 - np.eye(num_bins // num_cells))
    common = float(off_diagonal.max())
    return np.maximum(diagonal - common, 0.0), common


@dataclass(frozen=True, kw_only=True)
class LognormalAverage:
    """e^L = Y (1/w) Σ_k X_k, independent lognormals of mean 1: upper bounds on its δ(ε).

    Args:
        remove: The law of (1/w) Σ X_k on its grid, tilted by its own value: (support, weights).
        add: The law of (1/w) Σ X_k on the grid of the add direction, not tilted.
        factor: The law of Y: (support, weights).
        slack: Bound on what lies beyond the grids, plus the rounding of the convolution.
    """

    remove: tuple[Vector, Vector]
    add: tuple[Vector, Vector]
    factor: tuple[Vector, Vector]
    slack: float

    def delta(self, epsilon: float) -> float:
        """Return a bound on max(δ_remove(ε), δ_add(ε))."""
        return max(self.remove_delta(epsilon), self.add_delta(epsilon))

    def remove_delta(self, epsilon: float) -> float:
        """Return a bound on E_Q[(e^L − e^ε)_+] = Σ_y p_y y E_tilted[(1 − e^ε/(y S))_+]."""
        support, tail, weighted_tail = self._remove_tails
        factors, weights = self.factor[0][1:], self.factor[1][1:]
        thresholds = np.exp(epsilon - np.log(factors))
        start = np.searchsorted(support, thresholds, side="right")
        parts = np.maximum(tail[start] - thresholds * weighted_tail[start], 0.0)
        return float((factors * weights * parts).sum()) + self.slack

    def add_delta(self, epsilon: float) -> float:
        """Return a bound on E_Q[(1 − e^{ε+L})_+] = Σ_y p_y E[(1 − e^ε y S)_+]."""
        support, head, weighted_head = self._add_heads
        factors, weights = self.factor
        with np.errstate(divide="ignore"):
            thresholds = np.exp(-epsilon - np.log(factors))
        stop = np.searchsorted(support, thresholds, side="left")
        inverse = np.where(factors > 0, 1 / np.maximum(thresholds, np.finfo(float).tiny), 0.0)
        parts = np.maximum(head[stop] - inverse * weighted_head[stop], 0.0)
        return float((weights * parts).sum()) + self.slack

    @cached_property
    def _remove_tails(self) -> tuple[Vector, Vector, Vector]:
        support, weights = self.remove
        positive = np.maximum(support, np.finfo(float).tiny)
        return support, _suffix_sums(weights), _suffix_sums(weights / positive)

    @cached_property
    def _add_heads(self) -> tuple[Vector, Vector, Vector]:
        support, weights = self.add
        return support, _prefix_sums(weights), _prefix_sums(weights * support)


def lognormal_average(variances: Vector, *, common: float, delta: float) -> LognormalAverage:
    """Lay out the law of Y (1/w) Σ_k X_k.

    Args:
        variances: d, shape (w,): the variances of log X_k.
        common: c ≥ 0: the variance of log Y.
        delta: The δ of interest; the grids' tails cost at most about 1e-4 of it.
    """
    levels = _rounded_up(variances)
    width, largest = len(variances), max(levels)
    reach = -float(ndtri(_TAIL_SHARE * delta / 2))
    top = math.exp(largest / 2 + reach * math.sqrt(largest))
    tilted, rounding = _convolve(levels, top=top, tilt=True)
    add_top = 2.0 * width * math.exp(3 * math.sqrt(common))  # larger values hardly matter there
    plain, _ = _convolve(levels, top=min(top, add_top), tilt=False)
    outside = sum(
        count * (_upper_tail(top, v, +0.5) / width + _upper_tail(top, v, -0.5))
        for v, count in levels.items()
    )
    if common == 0:
        factor = (np.array([0.0, 1.0]), np.array([0.0, 1.0]))
    else:
        common = max(common, _LEAST_COMMON)
        spread = math.sqrt(common)
        highest = common / 2 + reach * spread
        logs = np.linspace(-common / 2 - (reach + 2) * spread, highest, _FACTOR_POINTS)
        factors = np.concatenate([[0.0], np.exp(logs)])
        factor = (factors, _mean_preserving(factors, common))
        outside += _upper_tail(math.exp(highest), common, +0.5)
    return LognormalAverage(remove=tilted, add=plain, factor=factor, slack=outside + rounding)


def _rounded_up(variances: Vector) -> Counter[float]:
    """Return the variances, raised by at most 0.5 % to a few distinct levels."""
    top = float(variances.max())
    return Counter(
        top * math.exp(-math.floor(200 * math.log(top / v)) / 200) if v > 0 else 0.0
        for v in variances.tolist()
    )


def _convolve(
    levels: Counter[float], *, top: float, tilt: bool
) -> tuple[tuple[Vector, Vector], float]:
    """Return the law of the average of the truncated X_k, and a bound on its rounding error.

    Tilted by the value s: s·(f_1 * ... * f_w)(s) = Σ_k (x f_k) * (the others), built up in the
    Fourier domain one level at a time.
    """
    width = levels.total()
    num_points = max(_CELLS // width, 64)
    points = np.linspace(0.0, top, num_points)
    length = next_fast_len(width * (num_points - 1) + 1, real=True)
    product: Spectrum = np.ones(length // 2 + 1, dtype=complex)
    moment: Spectrum = np.zeros(length // 2 + 1, dtype=complex)
    for variance, count in levels.items():
        weights = _mean_preserving(points, variance)
        plain = rfft(weights, length)
        others = plain ** (count - 1)
        if tilt:
            tilted = rfft(points * weights, length)
            moment = others * (moment * plain + product * count * tilted)
        product = product * others * plain
    law = irfft(moment / width if tilt else product, length)[: width * (num_points - 1) + 1]
    support = np.linspace(0.0, top, width * (num_points - 1) + 1)
    rounding = width * math.log2(length) * math.sqrt(length) * np.finfo(float).eps
    return (support, np.maximum(law, 0.0)), rounding


def _mean_preserving(points: Vector, variance: float) -> Vector:
    """Put min(X, last point) on a grid that starts at 0: each cell's mass to its two ends.

    X is lognormal of mean 1. With A the mass and B the mean's share of a cell [p, p'], the upper
    end gets (B − p A)/(p' − p).
    """
    with np.errstate(divide="ignore"):
        logs = np.log(points)
    mass, mean_share = (_increments(logs, variance, shift) for shift in (-0.5, +0.5))
    up = np.clip((mean_share - points[:-1] * mass) / np.diff(points), 0.0, mass)
    weights = np.zeros(len(points))
    weights[:-1] = mass - up
    weights[1:] += up
    weights[-1] += _upper_tail(float(points[-1]), variance, -0.5)
    return weights


def _increments(logs: Vector, variance: float, shift: float) -> Vector:
    """Return the mass of N(shift·variance, variance) in the cells, accurate in both tails."""
    if variance == 0:
        inside = (logs[:-1] < 0) & (logs[1:] >= 0)
        return inside.astype(float)
    scores = (logs - shift * variance) / math.sqrt(variance)
    below, above = np.diff(ndtr(scores)), -np.diff(ndtr(-scores))
    increments: Vector = np.where(scores[:-1] > 0, above, below)
    return increments


def _upper_tail(top: float, variance: float, shift: float) -> float:
    if variance == 0:
        return 0.0
    return float(ndtr((shift * variance - math.log(top)) / math.sqrt(variance)))


def _suffix_sums(weights: Vector) -> Vector:
    return np.append(np.cumsum(weights[::-1])[::-1], 0.0)


def _prefix_sums(weights: Vector) -> Vector:
    return np.append(0.0, np.cumsum(weights))
