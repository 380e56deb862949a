"""From the bytes of a delimited file to a table of numbers and codes, and what is odd in it.

The standard library's csv does the cells: unlike table readers that guess, it never pads a
short row, never turns a column to text part-way, and its errors hold no cell.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpfed_kan.data.findings import DataError, Finding
from dpfed_kan.data.schema import Code, Column, Label, Numeric, Schema, same_code
from dpfed_kan.privacy.clipping import Vector

_Mask = NDArray[np.bool_]
_SEPARATORS = (";", "\t", "|", ",")


@dataclass(frozen=True, kw_only=True)
class Table:
    """The declared columns of a file.

    Args:
        numbers: Column name to shape (n,): the number, or the category's place from 0; NaN
            where it is missing or refused.
        labels: Shape (n,), −1 or +1, or 0 to K−1 for K > 2 classes; NaN where refused.
        patients: Shape (n,), text, or None.
        sites: Shape (n,), text, or None.
        rows: Shape (n,), row numbers in the file.
        findings: What is odd.
        num_rows: Rows that hold anything, whether or not they could be used.
    """

    numbers: dict[str, Vector]
    labels: Vector
    patients: NDArray[np.str_] | None
    sites: NDArray[np.str_] | None
    rows: NDArray[np.intp]
    findings: tuple[Finding, ...]
    num_rows: int

    @property
    def fatal(self) -> tuple[Finding, ...]:
        """The findings for which the file is refused."""
        return tuple(finding for finding in self.findings if finding.fatal)


def read_table(path: Path, schema: Schema) -> Table:
    """Read a file.

    Guarantees:
        Whatever the bytes, the only exception is `DataError`, and neither it nor any finding
        holds a value of the file, not even a cell of its header.

    Raises:
        DataError: If the file is absent, empty, not text in the declared encoding, or lacks a
            declared column.
    """
    header, rows = _header_and_rows(path, schema)
    places = _places(header, schema, path)
    width = len(header)
    findings: list[Finding] = []
    whole = [(number, cells) for number, cells in rows if len(cells) == width]
    for kind, odd in (
        ("fewer cells than the header", [number for number, cells in rows if len(cells) < width]),
        ("more cells than the header", [number for number, cells in rows if len(cells) > width]),
    ):
        if odd:
            findings.append(Finding(column="", kind=kind, rows=tuple(odd), fatal=True))
    numbers_of_rows = np.array([number for number, _ in whole], dtype=np.intp)
    reading = _Reading(schema, numbers_of_rows, findings)

    def cells_of(name: str) -> list[str]:
        return [cells[places[name]] for _, cells in whole]

    table = {
        column.name: reading.column(column, cells_of(column.name)) for column in schema.columns
    }
    labels = reading.label(schema.label, cells_of(schema.label.name))
    patients = sites = None
    if schema.patient_id is not None:
        patients = reading.patients(schema.patient_id, cells_of(schema.patient_id))
    if schema.site_column is not None:
        sites = reading.sites(schema.site_column, cells_of(schema.site_column))
    reading.duplicates([tuple(cells) for _, cells in whole])
    return Table(
        numbers=table,
        labels=labels,
        patients=patients,
        sites=sites,
        rows=numbers_of_rows,
        findings=tuple(findings),
        num_rows=len(rows),
    )


def _header_and_rows(path: Path, schema: Schema) -> tuple[list[str], list[tuple[int, list[str]]]]:
    text = _text(path, schema)
    if not text.strip():
        raise DataError(f"{path}: the file is empty")
    numbered = [
        (number, cells)
        for number, cells in enumerate(_cells(text, path, schema.delimiter), start=1)
        if any(cell.strip() for cell in cells)
    ]
    if not numbered:
        raise DataError(f"{path}: the file holds no cell that is not empty")
    if schema.header:
        return list(schema.header), numbered
    return [cell.strip() for cell in numbered[0][1]], numbered[1:]


def _text(path: Path, schema: Schema) -> str:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path.absolute()}: there is no such file") from None
    except OSError as error:
        raise DataError(f"{path}: the file cannot be read: {error.strerror}") from None
    try:
        text = content.decode(schema.encoding)
    except UnicodeError as error:
        start = error.start if isinstance(error, UnicodeDecodeError) else 0
        line = content[:start].count(b"\n") + 1
        raise DataError(
            f"{path}: line {line} is not {schema.encoding} text; declare the file's encoding in "
            "the schema (latin-1, utf-16, ...) or save it as UTF-8"
        ) from None
    return text.removeprefix("\ufeff")


def _cells(text: str, path: Path, delimiter: str) -> Iterator[list[str]]:
    """Yield the cells of each row; quotes that do not close are an error by row."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    number = 0
    try:
        for cells in reader:
            number += 1
            yield cells
    except csv.Error:
        raise DataError(
            f"{path}: row {number + 1} is not well formed: a quote opens or closes in the wrong "
            "place, or a cell is longer than 131072 characters"
        ) from None


