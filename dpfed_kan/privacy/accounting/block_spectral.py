"""Block-spectral bound: the noise is at least independent between blocks of w rounds.

M = C⁻¹C⁻ᵀ ⪰ diag(A, ..., A) with A tridiagonal, 1+λ² on the diagonal, less λ in both corners, −λ
beside (2ab ≤ a² + b² at each cut). Within a block a record that takes part in the rounds x moves
the release by a norm of at most s(x) = sqrt(xᵀ A⁻¹ x); aligned norms are the worst case, adaptively
too, because A⁻¹ has no negative entry. Blocks compose as independent rounds do. The proof is in
README.md; w = 1 is the spectral bound with κ(1−λ). Poisson sampling only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dpfed_kan.privacy.accounting.loss_distribution import (
    LossDistribution,
    composed,
    grid_interval,
    loss_epsilon,
    mixture_loss,
    repeated,
)
from dpfed_kan.privacy.accounting.mixture import NormLaw
from dpfed_kan.privacy.accounting.patterns import MAX_ENUMERATED, block_law
from dpfed_kan.privacy.mechanism import NeighboringRelation
from dpfed_kan.privacy.noising import Noise

WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)
_WEIGHT_STEP = math.log1p(0.004)
_PATIENCE = 2


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """Blocks of rounds that are accounted for alike.

    Args:
        weights: At least 1/d_t of each round, shape (w,).
        is_last: Whether it is the last block of the run.
        count: How many of them there are.
    """

    weights: tuple[float, ...]
    is_last: bool
    count: int


@dataclass(frozen=True, kw_only=True)
class BlockBound:
    """ε and the block width that gave it."""

    epsilon: float
    width: int


def cut_into_blocks(noise: Noise, *, width: int, num_rounds: int, horizon: int) -> list[Blocks]:
    """Return the blocks, the remainder last, equal ones together.

    With column normalisation a block's noise is D A D, D its row scales, and its norms are
    sqrt(xᵀ D⁻¹ A⁻¹ D⁻¹ x). A⁻¹ has no negative entry, so that 1/d_t may be rounded up: to few
    values, for many equal blocks.
    """
    steps = np.floor(np.log(noise.row_scales(horizon)[:num_rounds]) / _WEIGHT_STEP + 1e-9)
    weights = (np.exp(-steps * _WEIGHT_STEP) * (1 + 1e-8 * _WEIGHT_STEP)).tolist()
    blocks: dict[tuple[tuple[float, ...], bool], int] = {}
    for start in range(0, num_rounds, width):
        key = (tuple(weights[start : start + width]), start + width >= num_rounds)
        blocks[key] = blocks.get(key, 0) + 1
    return [Blocks(weights=w, is_last=last, count=count) for (w, last), count in blocks.items()]


def block_spectral_loss(
    noise: Noise,
    *,
    noise_multiplier: float,
    sampling_prob: float,
    num_rounds: int,
    horizon: int,
    neighboring_relation: NeighboringRelation,
    width: int,
    interval: float,
    cutoff: float,
    resolution: float = 0.001,
) -> LossDistribution:
    """Return the loss distribution of the run at one block width.

    Args:
        noise: Gives λ and the row scales.
        noise_multiplier: κ > 0.
        sampling_prob: r in (0, 1].
        num_rounds: Rounds that happened.
        horizon: Rounds planned.
        neighboring_relation: Gives the directions.
        width: w, at most 16.
        interval: Gap of the grid of losses.
        cutoff: The most δ that the whole run may give away to keep the grid short.
        resolution: Relative rounding of the norms, upwards.

    Raises:
        OverflowError: If the grid would not fit.
    """
    return composed(
        [
            repeated(
                _one_block(
                    blocks.weights,
                    blocks.is_last,
                    noise.correlation,
                    noise_multiplier,
                    sampling_prob,
                    neighboring_relation,
                    interval,
                    cutoff / num_rounds,
                    resolution,
                ),
                blocks.count,
            )
            for blocks in cut_into_blocks(
                noise, width=width, num_rounds=num_rounds, horizon=horizon
            )
        ]
    )


def block_spectral_epsilon(
    noise: Noise,
    *,
    noise_multiplier: float,
    sampling_prob: float,
    num_rounds: int,
    horizon: int,
    delta: float,
    neighboring_relation: NeighboringRelation,
    known_epsilon: float,
    width: int | None = None,
) -> BlockBound:
    """Return the least bound over block widths, or the bound at one width.

    The widths are tried in increasing order on a coarse grid until two in a row are no better;
    the best is computed again on a fine one.

    Args:
        noise: Gives λ and the row scales.
        noise_multiplier: κ > 0.
        sampling_prob: r in (0, 1].
        num_rounds: Rounds that happened.
        horizon: Rounds planned.
        delta: δ in (0, 1).
        neighboring_relation: Gives the directions.
        known_epsilon: Any other bound, from which the grid is chosen.
        width: w; None to search.
    """

    def bound(width: int, scale: float, accuracy: float, resolution: float) -> float:
        interval = grid_interval(
            epsilon=scale, num_compositions=num_rounds // width + 1, accuracy=accuracy
        )
        for _ in range(6):
            try:
                loss = block_spectral_loss(
                    noise,
                    noise_multiplier=noise_multiplier,
                    sampling_prob=sampling_prob,
                    num_rounds=num_rounds,
                    horizon=horizon,
                    neighboring_relation=neighboring_relation,
                    width=width,
                    interval=interval,
                    cutoff=1e-5 * delta,
                    resolution=resolution,
                )
            except OverflowError:
                interval *= 4
            else:
                return loss_epsilon(loss, delta=delta, num_compositions=num_rounds)
        return math.inf

    best = BlockBound(epsilon=math.inf, width=1)
    scale = known_epsilon
    worse = 0
    for candidate in (width,) if width is not None else WIDTHS:
        if candidate > min(num_rounds, MAX_ENUMERATED):
            break
        epsilon = bound(candidate, scale, 4.0, 0.02)
        if epsilon < best.epsilon:
            best, worse = BlockBound(epsilon=epsilon, width=candidate), 0
            scale = min(scale, epsilon)
        else:
            worse += 1
            if worse == _PATIENCE:
                break
    fine = bound(best.width, min(scale, best.epsilon), 1.0, 0.001)
    return BlockBound(epsilon=min(fine, best.epsilon), width=best.width)


@lru_cache(maxsize=64)
def _one_block(
    weights: tuple[float, ...],
    is_last: bool,
    correlation: float,
    noise_multiplier: float,
    sampling_prob: float,
    neighboring_relation: NeighboringRelation,
    interval: float,
    cutoff: float,
    resolution: float,
) -> LossDistribution:
    return mixture_loss(
        _law(weights, is_last, correlation, sampling_prob, resolution).scaled(1 / noise_multiplier),
        neighboring_relation=neighboring_relation,
        interval=interval,
        cutoff=cutoff,
    )


@lru_cache(maxsize=512)
def _law(
    weights: tuple[float, ...],
    is_last: bool,
    correlation: float,
    sampling_prob: float,
    resolution: float,
) -> NormLaw:
    return block_law(
        correlation=correlation,
        weights=weights,
        is_last=is_last,
        sampling_prob=sampling_prob,
        resolution=resolution,
    )
