"""Primate splice junctions: 60 letters of DNA around a possible splice site (UCI id 69).

Noordewier, Towell, Shavlik (1991), doi:10.24432/C5M888.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass

import numpy as np

from dpfed_kan.data.files import file_below
from dpfed_kan.data.findings import DataError, row_numbers
from dpfed_kan.data.records import Records
from dpfed_kan.streams import Streams

_LETTERS = "ACGT"
_LENGTH = 60
_WHAT = (
    "a CSV file with the columns sequence (60 letters ACGT) and class (ei, ie, n), written from "
    "Molecular Biology (Splice-junction Gene Sequences), UCI Machine Learning Repository, "
    "https://archive.ics.uci.edu/dataset/69, or data DNA of the R package mlbench"
)


@dataclass(frozen=True, kw_only=True)
class DNASplice:
    """3,186 sequences, one-hot, each letter 1/√60, so that ‖x‖₂ = 1.

    Args:
        root: The directory of the file.
        positive: Classes that become +1: ei (donor), ie (acceptor), n (neither).
        negative: Classes that become −1; a class in neither is left out.
        file: Name of the file.
    """

    root: str
    positive: tuple[str, ...] = ("ei",)
    negative: tuple[str, ...] = ("ie",)
    file: str = "splice_junction_60bp.csv"

    def __post_init__(self) -> None:
        both = {*self.positive, *self.negative}
        if len(both) != len(self.positive) + len(self.negative) or not both <= {"ei", "ie", "n"}:
            raise ValueError("expected positive and negative to share out some of ei, ie, n")
        if not self.positive or not self.negative:
            raise ValueError("expected positive and negative classes")

    def load(self, streams: Streams) -> Records:
        """Read the file.

        Raises:
            DataError: If it is missing, or a row is not 60 letters and a class.
        """
        path = file_below(self.root, self.file, what=_WHAT)
        try:
            with path.open(encoding="utf-8-sig", newline="") as opened:
                rows = list(csv.reader(opened))
        except (UnicodeDecodeError, csv.Error):
            raise DataError(f"{path} is not a CSV file in UTF-8: {_WHAT}") from None
        if not rows or rows[0] != ["sequence", "class"]:
            raise DataError(f"{path}: expected the columns sequence and class")
        bad = [number for number, row in enumerate(rows[1:], start=2) if not _sound(row)]
        if bad:
            raise DataError(f"{path}: not 60 letters ACGT and a class in {row_numbers(bad)}")
        chosen = [row for row in rows[1:] if row[1] in (*self.positive, *self.negative)]
        letters = np.array([list(row[0]) for row in chosen])
        one_hot = (letters[:, :, None] == np.array(list(_LETTERS))).reshape(len(chosen), -1)
        return Records(
            features=one_hot / math.sqrt(_LENGTH),
            labels=np.array([1.0 if row[1] in self.positive else -1.0 for row in chosen]),
            feature_names=tuple(
                f"{letter} at {place}" for place in range(_LENGTH) for letter in _LETTERS
            ),
        )


def _sound(row: list[str]) -> bool:
    return (
        len(row) == 2
        and len(row[0]) == _LENGTH
        and set(row[0]) <= set(_LETTERS)
        and row[1] in ("ei", "ie", "n")
    )
