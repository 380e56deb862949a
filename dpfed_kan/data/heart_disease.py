"""The heart disease records of four hospitals (UCI id 45), which FLamby federates.

Janosi, Steinbrunn, Pfisterer, Detrano (1988), doi:10.24432/C52P4X. Ranges are chosen from what
the quantities can plausibly be, not from the records.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split

from dpfed_kan._validate import check_choice
from dpfed_kan.data.encoding import read_records
from dpfed_kan.data.files import file_below
from dpfed_kan.data.records import Records, concatenate
from dpfed_kan.data.schema import Categorical, Column, Label, Numeric, OnMissing, Ordinal, Schema
from dpfed_kan.privacy.clipping import Vector
from dpfed_kan.streams import Streams

SITES = ("cleveland", "hungarian", "switzerland", "va")
_HEADER = (
    "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak",
    "slope", "ca", "thal", "num",
)  # fmt: skip
_LABEL = Label(name="num", positive=(1, 2, 3, 4), negative=(0,))
_WHAT = (
    "one of the four files processed.{cleveland,hungarian,switzerland,va}.data of Heart Disease, "
    "UCI Machine Learning Repository, https://archive.ics.uci.edu/dataset/45/heart+disease"
)


@dataclass(frozen=True, kw_only=True)
class HeartDisease:
    """920 records of four hospitals; +1 for any disease.

    Args:
        root: The directory of the four files.
        variant: `flamby`: ten features, records with a missing one left out, FLamby's own split
            (740 records, 486 to train on); `all`: all 13, missing ones indicated, cholesterol of 0
            taken as missing (920 records, no split).
    """

    root: str
    variant: Literal["flamby", "all"] = "flamby"

    def __post_init__(self) -> None:
        check_choice("variant", self.variant, ("flamby", "all"))

    @property
    def schema(self) -> Schema:
        """What each of the four files looks like, and how it is encoded."""
        return flamby_schema() if self.variant == "flamby" else complete_schema()

    def load(self, streams: Streams) -> Records:
        """Read the four files.

        Raises:
            DataError: If one is missing or not what the archive has.
        """
        parts = []
        for site in SITES:
            path = file_below(self.root, f"processed.{site}.data", what=_WHAT)
            records = read_records(path, self.schema, site=site)
            if self.variant == "flamby":
                records = replace(records, held_out=flamby_held_out(records.labels))
            parts.append(records)
        return concatenate(parts)


def flamby_schema() -> Schema:
    """Return FLamby's ten features, which become 15 columns."""
    ignored = ("slope", "ca", "thal")
    columns = _columns(missing="drop", chol_low=0.0)
    return _schema(columns, ignored=ignored)


def complete_schema() -> Schema:
    """Return all 13 features, each with an indicator of missing values."""
    columns = _columns(missing="indicate", chol_low=100.0)
    more: tuple[Column, ...] = (
        Ordinal(name="slope", categories=(1, 2, 3), missing="indicate"),
        Ordinal(name="ca", categories=(0, 1, 2, 3), missing="indicate", missing_codes=(9,)),
        Categorical(name="thal", categories=(3, 6, 7), missing="indicate"),
    )
    return _schema((*columns, *more), ignored=())


def flamby_held_out(labels: Vector) -> NDArray[np.bool_]:
    """Return FLamby's split of one hospital: 66/34, seed 43, stratified where both classes > 2."""
    negatives, positives = int((labels < 0).sum()), int((labels > 0).sum())
    _, test = train_test_split(
        np.arange(len(labels)),
        test_size=1.0 - 0.66,
        train_size=0.66,
        random_state=43,
        shuffle=True,
        stratify=labels if min(negatives, positives) > 2 else None,
    )
    held_out = np.zeros(len(labels), dtype=bool)
    held_out[test] = True
    return held_out


def _schema(columns: tuple[Column, ...], *, ignored: tuple[str, ...]) -> Schema:
    return Schema(
        columns=columns, label=_LABEL, missing_codes=("?",), header=_HEADER, ignored=ignored
    )


def _columns(*, missing: OnMissing, chol_low: float) -> tuple[Column, ...]:
    def number(name: str, low: float, high: float) -> Numeric:
        return Numeric(name=name, low=low, high=high, out_of_range="clip", missing=missing)

    def yes_no(name: str) -> Ordinal:
        return Ordinal(name=name, categories=(0, 1), missing=missing)

    chol = Numeric(
        name="chol",
        low=chol_low,
        high=600.0,
        missing_codes=(0,) if chol_low > 0 else (),
        out_of_range="clip",
        missing=missing,
    )
    return (
        number("age", 20.0, 80.0),
        yes_no("sex"),
        Categorical(name="cp", categories=(1, 2, 3, 4), missing=missing),
        number("trestbps", 80.0, 200.0),
        chol,
        yes_no("fbs"),
        Categorical(name="restecg", categories=(0, 1, 2), missing=missing),
        number("thalach", 60.0, 220.0),
        yes_no("exang"),
        number("oldpeak", -3.0, 7.0),
    )
