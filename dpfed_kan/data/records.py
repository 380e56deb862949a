"""`Records`: features and labels of one site or of all, checked once at the border."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpfed_kan.privacy.clipping import Matrix, Vector

_ROWS_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Records:
    """Records in the scale that a model takes.

    Guarantees:
        Everything is finite float64, every label is −1 or +1. Errors name columns and row
        numbers (from 0), never a value.

    Args:
        features: Shape (n, d), scaled by public constants only.
        labels: Shape (n,), −1 or +1.
        feature_names: d public names.
    """

    features: Matrix
    labels: Vector
    feature_names: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.features.ndim != 2 or self.features.shape[1] != len(self.feature_names):
            raise ValueError(
                f"expected features of shape (n, {len(self.feature_names)}), "
                f"got {self.features.shape}"
            )
        if self.labels.shape != (len(self.features),):
            raise ValueError(
                f"expected {len(self.features)} labels, one a record, got {self.labels.shape}"
            )
        bad = ~np.isfinite(self.features)
        for column in np.flatnonzero(bad.any(axis=0)):
            raise ValueError(
                f"column {self.feature_names[column]!r} is not finite in "
                f"{_rows(np.flatnonzero(bad[:, column]))}; declare how missing values are coded"
            )
        odd = np.flatnonzero(np.abs(self.labels) != 1)
        if len(odd):
            raise ValueError(f"expected every label to be -1 or +1; it is not in {_rows(odd)}")

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.features)

    def take(self, indices: NDArray[np.intp]) -> Records:
        """Return the records at `indices`, in that order."""
        return Records(
            features=np.ascontiguousarray(self.features[indices]),
            labels=self.labels[indices],
            feature_names=self.feature_names,
        )


def _rows(rows: NDArray[np.intp]) -> str:
    shown = ", ".join(str(row) for row in rows[:_ROWS_SHOWN])
    more = f" and {len(rows) - _ROWS_SHOWN} more" if len(rows) > _ROWS_SHOWN else ""
    return f"row{'s' if len(rows) > 1 else ''} {shown}{more}"
