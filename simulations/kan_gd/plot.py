"""Heat maps and tables of what `grid` wrote: test accuracy over width m and steps T.

python -m simulations.kan_gd.plot grid.jsonl --to DIR

In each cell the rate with the least mean training loss over seeds; and once more one rate for all
cells, that of least mean over them (--rate: another). Choosing looks at training records, which no
ε here covers, and not at the test records.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simulations.cells import read_rows

Row = Mapping[str, Any]
TITLES = {"gd": "GD, ε = ∞", "dp_gd": "DP-GD, ε = 2 of one record, zero-out"}


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One cell at its rate.

    Args:
        rate: η.
        accuracy: Mean test accuracy over seeds.
        deviation: Its sd, 0 for one seed.
        num_seeds: How many.
    """

    rate: float
    accuracy: float
    deviation: float
    num_seeds: int


def one_each(rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
    """Yield a row for each T: a run of gd holds several."""
    for row in rows:
        for at in row.get("at", [{}]):
            yield {name: value for name, value in row.items() if name != "at"} | at


def chosen(
    rows: Iterable[Row], *, data: str, form: str, rate: float | None = None
) -> dict[tuple[int, int], Seen]:
    """Return what was seen in each cell (T, m), at the rate of least mean training loss.

    Args:
        rows: One a T.
        data: The data set.
        form: gd or dp_gd.
        rate: Take this one everywhere instead.
    """
    runs: dict[tuple[int, int], dict[float, list[Row]]] = {}
    for row in rows:
        if (row["data"], row["form"]) == (data, form) and rate in (None, row["rate"]):
            cell = runs.setdefault((row["steps"], row["width"]), {})
            cell.setdefault(row["rate"], []).append(row)
    found = {}
    for cell_name, by_rate in sorted(runs.items()):
        most = max(len(each) for each in by_rate.values())
        complete = {eta: each for eta, each in by_rate.items() if len(each) == most}

        def loss(eta: float, complete: Mapping[float, Sequence[Row]] = complete) -> float:
            return float(statistics.mean(row["training_loss"] for row in complete[eta]))

        best = min(complete, key=loss)
        accuracies = [row["test_accuracy"] for row in complete[best]]
        found[cell_name] = Seen(
            rate=best,
            accuracy=statistics.mean(accuracies),
            deviation=statistics.stdev(accuracies) if most > 1 else 0.0,
            num_seeds=most,
        )
    return found


def table(found: Mapping[tuple[int, int], Seen]) -> str:
    """Return a Markdown table, a row a T and a column an m: accuracy ± sd, and the rate."""
    steps, widths = _axes(found)
    lines = [
        "| T | " + " | ".join(f"m={m}" for m in widths) + " |",
        "|---" * (len(widths) + 1) + "|",
    ]
    for t in steps:
        lines.append(f"| {t} | " + " | ".join(_cell(found.get((t, m))) for m in widths) + " |")
    return "\n".join(lines)


def one_rate(rows: Sequence[Row], *, data: str, form: str) -> float:
    """Return the rate of least training loss, averaged over all its runs.

    Raises:
        ValueError: If there are no such runs.
    """
    losses: dict[float, list[float]] = {}
    for row in rows:
        if (row["data"], row["form"]) == (data, form):
            losses.setdefault(row["rate"], []).append(row["training_loss"])
    if not losses:
        raise ValueError(f"expected runs of {form} on {data}")
    return min(losses, key=lambda rate: statistics.mean(losses[rate]))


def panels(
    rows: Sequence[Row], data: str, rate: float | None
) -> Iterator[tuple[str, dict[tuple[int, int], Seen]]]:
    """Yield title and cells: GD and DP-GD, each cell at its rate, and DP-GD at one rate for all."""
    for form in ("gd", "dp_gd"):
        yield f"{data}, {TITLES[form]}", chosen(rows, data=data, form=form)
    fixed = one_rate(rows, data=data, form="dp_gd") if rate is None else rate
    title = f"{data}, {TITLES['dp_gd']}, η = {fixed:g}"
    yield title, chosen(rows, data=data, form="dp_gd", rate=fixed)


def draw(rows: Sequence[Row], data: str, to: Path, *, rate: float | None = None) -> None:
    """Save the picture of a data set."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(14, 3.9), layout="constrained")
    for axis, (title, found) in zip(axes, panels(rows, data, rate), strict=True):
        steps, widths = _axes(found)
        values = np.array([[_accuracy(found.get((t, m))) for m in widths] for t in steps])
        image = axis.imshow(values, origin="lower", cmap="viridis", aspect="auto")
        axis.set_xticks(range(len(widths)), [str(m) for m in widths])
        axis.set_yticks(range(len(steps)), [str(t) for t in steps])
        axis.set_title(title, fontsize=9)
        axis.set(xlabel="width m", ylabel="steps T")
        middle = (np.nanmin(values) + np.nanmax(values)) / 2
        for (row, column), value in np.ndenumerate(values):
            color = "white" if value < middle else "black"
            axis.text(column, row, f"{value:.3f}", ha="center", va="center", color=color)
        figure.colorbar(image, ax=axis, label="test accuracy")
    figure.savefig(to / f"grid_{data}.png", dpi=120)


def _axes(found: Mapping[tuple[int, int], Seen]) -> tuple[list[int], list[int]]:
    return sorted({t for t, _ in found}), sorted({m for _, m in found})


def _accuracy(seen: Seen | None) -> float:
    return float("nan") if seen is None else seen.accuracy


def _cell(seen: Seen | None) -> str:
    if seen is None:
        return "-"
    spread = f" ± {seen.deviation:.3f}" if seen.num_seeds > 1 else " (1 seed)"
    return f"{seen.accuracy:.3f}{spread}, η={seen.rate:g}"


def main() -> None:
    """Print the tables and save the pictures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--to", type=Path, help="folder of the pictures; none without it")
    parser.add_argument("--rate", type=float, help="the one η for all cells")
    options = parser.parse_args()
    rows = list(one_each(read_rows(options.files)))
    for data in sorted({row["data"] for row in rows}):
        for title, found in panels(rows, data, options.rate):
            seeds = sorted({seen.num_seeds for seen in found.values()})
            print(f"\n{title}; seeds: {seeds}\n\n{table(found)}")
        if options.to is not None:
            draw(rows, data, options.to, rate=options.rate)


if __name__ == "__main__":
    main()
