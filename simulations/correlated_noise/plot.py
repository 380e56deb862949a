"""Draw and tabulate what `figure_2` and `fixed_epsilon` wrote.

python -m simulations.correlated_noise.plot figure_2 figure_2.jsonl --to DIR
python -m simulations.correlated_noise.plot fixed_epsilon fixed.jsonl --to DIR
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]
Summary = dict[tuple[Any, ...], dict[str, tuple[float, float, int]]]


def summarize(rows: Iterable[Row], names: Sequence[str], values: Sequence[str]) -> Summary:
    """Return mean, sd and number over seeds of each value in each cell."""
    cells: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        cells[tuple(row[name] for name in names)].append(row)
    return {
        cell: {
            value: (
                statistics.mean(row[value] for row in found),
                statistics.stdev(row[value] for row in found) if len(found) > 1 else 0.0,
                len(found),
            )
            for value in values
        }
        for cell, found in sorted(cells.items())
    }


def figure_2(rows: Sequence[Row], to: Path) -> str:
    """Draw averaged and final training loss over λ; return a Markdown table."""
    import matplotlib.pyplot as plt

    values = ("averaged_loss", "final_loss", "test_accuracy")
    found = summarize(rows, ("data", "kappa", "correlation"), values)
    data_sets = sorted({cell[0] for cell in found})
    figure, axes = plt.subplots(1, len(data_sets), figsize=(5 * len(data_sets), 3.6), squeeze=False)
    for axis, data in zip(axes[0], data_sets, strict=True):
        for kappa in sorted({cell[1] for cell in found if cell[0] == data and cell[1] > 0}):
            cells = [cell for cell in found if cell[:2] == (data, kappa)]
            for value, style in (("averaged_loss", "-"), ("final_loss", "--")):
                axis.errorbar(
                    [cell[2] for cell in cells],
                    [found[cell][value][0] for cell in cells],
                    yerr=[found[cell][value][1] for cell in cells],
                    fmt=f"o{style}",
                    markersize=3,
                    label=f"κ = {kappa}, {value.split('_')[0]}",
                )
        if (data, 0.0, 0.0) in found:
            for value, style in (("averaged_loss", "-"), ("final_loss", "--")):
                level = found[data, 0.0, 0.0][value][0]
                axis.axhline(level, color="gray", linestyle=style, linewidth=0.8)
        axis.set(title=f"{data} (gray: no noise)", xlabel="λ", ylabel="training loss")
        axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(to / "figure_2.png", dpi=130)
    return table(found, ("data", "κ", "λ"), values)


def fixed_epsilon(rows: Sequence[Row], to: Path) -> str:
    """Draw test accuracy over λ at each ε, a panel a sampling; return a Markdown table."""
    import matplotlib.pyplot as plt

    values = ("test_accuracy", "test_loss")
    names = ("data", "epsilon", "sampling", "rule", "correlation")
    found = summarize(rows, names, values)
    for data in sorted({cell[0] for cell in found}):
        samplings = sorted({cell[2] for cell in found if cell[0] == data})
        figure, axes = plt.subplots(
            1, len(samplings), figsize=(3.2 * len(samplings), 3.2), sharey=True, squeeze=False
        )
        for axis, sampling in zip(axes[0], samplings, strict=True):
            lines = sorted({(c[1], c[3]) for c in found if c[0] == data and c[2] == sampling})
            for epsilon, rule in lines:
                cells = [c for c in found if c[:4] == (data, epsilon, sampling, rule)]
                axis.errorbar(
                    [cell[4] for cell in cells],
                    [found[cell]["test_accuracy"][0] for cell in cells],
                    yerr=[found[cell]["test_accuracy"][1] for cell in cells],
                    fmt="o-" if rule == "sgd" else "s--",
                    markersize=3,
                    label=f"{rule}, ε = {epsilon:g}",
                )
            axis.set(title=sampling, xlabel="λ")
        axes[0][0].set_ylabel("test accuracy")
        axes[0][0].legend(fontsize=7)
        figure.tight_layout()
        figure.savefig(to / f"fixed_epsilon_{data}.png", dpi=130)
    return table(found, ("data", "ε", "sampling", "rule", "λ"), values)


def table(found: Summary, names: Sequence[str], values: Sequence[str]) -> str:
    """Return a Markdown table of means ± sd, a row a cell, with the number of seeds."""
    heads = [*names, *(value.replace("_", " ") for value in values), "seeds"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for cell, of in found.items():
        shown = [f"{of[value][0]:.3f} ± {of[value][1]:.3f}" for value in values]
        count = of[values[0]][2]
        lines.append("| " + " | ".join([*map(str, cell), *shown, str(count)]) + " |")
    return "\n".join(lines)


def main() -> None:
    """Print the table and save the pictures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["figure_2", "fixed_epsilon"])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--to", type=Path, default=Path(), help="folder of the pictures")
    options = parser.parse_args()
    lines = [line for path in options.files for line in path.read_text().splitlines()]
    draw = figure_2 if options.what == "figure_2" else fixed_epsilon
    print(draw([json.loads(line) for line in lines], options.to))


if __name__ == "__main__":
    main()
