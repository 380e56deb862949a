"""A clipped sum whose large product is in float32: what its rounding adds, charged to the clip.

Claim: the sum moves by at most C when one record is zeroed out, by 2C when it is replaced.

1. s_i = min(1, C'/‖g_i‖) from norms in float64, and L_i = float32(s_i left_i). An entry is off by
   u = 2⁻²⁴ of itself, or by 2⁻¹⁵⁰, so ‖L_i ⊗ right_i‖ ≤ C'(1 + u) + 2⁻¹⁵⁰ √r ‖right_i‖.
2. Rows are added up b at a time. An entry of such a sum is off by at most γ_b Σ_i |L_i||right_i|,
   γ_b = bu/(1 − bu), in whatever order it is taken and whether multiplications are fused with
   additions (Higham, Accuracy and Stability, section 3.1; numpy's product is such a one), and by
   2⁻¹²⁶ for each term that underflows. So its norm is off by at most γ_b b max_i ‖L_i ⊗ right_i‖.
3. A record is in one of these sums, and it never changes which rows are added together: one that
   is not finite is set to zero in its place. The others are the same in both worlds, and the two
   sums with it are off by γ_b b C'(1 + u) each; sums are added to each other in float64.
4. So C'(1 + u)(1 + 2 γ_b b) + tiny = C'(1 + EXCESS) is the sensitivity, and C' = C/(1 + EXCESS).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

ROWS_AT_ONCE = 64
_UNIT_ROUNDOFF = 2.0**-24
_GAMMA = ROWS_AT_ONCE * _UNIT_ROUNDOFF / (1.0 - ROWS_AT_ONCE * _UNIT_ROUNDOFF)
_TINY = 2.0**-28  # all that underflows, of a C in the range and of rows no longer than the longest
EXCESS = (1.0 + _UNIT_ROUNDOFF) * (1.0 + 2.0 * _GAMMA * ROWS_AT_ONCE) - 1.0 + _TINY
_SMALLEST, _LARGEST = 2.0**-60, 2.0**60
_SHORTEST_SQUARED, _LONGEST_SQUARED = 2.0**-120, 2.0**80
_MOST_ENTRIES = 2**40


def charged_clip_norm(l2_clip_norm: float) -> float:
    """Return C' = C/(1 + EXCESS), that records are clipped to; infinity stays.

    Raises:
        ValueError: If C is so small or large that float32 cannot hold what it clips.
    """
    if l2_clip_norm != np.inf and not _SMALLEST <= l2_clip_norm <= _LARGEST:
        raise ValueError(
            f"expected l2_clip_norm={l2_clip_norm:g} in [{_SMALLEST:.0e}, {_LARGEST:.0e}] with "
            "precision=float32"
        )
    return l2_clip_norm / (1.0 + EXCESS)


def sum_of_rows(left: Matrix, right: NDArray[np.float32], factors: Vector) -> Matrix:
    """Return Σ_i s_i left_i ⊗ right_i, shape (r, s), float64; rows with s_i = 0 add exactly 0.

    Args:
        left: Shape (n, r).
        right: Shape (n, s), float32.
        factors: s_i, shape (n,), for clipping to `charged_clip_norm`.

    Raises:
        ValueError: If the product has too many entries for the bound.
    """
    if left.shape[1] * right.shape[1] > _MOST_ENTRIES:
        raise ValueError("too many parameters for precision=float32")
    out = factors == 0.0
    if out.any():  # in its place: what is added together never depends on a value
        left = np.where(out[:, None], 0.0, left)
        right = np.where(out[:, None], np.float32(0.0), right)
    scaled = (left * factors[:, None]).astype(np.float32)
    total = np.zeros((left.shape[1], right.shape[1]))
    for first in range(0, len(left), ROWS_AT_ONCE):
        rows = slice(first, first + ROWS_AT_ONCE)
        total += scaled[rows].T @ right[rows]
    return total


def fit(right_squares: Vector) -> NDArray[np.bool_]:
    """Return for which rows float32 holds all numbers; the others add zero, as if not finite."""
    fits: NDArray[np.bool_] = (right_squares >= _SHORTEST_SQUARED) & (
        right_squares <= _LONGEST_SQUARED
    )
    return fits
