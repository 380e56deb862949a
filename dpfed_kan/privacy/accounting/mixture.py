"""One-dimensional Gaussian mixtures: what sampled rounds are dominated by, and their δ(ε).

A record that is drawn at random moves a release by a random norm s. The pair that dominates is
    upper = Σ_i p_i N(a_i, 1),  lower = Σ_i p_i N(−b_i, 1),
(a, b) = (s, 0) if the record is removed, (0, s) if it is added, (s, s) if it is replaced by
another (README.md, "Gaussian comparison"). The loss L(z) increases with z, so that
    δ(ε) = Σ_i p_i Φ(a_i − z) − e^ε Σ_i p_i Φ(−b_i − z)  at L(z) = ε.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr

from dpfed_kan.privacy.clipping import Vector
from dpfed_kan.privacy.mechanism import NeighboringRelation

Direction = Literal["remove", "add", "replace"]

_REACH = 12.0  # beyond 12 standard deviations lies less than 2e-33
_SHORT_REACH = 7.5  # on the side where rounding up costs no infinite loss
_NEWTON_STEPS = 3
_CHUNK = 400_000


@dataclass(frozen=True, kw_only=True)
class NormLaw:
    """The law of a norm, rounded up: P(norm = norms[i]) = probs[i].

    Args:
        norms: s_i ≥ 0 in noise standard deviations, shape (K,), increasing.
        probs: p_i, shape (K,).
        beyond: Probability of norms that are not listed; it counts in full towards δ.
    """

    norms: Vector
    probs: Vector
    beyond: float = 0.0

    def scaled(self, factor: float) -> NormLaw:
        """Return the law of `factor` times the norm."""
        return NormLaw(norms=self.norms * factor, probs=self.probs, beyond=self.beyond)


def directions(neighboring_relation: NeighboringRelation) -> tuple[Direction, ...]:
    """Return the directions in which a pair must be accounted for."""
    return ("replace",) if neighboring_relation == "replace_one" else ("remove", "add")


def rounded_up(norms: Vector, probs: Vector, *, resolution: float) -> NormLaw:
    """Return a law on few values, every norm rounded up by at most the relative `resolution`.

    A larger norm raises every convex functional of the loss, so the result dominates.
    """
    values, inverse = np.unique(norms, return_inverse=True)
    weights: Vector = np.bincount(inverse, weights=probs).astype(float)
    if len(values) > 64 and resolution > 0:
        smallest = float(values[values > 0][0])
        step = math.log1p(resolution)
        cell = np.full(len(values), -1.0)
        positive = values > 0
        cell[positive] = np.ceil(np.log(values[positive] / smallest) / step - 1e-9)
        cells, inverse = np.unique(cell, return_inverse=True)
        weights = np.bincount(inverse, weights=weights).astype(float)
        tops = np.zeros(len(cells))
        np.maximum.at(tops, inverse, values)
        values = tops
    return NormLaw(norms=values, probs=weights)


def mixture_deltas(law: NormLaw, epsilons: Vector, *, direction: Direction) -> Vector:
    """Return δ at each ε, shape as `epsilons`, which must increase.

    Args:
        law: Of the norm, in noise standard deviations.
        epsilons: Of any sign.
        direction: Which of the two data sets is the upper one.
    """
    grid = _grid(law, direction)
    losses = _loss(law, grid, direction)[0]
    cell = np.clip(np.searchsorted(losses, epsilons), 1, len(grid) - 1)
    left, right = grid[cell - 1], grid[cell]
    z = np.interp(epsilons, losses, grid)
    for _ in range(_NEWTON_STEPS):
        loss, slope = _loss(law, z, direction)
        z = np.clip(z - (loss - epsilons) / np.maximum(slope, 1e-300), left, right)
    loss = _loss(law, z, direction)[0]
    upper, lower = _tails(law, z, direction)
    # exact at `loss`; what is left of the inversion is covered by |dδ/dε| ≤ P(L > ε)
    deltas = _difference(upper, lower, loss) + np.maximum(loss - epsilons, 0.0) * upper
    outside = epsilons <= losses[0]  # all of the grid: δ ≤ 1 − e^ε (1 − the lower mass before it)
    before = ndtr(grid[:1]) if direction == "remove" else _mean_ndtr(law, grid[:1], 1.0)
    whole = np.exp(np.minimum(epsilons, 0.0)) * before - np.expm1(np.minimum(epsilons, 0.0))
    deltas = np.where(outside, whole, deltas)
    floor = np.maximum(-np.expm1(np.minimum(epsilons, 0.0)), 0.0)
    deltas = np.clip(deltas, floor, 1.0)
    monotone: Vector = np.maximum.accumulate(deltas[::-1])[::-1]
    return np.minimum(monotone * (1 - law.beyond) + law.beyond, 1.0)


def mixture_range(law: NormLaw, *, direction: Direction, cutoff: float) -> tuple[float, float]:
    """Return losses outside of which at most `cutoff` is given away to the infinite loss."""
    grid = _grid(law, direction)
    losses = _loss(law, grid, direction)[0]
    deltas = _difference(*_tails(law, grid, direction), losses)
    enough = np.flatnonzero(deltas <= cutoff)
    return float(losses[0]), float(losses[enough[0]] if len(enough) else losses[-1])


def mixture_epsilon(law: NormLaw, *, delta: float, direction: Direction) -> float:
    """Return the least ε ≥ 0 with δ(ε) ≤ δ for one release, rounded up.

    Args:
        law: Of the norm, in noise standard deviations.
        delta: δ in (0, 1).
        direction: Which of the two data sets is the upper one.
    """
    left = delta - law.beyond
    if left <= 0:
        return math.inf
    low, high = _span(law, direction)

    def excess(z: float) -> float:
        point = np.array([z])
        loss = _loss(law, point, direction)[0]
        return float(_difference(*_tails(law, point, direction), loss)[0]) - left

    if excess(low) <= 0:
        return 0.0
    if excess(high) > 0:
        return math.inf
    z = float(brentq(excess, low, high, xtol=1e-13, rtol=1e-14)) + 1e-12
    epsilon = float(_loss(law, np.array([z]), direction)[0][0])
    return max(0.0, epsilon * (1 + 1e-12) + 1e-13)


def _span(law: NormLaw, direction: Direction) -> tuple[float, float]:
    """Return where the upper mixture lies; what is below is moved up to the least loss.

    For that the lower mixture must lie there, too, or be of no weight e^L beside it: with norms
    of at most 7.5, e^{L(−7.5)} times its mass below −7.5 is at most 3e-13.
    """
    longest = float(law.norms[-1])
    if direction == "remove":
        return -_REACH, longest + _REACH
    low = -_SHORT_REACH if longest <= _SHORT_REACH else -longest - _SHORT_REACH
    return low, _REACH if direction == "add" else longest + _REACH


def _grid(law: NormLaw, direction: Direction) -> Vector:
    """Return z, fine enough that the loss is smooth within a cell."""
    low, high = _span(law, direction)
    cells = min(max(2048, math.ceil((high - low) * 100)), 16384)
    return np.linspace(low, high, cells)


def _loss(law: NormLaw, z: Vector, direction: Direction) -> tuple[Vector, Vector]:
    """Return L(z) and L'(z)."""
    loss, slope = np.zeros(len(z)), np.zeros(len(z))
    if direction != "add":
        value, mean = _log_mean_exp(law, z)
        loss, slope = loss + value, slope + mean
    if direction != "remove":
        value, mean = _log_mean_exp(law, -z)
        loss, slope = loss - value, slope + mean
    return loss, slope


