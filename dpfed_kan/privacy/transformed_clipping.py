"""Clip factored per-example gradients in w = (g − m̂)/b, without writing any of them out.

‖w_i‖² = Σ_jq (a_ij φ_iq − M_jq)²/b_jq² = T1 − 2 T2 + T3, three products of the factors:
T1 = (a²)ᵀ(1/b²)(φ²), T2 = aᵀ(M/b²)φ, T3 = ‖M/b‖² ([MacAdam] arXiv 2606.05435; MATH.md 4).
Where ‖M/b‖ is large they cancel, so the norm is raised by a bound on the rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpfed_kan._validate import check_positive
from dpfed_kan.privacy.clipping import ClippedSum, GradientBlock, Matrix, Vector
from dpfed_kan.privacy.transform import ClipTransform

_UNIT_ROUNDOFF = 2.0**-53
_FEW = 32  # roundings of one term besides the sums: squares, quotients, products, three adds


def transformed_norms(blocks: Sequence[GradientBlock], transform: ClipTransform) -> Vector:
    """Return an upper bound on every ‖w_i‖, shape (n,).

    Guarantees:
        At least the true norm, in exact arithmetic, of the factors and the transform as given.
        |computed − true| ≤ γ_k (T1 + 2 √T1 √T3 + T3) = γ_k (√T1 + √T3)² whatever the order of
        the sums (|T2| term by term is at most √T1 √T3), k counting a term's roundings; twice
        that is added, the second time for the bound's own rounding.

    Args:
        blocks: All of the same n; together D parameters.
        transform: m̂ and b, shape (D,).
    """
    first, second, third = np.zeros((3, len(blocks[0].left)))
    for block, center, scale in _parts(blocks, transform):
        inverse = 1.0 / scale
        shift = center * inverse
        left, right = block.left, np.asarray(block.right, np.float64)
        first += _row_dots(np.square(left) @ np.square(inverse), np.square(right))
        second += _row_dots(left @ (shift * inverse), right)
        third += np.square(shift).sum(axis=1).sum()
    longest = max(sum(block.left.shape[1] + block.right.shape[1] for block in blocks), 1)
    roundings = longest + len(blocks) + _FEW
    gamma = roundings * _UNIT_ROUNDOFF / (1.0 - roundings * _UNIT_ROUNDOFF)
    slack = 2.0 * gamma * np.square(np.sqrt(first) + np.sqrt(third))
    squares = np.maximum(first - 2.0 * second + third, 0.0) + slack
    return np.asarray(np.sqrt(squares))


def clip_and_sum_transformed(
    blocks: Sequence[GradientBlock],
    *,
    transform: ClipTransform,
    l2_clip_norm: float,
    groups: NDArray[np.intp] | None = None,
) -> ClippedSum:
    """Return Σ_i w_i min(1, C/‖w_i‖): the noise is added to it in w, and the rule maps it back.

    b ⊙ Σ s_i w_i = (diag(s) A)ᵀ Φ − (Σ s_i) M is one product of the factors; it is divided by b
    once. No array of shape (examples, parameters) is made.

    Guarantees:
        Each finite record adds at most C in Euclidean norm, in w; one that is not finite, or whose
        norm overflows, adds zero. The sum itself is float64: where ‖m̂/b‖ is R it is off by about
        1e-16 · R · n.

    Args:
        blocks: At least one block, all of the same n, which may be 0.
        transform: m̂ and b, public.
        l2_clip_norm: C in (0, ∞]; the paper's is 1.
        groups: Shape (n,), whose each example is, to have all examples of one group add at most
            C together, by the sum of their norms; None for each by itself.

    Raises:
        ValueError: If C is not positive or shapes disagree.
    """
    check_positive("l2_clip_norm", l2_clip_norm, allow_infinity=True)
    if any(block.is_single for block in blocks):
        raise ValueError("precision=float32 is not for clipping in an adaptive rule's transform")
    factors = transformed_clip_factors(
        blocks, transform=transform, l2_clip_norm=l2_clip_norm, groups=groups
    )
    kept = np.flatnonzero(factors)
    num_nonfinite = len(factors) - len(kept)
    if num_nonfinite:
        factors = factors[kept]
        blocks = [block.of(kept) for block in blocks]
    total = float(factors.sum())
    sums = [
        (((block.left * factors[:, None]).T @ block.right - total * center) / scale).ravel()
        for block, center, scale in _parts(blocks, transform)
    ]
    value = sums[0] if len(sums) == 1 else np.concatenate(sums)
    return ClippedSum(value=value, l2_sensitivity=l2_clip_norm, num_nonfinite=num_nonfinite)


def transformed_clip_factors(
    blocks: Sequence[GradientBlock],
    *,
    transform: ClipTransform,
    l2_clip_norm: float,
    groups: NDArray[np.intp] | None = None,
) -> Vector:
    """Return s_i ≤ min(1, C/‖w_i‖), and 0 for an example that is not finite.

    With groups, s_i ≤ min(1, C/Σ_j ‖w_j‖) over the group, and 0 if one of it is not finite.
    """
    if not blocks or {len(part) for b in blocks for part in (b.left, b.right)} != {
        len(blocks[0].left)
    }:
        raise ValueError("expected at least one gradient block, all with the same examples")
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        norms = transformed_norms(blocks, transform)
        if groups is not None and len(groups):
            largest = 1.0 + len(groups) * 2 * _UNIT_ROUNDOFF
            norms = np.asarray(np.bincount(groups, weights=norms)[groups] * largest, np.float64)
        factors: Vector = np.minimum(1.0, l2_clip_norm / (norms * (1.0 + 4 * _UNIT_ROUNDOFF)))
    return np.where(np.isfinite(norms), factors, 0.0)


def _parts(
    blocks: Sequence[GradientBlock], transform: ClipTransform
) -> list[tuple[GradientBlock, Matrix, Matrix]]:
    """Return each block with its part of the center and the scale, as matrices."""
    shapes = [(block.left.shape[1], block.right.shape[1]) for block in blocks]
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    if ends[-1] != len(transform.center):
        raise ValueError(
            f"expected a clip transform of {ends[-1]} parameters, got {len(transform.center)}"
        )
    cut = ends[:-1].tolist()
    centers, scales = np.split(transform.center, cut), np.split(transform.scale, cut)
    return [
        (block, center.reshape(shape), scale.reshape(shape))
        for block, center, scale, shape in zip(blocks, centers, scales, shapes, strict=True)
    ]


def _row_dots(left: Matrix, right: Matrix) -> Vector:
    return np.asarray(np.einsum("ij,ij->i", left, right))
