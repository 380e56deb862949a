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
        Everything is finite float64, every label is what `num_classes` says. Errors name columns
        and row numbers (from 0), never a value.

    Args:
        features: Shape (n, d), scaled by public constants only.
        labels: Shape (n,), −1 or +1; 0..K−1 for K > 2 classes; numbers for regression.
        feature_names: d public names.
        patients: Shape (n,), whose record each is, or None; never shown.
        sites: Shape (n,), names of the sites that the records come from, or None.
        held_out: Shape (n,), which records the source itself holds out, or None.
        site_names: Sites that were asked for records, also those that have none.
        num_classes: 2, more, or None for regression.
    """

    features: Matrix = field(repr=False)
    labels: Vector = field(repr=False)
    feature_names: tuple[str, ...]
    patients: NDArray[np.str_] | None = field(default=None, repr=False)
    sites: NDArray[np.str_] | None = field(default=None, repr=False)
    held_out: NDArray[np.bool_] | None = field(default=None, repr=False)
    site_names: tuple[str, ...] = ()
    num_classes: int | None = 2

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
        wanted, fits = _fitting(self.labels, self.num_classes)
        odd = np.flatnonzero(~fits)
        if len(odd):
            raise ValueError(f"expected every label to be {wanted}; it is not in {_rows(odd)}")

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
            num_classes=self.num_classes,
        )


def concatenate(parts: Sequence[Records]) -> Records:
    """Return the records of several sources, one after the other.

    Raises:
        ValueError: If there is none, or their columns or kinds of label differ.
    """
    kinds = {(part.feature_names, part.num_classes) for part in parts}
    if len(kinds) != 1:
        raise ValueError("expected records with the same columns and labels from every site")

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
        num_classes=parts[0].num_classes,
    )


def _fitting(labels: Vector, num_classes: int | None) -> tuple[str, NDArray[np.bool_]]:
    """Return what a label should be, and which are."""
    if num_classes is None:
        return "a finite number", np.isfinite(labels)
    if num_classes == 2:
        return "-1 or +1", np.abs(labels) == 1
    whole = labels == np.floor(labels)
    return f"in 0..{num_classes - 1}", whole & (labels >= 0) & (labels < num_classes)


def _rows(rows: NDArray[np.intp]) -> str:
    shown = ", ".join(str(row) for row in rows[:_ROWS_SHOWN])
    more = f" and {len(rows) - _ROWS_SHOWN} more" if len(rows) > _ROWS_SHOWN else ""
    return f"row{'s' if len(rows) > 1 else ''} {shown}{more}"
