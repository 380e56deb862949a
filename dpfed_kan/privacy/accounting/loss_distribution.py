"""Privacy loss distributions of dominating pairs: from a curve δ(ε) to T rounds of it.

Connect-the-dots (arXiv 2207.04380): the discrete pair whose δ equals the curve at the grid's
points and interpolates it linearly in e^ε between them. δ is convex in e^ε, so the discrete
pair dominates, for any grid; composition is convolution, by dp-accounting.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import TypeAlias

import numpy as np
from dp_accounting.pld import common, pld_pmf
from dp_accounting.pld import privacy_loss_distribution as pld

from dpfed_kan.privacy.accounting.mixture import (
    NormLaw,
    directions,
    mixture_deltas,
    mixture_range,
)
from dpfed_kan.privacy.clipping import Vector
from dpfed_kan.privacy.mechanism import NeighboringRelation

LossDistribution: TypeAlias = pld.PrivacyLossDistribution

MAX_CELLS = 8_000_000
_MAX_STEP_CELLS = 200_000
_MAX_DENSITIES = 6e6  # grid cells times norms


def grid_interval(*, epsilon: float, num_compositions: int, accuracy: float = 1.0) -> float:
    """Return a grid interval whose rounding adds about 1e-4·`accuracy`² of ε.

    A gap g adds at most g²/8 to the mean and g²/4 to the variance of each loss; ε of small δ is
    some four standard deviations of the sum.
    """
    epsilon = max(epsilon, 1e-4)
    by_spread = 0.01 * epsilon / math.sqrt(num_compositions)
    by_mean = 0.03 * math.sqrt(epsilon / num_compositions)
    return accuracy * min(by_spread, by_mean, 1.0)


def mixture_loss(
    law: NormLaw, *, neighboring_relation: NeighboringRelation, interval: float, cutoff: float
) -> LossDistribution:
    """Return the loss distribution of a mixture pair, in every direction the relation needs.

    Args:
        law: Of the norm, in noise standard deviations.
        neighboring_relation: Gives the directions.
        interval: Gap of the grid.
        cutoff: The most δ that may be counted as infinite loss to keep the grid short.

    Raises:
        OverflowError: If the grid would not fit.
    """
    pmfs = []
    for direction in directions(neighboring_relation):
        low, high = mixture_range(law, direction=direction, cutoff=cutoff)
        if (high - low) / interval * len(law.norms) > _MAX_DENSITIES:
            raise OverflowError(f"losses up to {high:g} need a larger interval than {interval:g}")

        def curve(epsilons: Vector, direction: str = direction) -> Vector:
            return mixture_deltas(law, epsilons, direction=direction)  # type: ignore[arg-type]

        pmfs.append(connect_the_dots(curve, low=low, high=high, interval=interval))
    return LossDistribution(*pmfs)


def fitting_interval(interval: float, *, low: float, high: float) -> float:
    """Return the interval, widened if the losses from low to high would need too many cells."""
    return max(interval, (high - low) / _MAX_STEP_CELLS)


def connect_the_dots(
    curve: Callable[[Vector], Vector], *, low: float, high: float, interval: float
) -> pld_pmf.PLDPmf:
    """Return the discrete pair through the curve δ(ε) at the multiples of `interval`.

    Args:
        curve: From increasing ε to δ.
        low: Least loss that is told apart; smaller ones are rounded up to it.
        high: Greatest finite loss; δ there is counted as infinite loss.
        interval: Gap of the grid.

    Raises:
        OverflowError: If the grid would not fit.
    """
    first, last = math.floor(low / interval), math.ceil(high / interval)
    if last - first > 4 * _MAX_STEP_CELLS:
        raise OverflowError(f"{last - first} grid cells for one step; use a larger interval")
    deltas = curve(np.arange(first, last + 1, dtype=float) * interval)
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, first, last, deltas)
    return pmf.to_dense_pmf()


def dense(loss: LossDistribution) -> LossDistribution:
    """Return the same loss distribution as arrays: sparse ones compose by loops."""
    pmfs = [loss._pmf_remove.to_dense_pmf()]
    if not loss._symmetric:
        pmfs.append(loss._pmf_add.to_dense_pmf())
    return LossDistribution(*pmfs)


def repeated(step: LossDistribution, times: int) -> LossDistribution:
    """Return `times` adaptive compositions of one loss distribution, within bounded memory.

    Raises:
        OverflowError: If the convolution would not fit.
    """
    if times == 1:
        return step
    for pmf in (step._pmf_remove, step._pmf_add):
        probs = pmf.to_dense_pmf()._probs
        if len(probs) * times <= MAX_CELLS:
            continue
        low, high = common.compute_self_convolve_bounds(probs, times, 1e-15)
        if high - low > MAX_CELLS:
            raise OverflowError(
                f"{high - low} grid cells for {times} rounds; use a larger interval"
            )
    return step.self_compose(times)


def composed(parts: Sequence[LossDistribution]) -> LossDistribution:
    """Return the adaptive composition of loss distributions on one grid."""
    return reduce(lambda first, second: first.compose(second, 1e-15), parts)


def loss_epsilon(loss: LossDistribution, *, delta: float, num_compositions: int) -> float:
    """Return an upper bound on ε, leaving room for the rounding errors of the convolution.

    Args:
        loss: After composition.
        delta: δ in (0, 1).
        num_compositions: How often a Fourier transform was raised or multiplied.
    """
    rounding = 1e-12 + 1e-15 * num_compositions
    if delta <= 2 * rounding:
        return math.inf
    with np.errstate(over="ignore"):  # its quotient may overflow to the infinity that it stands for
        return max(0.0, float(loss.get_epsilon_for_delta(delta - rounding)))