def _log_mean_exp(law: NormLaw, z: Vector) -> tuple[Vector, Vector]:
    """Return log Σ p_i exp(s_i z − s_i²/2) and its derivative in z."""
    value, mean = np.empty(len(z)), np.empty(len(z))
    with np.errstate(divide="ignore"):
        offset = np.log(law.probs) - law.norms**2 / 2
    size = max(1, _CHUNK // len(offset))
    for start in range(0, len(z), size):
        part = slice(start, start + size)
        exponent = np.multiply.outer(z[part], law.norms) + offset
        peak = exponent.max(axis=1)
        exponent -= peak[:, None]
        weights = np.exp(exponent, out=exponent)
        total = weights.sum(axis=1)
        value[part] = peak + np.log(total)
        mean[part] = weights @ law.norms / total
    return value, mean


def _tails(law: NormLaw, z: Vector, direction: Direction) -> tuple[Vector, Vector]:
    """Return the mass above z of the upper and of the lower mixture."""
    upper = ndtr(-z) if direction == "add" else _mean_ndtr(law, -z, 1.0)
    lower = ndtr(-z) if direction == "remove" else _mean_ndtr(law, -z, -1.0)
    return upper, lower


def _difference(upper: Vector, lower: Vector, epsilons: Vector) -> Vector:
    """Return upper − e^ε lower."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        weighted = np.exp(epsilons + np.log(lower))
    return np.asarray(upper - np.where(lower > 0, weighted, 0.0))


def _mean_ndtr(law: NormLaw, z: Vector, sign: float) -> Vector:
    """Return Σ p_i Φ(z + sign·s_i)."""
    mean = np.empty(len(z))
    size = max(1, _CHUNK // len(law.norms))
    for start in range(0, len(z), size):
        part = slice(start, start + size)
        mean[part] = ndtr(np.add.outer(z[part], sign * law.norms)) @ law.probs
    return mean
