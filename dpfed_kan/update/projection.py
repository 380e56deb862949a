"""Projection onto the Euclidean ball around the start, after the noise."""

from __future__ import annotations

import math

from dpfed_kan.privacy.clipping import Vector


def project_onto_ball(params: Vector, *, center: Vector, radius: float) -> tuple[Vector, bool]:
    """Return the nearest point with ‖W − W_0‖ ≤ R, and whether it had to move.

    Args:
        params: W, shape (D,).
        center: W_0, shape (D,).
        radius: R > 0; infinity leaves everything where it is.
    """
    if math.isinf(radius):
        return params, False
    offset = params - center
    norm = math.sqrt(float(offset @ offset))
    if norm <= radius:
        return params, False
    return center + (radius / norm) * offset, True
