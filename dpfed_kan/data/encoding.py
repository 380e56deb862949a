"""From a table to `Records`, by public constants only: nothing is standardised by records."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from dpfed_kan.data.findings import DataError
from dpfed_kan.data.reader import Table, read_table
from dpfed_kan.data.records import Records
from dpfed_kan.data.schema import Categorical, Column, Numeric, Ordinal, Schema
from dpfed_kan.privacy.clipping import Matrix, Vector

_PROBLEMS_SHOWN = 12


def read_records(path: Path, schema: Schema, *, site: str | None = None) -> Records:
    """Read and encode a file, or say in one error all that keeps it from being used.

    Args:
        path: Of the file.
        schema: What it must look like.
        site: Whose file it is; None where the schema has a site column or there is one site.

    Raises:
        DataError: By file, column, count and row number; never with a value.
    """
    table = read_table(path, schema)
    if table.fatal:
        said = [str(finding) for finding in table.fatal[:_PROBLEMS_SHOWN]]
        if len(table.fatal) > _PROBLEMS_SHOWN:
            said.append(f"and {len(table.fatal) - _PROBLEMS_SHOWN} more")
        where = f"{path} of {site}" if site is not None else f"{path}"
        raise DataError(f"{where}: " + "; ".join(said))
    return encode(table, schema, site=site)


def encode(table: Table, schema: Schema, *, site: str | None = None) -> Records:
    """Return the usable records of a table, ‖x‖₂ ≤ 1.

    Each column is encoded to [−1, 1] and divided by √d, d the number of encoded columns.

    Raises:
        DataError: If the table has a fatal finding.
    """
    if table.fatal:
        raise DataError("; ".join(str(finding) for finding in table.fatal))
    kept = np.ones(len(table.labels), dtype=bool)
    for column in schema.columns:
        if column.missing == "drop":
            kept &= ~np.isnan(table.numbers[column.name])
    encoded = [part[kept] for column in schema.columns for part in _encoded(column, table.numbers)]
    features: Matrix = np.stack(encoded, axis=1) / math.sqrt(len(encoded))
    sites = table.sites
    if site is not None:
        sites = np.full(len(kept), site)
    return Records(
        features=np.ascontiguousarray(features),
        labels=table.labels[kept],
        feature_names=encoded_names(schema),
        patients=None if table.patients is None else table.patients[kept],
        sites=None if sites is None else sites[kept],
        site_names=schema.site_names if site is None else (site,),
        num_classes=schema.label.num_classes,
    )


def encoded_names(schema: Schema) -> tuple[str, ...]:
    """Return the names of the encoded columns, public, the same at every site."""
    names: list[str] = []
    for column in schema.columns:
        if isinstance(column, Categorical):
            names += [f"{column.name}={category}" for category in column.categories]
        else:
            names.append(column.name)
        if column.missing == "indicate":
            names.append(f"{column.name} is missing")
    return tuple(names)


def _encoded(column: Column, numbers: dict[str, Vector]) -> list[Vector]:
    values = numbers[column.name]
    missing = np.isnan(values)
    match column:
        case Numeric():
            parts = [_numeric(column, values)]
        case Ordinal():
            spread = 2 * values / (len(column.categories) - 1) - 1
            parts = [np.where(missing, 0.0, spread)]
        case Categorical():
            parts = [np.where(values == k, 1.0, -1.0) for k in range(len(column.categories))]
    if column.missing == "indicate":
        parts.append(np.where(missing, 1.0, -1.0))
    return parts


def _numeric(column: Numeric, values: Vector) -> Vector:
    middle = column.low / 2 + column.high / 2
    filled = np.where(np.isnan(values), middle if column.fill is None else column.fill, values)
    half = column.high / 2 - column.low / 2
    if half == 0:
        return np.zeros(len(filled))
    return np.asarray(np.clip((filled - middle) / half, -1.0, 1.0))
