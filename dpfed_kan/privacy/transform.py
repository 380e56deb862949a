"""The public change of variables that sites clip in: w = (g − center) / scale."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpfed_kan.privacy.clipping import Vector

SCALE_FLOOR = 1e-12


@dataclass(frozen=True, kw_only=True)
class ClipTransform:
    """w = (g − m̂) / b per coordinate, made of past releases only.

    Guarantees:
        Whatever the numbers are, a record clipped in w contributes at most C in w: the choice of
        a transform needs no trust and spends no privacy. A scale below the public floor, 1e-12,
        is refused, so that 1/b² is finite.

    Args:
        center: m̂, shape (D,), finite.
        scale: b, shape (D,), finite and at least `SCALE_FLOOR`.
    """

    center: Vector
    scale: Vector

    def __post_init__(self) -> None:
        if self.center.shape != self.scale.shape or self.center.ndim != 1:
            raise ValueError(
                f"expected center and scale of one shape (D,), got {self.center.shape} and "
                f"{self.scale.shape}"
            )
        if not np.isfinite(self.center).all():
            raise ValueError("expected a finite center of the clip transform")
        if not (np.isfinite(self.scale).all() and (self.scale >= SCALE_FLOOR).all()):
            raise ValueError(
                f"expected the scale of the clip transform finite and >= {SCALE_FLOOR:g} in every "
                "coordinate; raise the update rule's min_variance"
            )
