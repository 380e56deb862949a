"""The table of a results file: test accuracy ± sd over seeds beside ε.

python -m simulations.macadam_mnist.table results.jsonl
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from simulations.cells import read_rows


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return one Markdown row a model and rule, one column a σ; '-' where nothing was run."""
    cells: dict[tuple[str, str], dict[float, list[float]]] = {}
    epsilons: dict[float, float] = {}
    seconds: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        key = (row["model"], row["rule"])
        cells.setdefault(key, {}).setdefault(row["sigma"], []).append(row["test_accuracy"])
        seconds.setdefault(key, []).append(row["seconds"])
        epsilons[row["sigma"]] = row["epsilon"]
    sigmas = sorted(epsilons)
    heads = [f"σ={sigma:g}, ε={epsilons[sigma]:.3g}" for sigma in sigmas]
    lines = [f"| model | rule | {' | '.join(heads)} | s a run |", "|" + "---|" * (len(sigmas) + 3)]
    for (model, rule), found in cells.items():
        shown = [_cell(found.get(sigma, [])) for sigma in sigmas]
        mean = statistics.mean(seconds[model, rule])
        lines.append(f"| {model} | {rule} | {' | '.join(shown)} | {mean:.0f} |")
    return "\n".join(lines)


def _cell(values: list[float]) -> str:
    if not values:
        return "-"
    if len(values) == 1:
        return f"{values[0]:.3f} (1 seed)"
    return f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f} ({len(values)} seeds)"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="JSON lines of `train`")
    print(table(read_rows(parser.parse_args().files)))


if __name__ == "__main__":
    main()
