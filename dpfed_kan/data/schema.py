"""What sites agree on before anybody looks at a record: columns, ranges, codes, label.

All of it is public. Nothing is ever estimated from records, and so nothing has to be paid for.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from dpfed_kan._validate import check_choice

Code = str | int | float
OnMissing = Literal["reject", "drop", "indicate"]
OnOutOfRange = Literal["reject", "clip", "missing"]

_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")


def parse_number(text: str, *, decimal: str = ".") -> float | None:
    """Return the number that a cell holds; None for anything that is not plainly one.

    Words (inf, nan), units, thousands marks and digit separators are no numbers.
    """
    text = text.strip()
    if decimal != ".":
        if "." in text:
            return None
        text = text.replace(decimal, ".")
    return float(text) if _NUMBER.fullmatch(text) else None


def same_code(code: Code, *, decimal: str = ".") -> str | float:
    """Return what a code or a cell is compared by: 1, "1", "1.0" and " 1 " are one code."""
    if isinstance(code, int | float):
        return float(code)
    number = parse_number(code, decimal=decimal)
    return code.strip() if number is None else number


@dataclass(frozen=True, kw_only=True)
class Numeric:
    """A number, scaled from its public range to [−1, 1].

    Args:
        name: Of the column.
        low: Least plausible value, public; becomes −1.
        high: Greatest plausible value, public; becomes +1.
        missing_codes: Codes that mean missing in this column, beside the schema's.
        out_of_range: A value outside the range is an error, moved to the nearer end, or missing.
        missing: A missing value is an error, leaves its record out, or becomes `fill` with an
            indicator column beside it.
        fill: What stands for a missing value, public; the middle of the range if not given.
    """

    name: str
    low: float
    high: float
    missing_codes: tuple[Code, ...] = ()
    out_of_range: OnOutOfRange = "reject"
    missing: OnMissing = "reject"
    fill: float | None = None

    def __post_init__(self) -> None:
        _check_name(self.name)
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low <= self.high):
            raise ValueError(
                f"column {self.name!r}: expected a finite public range with low <= high, "
                f"got [{self.low:g}, {self.high:g}]"
            )
        check_choice("out_of_range", self.out_of_range, ("reject", "clip", "missing"))
        check_choice("missing", self.missing, ("reject", "drop", "indicate"))
        if self.fill is not None and not self.low <= self.fill <= self.high:
            raise ValueError(
                f"column {self.name!r}: expected fill={self.fill:g} in the range "
                f"[{self.low:g}, {self.high:g}]"
            )


@dataclass(frozen=True, kw_only=True)
class Ordinal:
    """An ordered category: the first becomes −1, the last +1, evenly spaced.

    Args:
        name: Of the column.
        categories: All codes that may occur, in their order, public.
        missing_codes: As in `Numeric`.
        missing: As in `Numeric`; an indicated missing value lies in the middle.
    """

    name: str
    categories: tuple[Code, ...]
    missing_codes: tuple[Code, ...] = ()
    missing: OnMissing = "reject"

    def __post_init__(self) -> None:
        _check_categories(self.name, self.categories)
        check_choice("missing", self.missing, ("reject", "drop", "indicate"))


@dataclass(frozen=True, kw_only=True)
class Categorical:
    """A category without order: one column for each, +1 for the one that is there, else −1.

    Args:
        name: Of the column.
        categories: All codes that may occur, public.
        missing_codes: As in `Numeric`.
        missing: As in `Numeric`; a missing value is −1 in every column.
    """

    name: str
    categories: tuple[Code, ...]
    missing_codes: tuple[Code, ...] = ()
    missing: OnMissing = "reject"

    def __post_init__(self) -> None:
        _check_categories(self.name, self.categories)
        check_choice("missing", self.missing, ("reject", "drop", "indicate"))


@dataclass(frozen=True, kw_only=True)
class LabelClass:
    """One of several classes.

    Args:
        name: Of the class, public.
        codes: That mean it.
    """

    name: str
    codes: tuple[Code, ...]

    def __post_init__(self) -> None:
        if not self.name.strip() or not self.codes:
            raise ValueError("expected every class to have a name and at least one code")


@dataclass(frozen=True, kw_only=True)
class Label:
    """The column to predict: two classes as +1 and −1, or K > 2 of them as 0 to K−1.

    Args:
        name: Of the column.
        positive: Codes of +1.
        negative: Codes of −1.
        cut: Instead of codes: a number above it is +1, any other number −1.
        classes: Instead of these: three classes or more, the first becomes 0, for
            model.loss=softmax with as many model.num_outputs.
    """

    name: str
    positive: tuple[Code, ...] = ()
    negative: tuple[Code, ...] = ()
    cut: float | None = None
    classes: tuple[LabelClass, ...] = ()

    def __post_init__(self) -> None:
        _check_name(self.name)
        given = (bool(self.positive or self.negative), self.cut is not None, bool(self.classes))
        if sum(given) != 1 or (given[0] and not (self.positive and self.negative)):
            raise ValueError(
                f"label {self.name!r}: expected positive and negative codes, both not empty, or "
                "else a cut, or else classes"
            )
        if self.classes and len(self.classes) < 3:
            raise ValueError(
                f"label {self.name!r}: expected at least three classes; for two, give positive and "
                "negative codes"
            )
        names = [each.name for each in self.classes]
        if len(set(names)) != len(names):
            raise ValueError(f"label {self.name!r}: expected every class to have its own name")
        groups = [each.codes for each in self.classes] or [self.positive, self.negative]
        codes = [code for group in groups for code in {same_code(code) for code in group}]
        twice = sorted({str(code) for code in codes if codes.count(code) > 1})
        if twice:
            classes = "more than one class" if self.classes else "both classes"
            raise ValueError(f"label {self.name!r}: {twice} is in {classes}")

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.classes) or 2


Column = Numeric | Ordinal | Categorical


@dataclass(frozen=True, kw_only=True)
class Schema:
    """What every site's file must look like.

    Args:
        columns: The features, in the order that a model takes them.
        label: The column to predict.
        missing_codes: Codes that mean missing in every column; an empty cell always does.
        patient_id: Column that says whose record it is; never shown, never a feature.
        site_column: Column that says which site a record belongs to, for one file of many sites.
        site_names: With `site_column`, the names that may occur, public.
        ignored: Columns that are dropped unread, such as names and numbers of patients.
        header: The file's column names where it has no header line of its own.
        delimiter: Between cells.
        decimal: Mark in numbers.
        encoding: Of the text.
    """

    columns: tuple[Column, ...]
    label: Label
    missing_codes: tuple[Code, ...] = ()
    patient_id: str | None = None
    site_column: str | None = None
    site_names: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    delimiter: str = ","
    decimal: Literal[".", ","] = "."
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        if not self.columns:
            raise ValueError("expected at least one column of features")
        names = [*self.required, *self.ignored]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"expected every column to be declared once, but {twice} are not")
        absent = sorted(set(self.required) - set(self.header)) if self.header else []
        if absent:
            raise ValueError(f"expected header to hold every declared column; it lacks {absent}")
        if len(self.delimiter) != 1 or self.delimiter in '"\r\n' or self.delimiter == self.decimal:
            raise ValueError(
                f"expected delimiter={self.delimiter!r} to be one character, neither a quote, a "
                "line end nor the decimal mark"
            )
        if (self.site_column is None) != (not self.site_names):
            raise ValueError("expected site_column and site_names together, or neither")
        try:
            "".encode(self.encoding)
        except LookupError:
            raise ValueError(f"encoding {self.encoding!r} is not known; try utf-8") from None

    @property
    def required(self) -> tuple[str, ...]:
        """The columns that a file must have."""
        optional = (self.patient_id, self.site_column)
        names = (*(column.name for column in self.columns), self.label.name)
        return (*names, *(name for name in optional if name is not None))


def _check_name(name: str) -> None:
    if not name.strip():
        raise ValueError("expected every column to have a name")


def _check_categories(name: str, categories: tuple[Code, ...]) -> None:
    _check_name(name)
    codes = [same_code(code) for code in categories]
    if len(codes) < 2 or len(set(codes)) != len(codes):
        raise ValueError(
            f"column {name!r}: expected at least two categories, each once, got {list(categories)}"
        )
