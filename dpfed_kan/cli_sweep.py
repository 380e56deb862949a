"""`dpfed-kan sweep`: one table of a multirun, its frontier, and what choosing from it costs."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def add_sweep(verbs: Any) -> None:
    """Add the verb to the command's parser."""
    verb = verbs.add_parser(
        "sweep",
        help="one table of a multirun, and what choosing from it costs",
        description=(
            "Write sweep.csv and sweep.html into the directory of a multirun: mean ± sd over "
            "seeds by the other swept settings, the privacy-utility frontier, a heat map of two "
            "swept settings, every run with its status, and the ε of having looked at all runs, "
            "which the report of each run states from then on."
        ),
    )
    verb.add_argument("directory", type=Path, help="of the multirun: multirun/DATE/TIME")
    verb.add_argument(
        "--tensorboard", type=Path, help="write every run's metrics here too (extra `tracker`)"
    )
    verb.set_defaults(answer=_sweep)


def show(sweep: Any, console: Console, *, cost: Any, problem: str) -> None:
    """Print the runs, the means and the cost of a sweep.

    Args:
        sweep: A `Sweep`.
        console: Where to print.
        cost: A `SweepCost`, or None.
        problem: Why there is no cost.
    """
    from dpfed_kan.sweep import METRICS, groups
    from dpfed_kan.sweep_page import cost_line, status_line, with_deviation

    table = Table(title="Runs", title_justify="left")
    for name in ("run", "settings", "status", "reason"):
        table.add_column(name, overflow="fold")
    for run in sweep.runs:
        style = None if run.status == "ok" else "bold red"
        table.add_row(run.path.name, sweep.shown(run), run.status, run.reason, style=style)
    console.print(table)
    found = groups(sweep)
    if found:
        means = Table(title="Mean ± sd over seeds (held-out: not private)", title_justify="left")
        for name in (*sweep.swept, "runs", *METRICS, "frontier"):
            means.add_column(name, justify="left" if name in sweep.swept else "right")
        for group in found:
            means.add_row(
                *(str(group.settings[name]) for name in sweep.swept),
                str(group.num_runs),
                *(with_deviation(group, name) for name in METRICS),
                "yes" if group.on_frontier else "",
            )
        console.print(means)
    console.print(status_line(sweep), style="bold", highlight=False)
    console.print(cost_line(cost, problem), style="bold", highlight=False)


def cost_of(sweep: Any) -> tuple[Any, str]:
    """Return a sweep's composed cost, or None and why it could not be found."""
    from dpfed_kan.sweep_cost import composed_cost

    try:
        return composed_cost(sweep), ""
    except ValueError as error:
        return None, str(error)


def _sweep(options: argparse.Namespace) -> None:
    from dpfed_kan.sweep import read_sweep
    from dpfed_kan.sweep_cost import leave_cost
    from dpfed_kan.sweep_page import as_csv, as_html

    sweep = read_sweep(options.directory)
    cost, problem = cost_of(sweep)
    leave_cost(sweep, cost)
    page = as_html(sweep, cost=cost, cost_problem=problem)
    console = Console()
    show(sweep, console, cost=cost, problem=problem)
    for name, text in (("sweep.csv", as_csv(sweep)), ("sweep.html", page)):
        path = options.directory / name
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ValueError(f"{path} cannot be written: {os.strerror(error.errno or 0)}") from None
        console.print(f"Saved in {path}", highlight=False, soft_wrap=True)
    if options.tensorboard is not None:
        from dpfed_kan.tracker import write_events

        number = write_events(sweep, options.tensorboard)
        console.print(f"{number} runs written to {options.tensorboard}", highlight=False)
