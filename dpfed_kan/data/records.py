"""`Records`: features and labels of one site or of all, checked once at the border."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

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
        patients: Shape (n,), whose record each is, or None; never shown.
        sites: Shape (n,), names of the sites that the records come from, or None.
        held_out: Shape (n,), which records the source itself holds out, or None.
        site_names: Sites that were asked for records, also those that have none.
    """

    features: Matrix = field(repr=False)
    labels: Vector = field(repr=False)
    feature_names: tuple[str, ...]
    patients: NDArray[np.str_] | None = field(default=None, repr=False)
    sites: NDArray[np.str_] | None = field(default=None, repr=False)
    held_out: NDArray[np.bool_] | None = field(default=None, repr=False)
    site_names: tuple[str, ...] = ()

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
        for name in ("patients", "sites", "held_out"):
            column = getattr(self, name)
            if column is not None and column.shape != (len(self.features),):
                raise ValueError(
                    f"expected {len(self.features)} {name}, one a record, got {column.shape}"
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
            patients=None if self.patients is None else self.patients[indices],
            sites=None if self.sites is None else self.sites[indices],
            held_out=None if self.held_out is None else self.held_out[indices],
            site_names=self.site_names,
        )


def concatenate(parts: Sequence[Records]) -> Records:
    """Return the records of several sources, one after the other.

    Raises:
        ValueError: If there is none, or their columns differ.
    """
    if not parts or len({part.feature_names for part in parts}) != 1:
        raise ValueError("expected records with the same columns from every site")

    def joined(name: str) -> Any:
        columns = [getattr(part, name) for part in parts]
        return None if any(column is None for column in columns) else np.concatenate(columns)

    return Records(
        features=np.concatenate([part.features for part in parts]),
        labels=np.concatenate([part.labels for part in parts]),
        feature_names=parts[0].feature_names,
        patients=joined("patients"),
        sites=joined("sites"),
        held_out=joined("held_out"),
        site_names=tuple(sorted({name for part in parts for name in part.site_names})),
    )


def _rows(rows: NDArray[np.intp]) -> str:
    shown = ", ".join(str(row) for row in rows[:_ROWS_SHOWN])
    more = f" and {len(rows) - _ROWS_SHOWN} more" if len(rows) > _ROWS_SHOWN else ""
    return f"row{'s' if len(rows) > 1 else ''} {shown}{more}"