def _places(header: Sequence[str], schema: Schema, path: Path) -> dict[str, int]:
    """Return where each declared column is; every declared one, and no other, must be there."""
    known = set(schema.required) | set(schema.ignored) | set(schema.header)
    missing = [name for name in schema.required if name not in header]
    extra = [place for place, name in enumerate(header) if name not in known]
    twice = sorted({name for name in schema.required if header.count(name) > 1})
    if len(missing) == len(schema.required):
        hint = ""
        for separator in _SEPARATORS:
            if separator != schema.delimiter and any(separator in cell for cell in header):
                hint = f", is the separator {separator!r}?"
                break
        expected = len(schema.required) + len(schema.ignored)
        raise DataError(
            f"{path}: found {len(header)} column{'s' if len(header) != 1 else ''}, expected "
            f"{expected}{hint or '; none of the declared names is in the first row'}"
        )
    problems = [f"column {name!r} is missing" for name in missing]
    problems += [f"column {name!r} is there more than once" for name in twice]
    for place in extra:
        before = [name for name in header[:place] if name in known]
        after = f", after {before[-1]!r}" if before else ""
        problems.append(
            f"column {place + 1} of the file{after}, is not in the schema: declare it, or list it "
            "under ignored to have it dropped"
        )
    if problems:
        raise DataError(f"{path}: " + "; ".join(problems))
    return {name: place for place, name in enumerate(header)}


class _Reading:
    """Reads one column after the other and collects what is odd."""

    def __init__(self, schema: Schema, rows: NDArray[np.intp], findings: list[Finding]) -> None:
        self._schema = schema
        self._rows = rows
        self._findings = findings

    def column(self, column: Column, cells: Sequence[str]) -> Vector:
        """Return the column as numbers, NaN where there is none."""
        codes = self._codes(cells)
        declared = {*self._schema.missing_codes, *column.missing_codes, ""}
        missing = _among(codes, {self._code(code) for code in declared})
        if isinstance(column, Numeric):
            values, missing = self._numeric(column, codes, missing)
        else:
            place = {self._code(code): float(k) for k, code in enumerate(column.categories)}
            values = np.array([place.get(code, math.nan) for code in codes], float)
            values[missing] = math.nan
            unknown = np.isnan(values) & ~missing
            self._find(column.name, "not one of the declared categories", unknown, fatal=True)
        outcome = {"reject": "", "drop": ", record left out", "indicate": ", indicated"}
        kind = f"missing{outcome[column.missing]}"
        self._find(column.name, kind, missing, fatal=column.missing == "reject")
        sound = ~np.isnan(values)
        if sound.sum() > 1 and len(set(values[sound])) == 1:
            self._find(column.name, "the same value (harmless: the range is public)", sound)
        return values

    def label(self, label: Label, cells: Sequence[str]) -> Vector:
        """Return the labels, NaN where one is refused."""
        codes = self._codes(cells)
        if label.cut is None:
            groups = [(float(k), each.codes) for k, each in enumerate(label.classes)]
            groups = groups or [(1.0, label.positive), (-1.0, label.negative)]
            numbers_of = {self._code(code): k for k, group in groups for code in group}
            values = np.array([numbers_of.get(code, math.nan) for code in codes], float)
            kind = (
                "not a code of any class (declare it)"
                if label.classes
                else "neither a positive nor a negative code (declare it, or give a cut or classes)"
            )
        else:
            numbers = np.array([x if isinstance(x, float) else math.nan for x in codes], float)
            values = np.where(numbers > label.cut, 1.0, -1.0)
            values[np.isnan(numbers)] = math.nan
            kind = "not a number, which the cut needs"
        self._find(label.name, kind, np.isnan(values), fatal=True)
        return values

    def patients(self, name: str, cells: Sequence[str]) -> NDArray[np.str_]:
        """Return who each record is of."""
        ids = np.array([cell.strip() for cell in cells], dtype=np.str_)
        self._find(name, "patient not named", ids == "", fatal=True)
        return ids

    def sites(self, name: str, cells: Sequence[str]) -> NDArray[np.str_]:
        """Return which site each record is of."""
        names = np.array([cell.strip() for cell in cells], dtype=np.str_)
        unknown = ~np.isin(names, self._schema.site_names)
        self._find(name, "not one of the declared sites", unknown, fatal=True)
        return names

    def duplicates(self, rows: Sequence[tuple[str, ...]]) -> None:
        """Note rows that repeat an earlier one in every cell."""
        seen: set[tuple[str, ...]] = set()
        again = np.zeros(len(rows), dtype=bool)
        for place, cells in enumerate(rows):
            again[place] = cells in seen
            seen.add(cells)
        self._find("", "the same cells as an earlier row", again)

    def _numeric(
        self, column: Numeric, codes: Sequence[str | float], missing: _Mask
    ) -> tuple[Vector, _Mask]:
        values = np.array([x if isinstance(x, float) else math.nan for x in codes], float)
        text = np.isnan(values) & ~missing
        self._find(column.name, "not a number", text, fatal=True)
        values[missing] = math.nan
        outside = (values < column.low) | (values > column.high)
        outcome = {"reject": "", "clip": ", moved to its end", "missing": ", taken as missing"}
        kind = f"outside the public range{outcome[column.out_of_range]}"
        self._find(column.name, kind, outside, fatal=column.out_of_range == "reject")
        if column.out_of_range == "clip":
            return np.clip(values, column.low, column.high), missing
        values[outside] = math.nan
        return values, missing | outside if column.out_of_range == "missing" else missing

    def _codes(self, cells: Sequence[str]) -> list[str | float]:
        return [self._code(cell) for cell in cells]

    def _code(self, code: Code) -> str | float:
        return same_code(code, decimal=self._schema.decimal)

    def _find(self, column: str, kind: str, mask: _Mask, *, fatal: bool = False) -> None:
        if mask.any():
            rows = tuple(int(row) for row in self._rows[mask])
            self._findings.append(Finding(column=column, kind=kind, rows=rows, fatal=fatal))


def _among(codes: Sequence[str | float], declared: set[str | float]) -> _Mask:
    return np.array([code in declared for code in codes], dtype=bool)
