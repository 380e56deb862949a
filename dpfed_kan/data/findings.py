"""What is odd about a file, in words that hold no value: column, kind, count, row numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ROWS_SHOWN = 5


class DataError(ValueError):
    """A file cannot be used; the message names file, columns and rows, never a value."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One kind of oddity in one column.

    Args:
        column: Its declared name, or "" for whole rows.
        kind: What is odd.
        rows: Row numbers in the file, ascending; a header line is row 1.
        fatal: Whether the file is refused for it.
    """

    column: str
    kind: str
    rows: tuple[int, ...]
    fatal: bool

    def __str__(self) -> str:
        where = f"column {self.column!r}: " if self.column else ""
        return f"{where}{self.kind} in {row_numbers(self.rows)}"


def row_numbers(rows: Sequence[int]) -> str:
    """Return 'row 3', or 'rows 3, 4 and 7 more'."""
    shown = ", ".join(str(row) for row in rows[:ROWS_SHOWN])
    more = f" and {len(rows) - ROWS_SHOWN} more" if len(rows) > ROWS_SHOWN else ""
    return f"row{'s' if len(rows) > 1 else ''} {shown}{more}"
