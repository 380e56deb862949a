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
from dpfed_kan.privacy import single_precision

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class GradientBlock:
    """One block of every example's gradient: example i's is left_i ⊗ right_i, row-major.

    Args:
        left: Shape (n, r), float64.
        right: Shape (n, s), float64; or float32, whose large product is then float32, and the
            clip a little tighter, so that C holds (`single_precision`).
        right_squares: ‖right_i‖², shape (n,), in float64 of these very rows, where whoever makes
            the block keeps them; None to have them computed.
    """

    left: Matrix
    right: Matrix | NDArray[np.float32]
    right_squares: Vector | None = None

    @property
    def is_single(self) -> bool:
        """Whether its large product is float32."""
        return self.right.dtype == np.float32

    def of(self, rows: NDArray[np.intp]) -> GradientBlock:
        """Return the block of some examples."""
        squares = None if self.right_squares is None else self.right_squares[rows]
        return GradientBlock(left=self.left[rows], right=self.right[rows], right_squares=squares)


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
        total += left * row_squares(block)
    return total


def row_squares(block: GradientBlock) -> Vector:
    """Return ‖right_i‖², shape (n,), in float64."""
    if block.right_squares is not None:
        return block.right_squares
    squares: Vector = np.einsum("ij,ij->i", block.right, block.right, dtype=np.float64)
    return squares


def clip_factors(blocks: Sequence[GradientBlock], *, l2_clip_norm: float) -> Vector:
    """Return s_i = min(1, C/‖g_i‖), and 0 for an example whose gradient is not finite."""
    with np.errstate(invalid="ignore", over="ignore"):
        squares = squared_norms(blocks)
    return _factors(squares, l2_clip_norm)


def grouped_clip_factors(
    blocks: Sequence[GradientBlock], groups: NDArray[np.intp], *, l2_clip_norm: float
) -> Vector:
    """Return s_i = min(1, C/‖Σ_{j in i's group} g_j‖); 0 where one of them is not finite.

    ‖Σ_i left_i ⊗ right_i‖² = Σ_ij ⟨left_i, left_j⟩⟨right_i, right_j⟩, so no sum of outer products
    is formed. Gradients of a group can cancel, and what then is left of the norm is rounding: a
    multiple of float64's precision of (Σ_i ‖g_i‖)² is added, so that it is never too small.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        singles = squared_norms(blocks)
        squares = singles.copy()
        order = np.argsort(groups, kind="stable")
        _, starts, sizes = np.unique(groups[order], return_index=True, return_counts=True)
        for size in np.unique(sizes[sizes > 1]):
            rows = order[starts[sizes == size][:, None] + np.arange(size)]
            total = np.zeros(len(rows))
            for block in blocks:
                left, right = block.left[rows], block.right[rows]
                grams = (left @ left.transpose(0, 2, 1)) * (right @ right.transpose(0, 2, 1))
                total += grams.sum(axis=(1, 2))
            width = max(part.shape[1] for block in blocks for part in (block.left, block.right))
            slack = (width + size) * 8 * np.finfo(np.float64).eps
            largest = np.square(np.sqrt(singles[rows]).sum(axis=1))
            squares[rows] = (np.maximum(total, 0.0) + slack * largest)[:, None]
    return _factors(squares, l2_clip_norm)


def clip_and_sum(
    blocks: Sequence[GradientBlock],
    *,
    l2_clip_norm: float,
    groups: NDArray[np.intp] | None = None,
) -> ClippedSum:
    """Clip every example's joint gradient to C and add them up.

    One norm over all blocks: clipping block by block would let a record contribute more.
    With groups, the sum of a group's gradients is what is clipped, and what one group may
    change; a group with one non-finite example contributes nothing.

    Guarantees:
        A non-finite example contributes zero; the sum is finite whenever the blocks of the
        finite examples are.

    Args:
        blocks: At least one block; all of the same n, which may be 0.
        l2_clip_norm: C in (0, ∞]; infinity is for runs without privacy.
        groups: Shape (n,), whose each example is, to clip the examples of one patient together;
            None to clip each by itself.

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
    if any(block.is_single for block in blocks):
        return _clip_and_sum_single(blocks, l2_clip_norm=l2_clip_norm, groups=groups)
    if groups is None:
        factors = clip_factors(blocks, l2_clip_norm=l2_clip_norm)
    elif groups.shape != (len(blocks[0].left),):
        raise ValueError(f"expected {len(blocks[0].left)} groups, one an example")
    else:
        factors = grouped_clip_factors(blocks, groups, l2_clip_norm=l2_clip_norm)
    kept = np.flatnonzero(factors)
    num_nonfinite = len(factors) - len(kept)
    if num_nonfinite:  # 0 * NaN is NaN: such examples are taken out, not multiplied away
        factors = factors[kept]
        blocks = [block.of(kept) for block in blocks]
    sums = [((block.left * factors[:, None]).T @ block.right).ravel() for block in blocks]
    value = sums[0] if len(sums) == 1 else np.concatenate(sums)
    return ClippedSum(value=value, l2_sensitivity=l2_clip_norm, num_nonfinite=num_nonfinite)


def _clip_and_sum_single(
    blocks: Sequence[GradientBlock], *, l2_clip_norm: float, groups: NDArray[np.intp] | None
) -> ClippedSum:
    """Return the sum of one block whose large product is float32; the bound is for no other."""
    if groups is not None or len(blocks) > 1:
        raise ValueError(
            "precision=float32 is for records clipped one by one, in a model of one trained layer"
        )
    (block,) = blocks
    factors = clip_factors(blocks, l2_clip_norm=single_precision.charged_clip_norm(l2_clip_norm))
    factors = np.where(single_precision.fit(row_squares(block)), factors, 0.0)
    total = single_precision.sum_of_rows(block.left, np.asarray(block.right, np.float32), factors)
    return ClippedSum(
        value=total.ravel(),
        l2_sensitivity=l2_clip_norm,
        num_nonfinite=int(np.count_nonzero(factors == 0.0)),
    )


def _factors(squares: Vector, l2_clip_norm: float) -> Vector:
    with np.errstate(invalid="ignore", divide="ignore"):
        norms = np.sqrt(squares)
        factors: Vector = np.minimum(1.0, l2_clip_norm / norms)
    finite = np.isfinite(norms)
    return np.where(finite, factors, 0.0)
