"""Scale features by public ranges: nothing is ever estimated from the records."""

from __future__ import annotations

import math

import numpy as np

from dpfed_kan.privacy.clipping import Matrix, Vector


def scale_by_public_range(values: Matrix, *, low: Vector, high: Vector) -> Matrix:
    """Map [low, high] to [−1/√d, 1/√d] per column, so that ‖x‖₂ ≤ 1.

    Values outside the public range are moved to its nearer end. A column whose range is a
    single point becomes 0. NaN stays NaN, for `Records` to report.

    Args:
        values: Shape (n, d).
        low: Shape (d,), public.
        high: Shape (d,), public.

    Raises:
        ValueError: If a range is empty or not finite.
    """
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low <= high).all()):
        raise ValueError("expected finite public ranges with low <= high in every column")
    width = np.where(high > low, high - low, 1.0)
    centre = np.where(high > low, (low + high) / 2, low)
    unit = np.clip((values - centre) / (width / 2), -1.0, 1.0)
    return np.asarray(unit / math.sqrt(values.shape[1]))
