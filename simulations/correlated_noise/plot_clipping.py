"""Draw and tabulate what `clipping` wrote: over the clip C at a fixed η C, and over the ball's R.

python -m simulations.correlated_noise.plot_clipping clipping.jsonl --to DIR
python -m simulations.correlated_noise.plot_clipping --ball ball.jsonl --to DIR
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from simulations.cells import read_rows
from simulations.correlated_noise.plot import Row, Summary, summarize, table

CLIPPING = ("averaged_loss", "final_loss", "test_accuracy", "share_clipped_at_start")
BALL = ("share_projected", "averaged_loss", "final_loss", "test_accuracy")


def clipping(rows: Sequence[Row], to: Path | None) -> str:
    """Draw the losses over C; return a Markdown table."""
    found = summarize(rows, ("data", "clip", "kappa", "correlation"), CLIPPING)
    data_sets = tuple(sorted({str(cell[0]) for cell in found}))
    _draw(found, tuple((data, value) for value in CLIPPING[:2] for data in data_sets), "C", to)
    return table(found, ("data", "C", "κ", "λ"), CLIPPING)


def ball(rows: Sequence[Row], to: Path | None) -> str:
    """Draw the share of projected steps and the final loss over R; return a Markdown table."""
    found = summarize(rows, ("data", "radius", "kappa", "correlation"), BALL)
    data_sets = sorted({str(cell[0]) for cell in found})
    values = ("share_projected", "final_loss")
    _draw(found, tuple((data, value) for data in data_sets for value in values), "R", to)
    return table(found, ("data", "R", "κ", "λ"), BALL)


def _draw(found: Summary, panels: Sequence[tuple[str, str]], swept: str, to: Path | None) -> None:
    """Draw a panel for each (data set, value), a line for each noise, over what is swept."""
    if to is None:
        return
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(panels), figsize=(4 * len(panels), 3.4), squeeze=False)
    for axis, (data, value) in zip(axes[0], panels, strict=True):
        levels = sorted({cell[2:] for cell in found if cell[0] == data})
        for kappa, lam in levels:
            cells = [cell for cell in found if (cell[0], *cell[2:]) == (data, kappa, lam)]
            axis.errorbar(
                [cell[1] for cell in cells],
                [found[cell][value][0] for cell in cells],
                yerr=[found[cell][value][1] for cell in cells],
                fmt="o-" if kappa > 0 else "k:",
                markersize=3,
                label=f"λ = {lam:g}" if kappa > 0 else "no noise",
            )
        axis.set(title=data, xlabel=swept, ylabel=value.replace("_", " "), xscale="log")
        axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(to / ("clipping.png" if swept == "C" else "ball.png"), dpi=120)


def main() -> None:
    """Print the table and save the picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--ball", action="store_true", help="the files are of --ball")
    parser.add_argument("--to", type=Path, help="folder of the picture; none without it")
    options = parser.parse_args()
    print((ball if options.ball else clipping)(read_rows(options.files), options.to))


if __name__ == "__main__":
    main()
