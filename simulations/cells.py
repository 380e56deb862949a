"""The cells of a grid, run once each: a line of JSON a cell, appended as it ends."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.progress import track

Cell = Mapping[str, Any]


def read_rows(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Return the rows of files that `run_missing` wrote, in their order."""
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def run_missing(
    cells: Iterable[Cell], out: Path, run: Callable[[Cell], Mapping[str, Any]], *, shown: str
) -> None:
    """Run the cells that a file does not hold yet, and append a row for each.

    Args:
        cells: Names to values; a row of the file with all of them is that cell, done.
        out: JSON lines; made if it is not there.
        run: From a cell to what was found.
        shown: What the progress bar says.
    """
    done = read_rows([out]) if out.exists() else []
    for cell in track(list(cells), description=shown):
        if any(cell.items() <= row.items() for row in done):
            continue
        row = {**cell, **run(cell)}
        with out.open("a") as file:
            file.write(json.dumps(row) + "\n")
