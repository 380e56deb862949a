"""The three separable tasks named by [KAN-GD], arXiv 2601.22409: classes apart by a gap.

The paper's parameters are not published. All that are set here are ours: two coordinates carry
the label (one for the intervals), the others are uniform and mean nothing; the number of
intervals and cells and the width of the gap are settings. Figures are not comparable with its.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpfed_kan._validate import check_count, check_number
from dpfed_kan.data.records import Records
from dpfed_kan.privacy.clipping import Matrix, Vector
from dpfed_kan.streams import Streams


@dataclass(frozen=True, kw_only=True)
class MultiInterval:
    """y alternates over equal intervals of x_0 in [−1, 1]; no point is within gap/2 of a border.

    Args:
        num_records: n.
        input_dim: d.
        num_intervals: Intervals; ours.
        gap: Width of what is left empty around each border; ours.
    """

    num_records: int = 2000
    input_dim: int = 2
    num_intervals: int = 6
    gap: float = 0.05

    def __post_init__(self) -> None:
        _check(self.num_records, self.input_dim, self.num_intervals, self.gap, least=1)

    def load(self, streams: Streams) -> Records:
        """Draw the records from the stream named synthetic_data."""

        def cells(cube: Matrix) -> tuple[NDArray[np.intp], Vector]:
            return _cell(cube[:, 0], self.num_intervals)

        return _draw(self.num_records, self.input_dim, self.gap, cells, streams)


@dataclass(frozen=True, kw_only=True)
class XORGap:
    """y = sign(x_0 x_1); no point is within gap/2 of an axis.

    Args:
        num_records: n.
        input_dim: d ≥ 2.
        gap: As in `MultiInterval`; ours.
    """

    num_records: int = 2000
    input_dim: int = 2
    gap: float = 0.2

    def __post_init__(self) -> None:
        _check(self.num_records, self.input_dim, 2, self.gap, least=2)

    def load(self, streams: Streams) -> Records:
        """Draw the records from the stream named synthetic_data."""
        return _draw(self.num_records, self.input_dim, self.gap, _board(2), streams)


@dataclass(frozen=True, kw_only=True)
class CheckerboardGap:
    """y alternates over the cells of a board in (x_0, x_1); no point is near a border.

    Args:
        num_records: n.
        input_dim: d ≥ 2.
        num_cells: Cells a side; ours.
        gap: As in `MultiInterval`; ours.
    """

    num_records: int = 2000
    input_dim: int = 2
    num_cells: int = 4
    gap: float = 0.1

    def __post_init__(self) -> None:
        _check(self.num_records, self.input_dim, self.num_cells, self.gap, least=2)

    def load(self, streams: Streams) -> Records:
        """Draw the records from the stream named synthetic_data."""
        return _draw(self.num_records, self.input_dim, self.gap, _board(self.num_cells), streams)


_Cells = Callable[[Matrix], tuple[NDArray[np.intp], Vector]]


def _check(num_records: int, input_dim: int, num_cells: int, gap: float, *, least: int) -> None:
    check_count("num_records", num_records)
    check_count("input_dim", input_dim, low=least)
    check_count("num_cells", num_cells, low=2)
    advice = f"{num_cells} cells of width {2 / num_cells:g} must have room beside the gap"
    check_number("gap", gap, low=0.0, high=2 / num_cells, high_open=True, advice=advice)


def _board(num_cells: int) -> _Cells:
    def cells(cube: Matrix) -> tuple[NDArray[np.intp], Vector]:
        (first, near), (second, nearer) = (_cell(cube[:, axis], num_cells) for axis in (0, 1))
        return first + second, np.minimum(near, nearer)

    return cells


def _cell(x: Vector, num_cells: int) -> tuple[NDArray[np.intp], Vector]:
    """Return the cell of each point and its distance to the nearest inner border."""
    borders = np.linspace(-1.0, 1.0, num_cells + 1)[1:-1]
    return np.searchsorted(borders, x), np.abs(x[:, None] - borders).min(axis=1)


def _draw(num_records: int, input_dim: int, gap: float, cells: _Cells, streams: Streams) -> Records:
    rng = streams.generator("synthetic_data")
    kept: Matrix = np.empty((0, input_dim))
    while len(kept) < num_records:
        cube = rng.uniform(-1.0, 1.0, (num_records, input_dim))
        kept = np.concatenate([kept, cube[cells(cube)[1] >= gap / 2]])
    kept = kept[:num_records]
    return Records(
        features=kept / math.sqrt(input_dim),
        labels=np.where(cells(kept)[0] % 2 == 0, 1.0, -1.0),
        feature_names=tuple(f"x{index}" for index in range(input_dim)),
    )
