"""Clip per-example gradients that are kept as factors, and sum them.

A per-example gradient is a list of blocks, each an outer product left_i ⊗ right_i, so its
norm and the clipped sum need no array of shape (examples, parameters):
‖g_i‖² = Σ_blocks ‖left_i‖²‖right_i‖² and Σ_i s_i g_i = (diag(s) left)ᵀ right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpfed_kan._validate import check_positive

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class GradientBlock:
    """One block of every example's gradient: example i's is left_i ⊗ right_i, row-major.

    Args:
        left: Shape (n, r).
        right: Shape (n, s).
    """

    left: Matrix
    right: Matrix


@dataclass(frozen=True, kw_only=True)
class ClippedSum:
    """A sum of clipped gradients together with the sensitivity that its noise is sized from.

    Guarantees:
        Under zero-out or add/remove of one record, `value` moves by at most `l2_sensitivity`
        in Euclidean norm (up to float64 rounding, about 1e-12 of it per thousand records).

    Args:
        value: Shape (D,), float64.
        l2_sensitivity: C, the bound on one record's contribution.
        num_nonfinite: Examples left out because their gradient was not finite; private, for
            the site's own eyes, and of no effect on the account.
    """

    value: Vector
    l2_sensitivity: float
    num_nonfinite: int = 0


def squared_norms(blocks: Sequence[GradientBlock]) -> Vector:
    """Return ‖g_i‖², shape (n,): always a sum of squares in float64."""
    total: Vector = np.zeros(len(blocks[0].left))
    for block in blocks:
        left = np.einsum("ij,ij->i", block.left, block.left)
        total += left * np.einsum("ij,ij->i", block.right, block.right)
    return total


def clip_factors(blocks: Sequence[GradientBlock], *, l2_clip_norm: float) -> Vector:
    """Return s_i = min(1, C/‖g_i‖), and 0 for an example whose gradient is not finite."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        norms = np.sqrt(squared_norms(blocks))
        factors: Vector = np.minimum(1.0, l2_clip_norm / norms)
    finite = np.isfinite(norms)
    return np.where(finite, factors, 0.0)


def clip_and_sum(blocks: Sequence[GradientBlock], *, l2_clip_norm: float) -> ClippedSum:
    """Clip every example's joint gradient to C and add them up.

    One norm over all blocks: clipping block by block would let a record contribute more.

    Guarantees:
        A non-finite example contributes zero; the sum is finite whenever the blocks of the
        finite examples are.

    Args:
        blocks: At least one block; all of the same n, which may be 0.
        l2_clip_norm: C in (0, ∞]; infinity is for runs without privacy.

    Returns:
        The sum, flattened block after block.

    Raises:
        ValueError: If C is not positive or the blocks disagree in n.
    """
    check_positive("l2_clip_norm", l2_clip_norm, allow_infinity=True)
    if not blocks or {len(part) for b in blocks for part in (b.left, b.right)} != {
        len(blocks[0].left)
    }:
        raise ValueError("expected at least one gradient block, all with the same examples")
    factors = clip_factors(blocks, l2_clip_norm=l2_clip_norm)
    kept = np.flatnonzero(factors)
    num_nonfinite = len(factors) - len(kept)
    if num_nonfinite:  # 0 * NaN is NaN: such examples are taken out, not multiplied away
        factors = factors[kept]
        blocks = [GradientBlock(left=b.left[kept], right=b.right[kept]) for b in blocks]
    sums = [((block.left * factors[:, None]).T @ block.right).ravel() for block in blocks]
    value = sums[0] if len(sums) == 1 else np.concatenate(sums)
    return ClippedSum(value=value, l2_sensitivity=l2_clip_norm, num_nonfinite=num_nonfinite)
