"""`dpfed-kan ledger`: what a site's records have paid, and whether its book is whole."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from dpfed_kan.sites.chain import Chain
from dpfed_kan.sites.entries import RunEntry, close_run, read_runs
from dpfed_kan.sites.spending import Charged, Spending, together
from dpfed_kan.sites.verifying import Verdict, verify

_SHORT = 12


def add_ledger(verbs: Any) -> None:
    """Add the verb to the command's parser."""
    verb = verbs.add_parser(
        "ledger",
        help="what a site's records have paid",
        description="Look at a site's ledger. None of this needs the site's key.",
    )
    asked = verb.add_subparsers(required=True, metavar="{show,verify,export,close}")
    for name, answer, text in (
        ("show", _show, "every run with what it is charged"),
        ("verify", _verify, "walk the chain; exit code 1 if a row is not as it was written"),
        ("export", _export, "every row as JSON, or every run as CSV"),
        (
            "close",
            _close,
            "end a run that stopped early: what it can no longer spend is given back",
        ),
    ):
        parser = asked.add_parser(name, help=text, description=text)
        parser.add_argument("path", type=Path, help="the ledger, an SQLite file")
        parser.set_defaults(answer=answer)
        if name == "show":
            parser.add_argument("--json", action="store_true", help="print JSON")
        if name == "export":
            parser.add_argument("--format", choices=("json", "csv"), default="json")
        if name == "close":
            parser.add_argument("run", help="its name, as `show` prints it")


@contextmanager
def _opened(options: argparse.Namespace) -> Iterator[tuple[Chain, Verdict]]:
    """Open a ledger whose rows can be relied on.

    Raises:
        ValueError: If a row is not as it was written.
    """
    with closing(Chain(options.path)) as chain:
        found = verify(chain)
        if found.bad_row is not None:
            raise ValueError(_problem(options.path, found))
        yield chain, found


def _verify(options: argparse.Namespace) -> None:
    with closing(Chain(options.path)) as chain:
        found = verify(chain)
    if found.bad_row is not None:
        sys.exit(f"error: {_problem(options.path, found)}")
    behind = ""
    if found.num_behind:
        behind = f"; {options.path.name}.heads lacks the last {found.num_behind}, as after a crash"
    print(f"{found.num_rows} rows, each as it was written{behind}")
    print(f"head: {found.head}")
    print("Note the head elsewhere: who may write both files can cut them alike, and only a head")
    print("that was noted shows it.")


def _problem(path: Path, found: Verdict) -> str:
    return f"{path}, row {found.bad_row}: {found.problem}"


def _show(options: argparse.Namespace) -> None:
    with _opened(options) as (chain, found):
        entries = read_runs(chain)
        totals = _totals(chain, entries)
    if options.json:
        shown = {
            "runs": [_facts(entry) for entry in entries],
            "data_sets": {name: asdict(total) for name, total in totals.items()},
            "head": found.head,
        }
        print(json.dumps(shown, indent=2, ensure_ascii=False, allow_nan=False))
        return
    table = Table(title=f"{len(entries)} runs")
    for name in ("run", "data set", "plan", "state", "rounds", "charged ε", "charged δ"):
        table.add_column(name, justify="left" if name in ("run", "state") else "right")
    for entry in entries:
        facts = _facts(entry)
        table.add_row(
            entry.run,
            entry.data_set[:_SHORT],
            facts["plan_sha256"][:_SHORT],
            facts["state"],
            f"{facts['rounds_answered']} of {facts['rounds_planned']}",
            f"{entry.charge.epsilon:.4f}",
            f"{entry.charge.delta:g}",
        )
    console = Console()
    console.print(table)
    summed = Table(title="By data set, with all runs that share a record or patient with it")
    for name in ("data set", "runs", "ε", "δ"):
        summed.add_column(name, justify="right")
    for name, total in totals.items():
        summed.add_row(
            name[:_SHORT], str(total.num_runs), f"{total.epsilon:.4f}", f"{total.delta:g}"
        )
    console.print(summed)
    console.print(
        "Charges on the same records add up, whatever was chosen after seeing what; open runs are "
        "charged as if they ended. A complete run costs the same closed or not.",
        highlight=False,
    )
    console.print(f"head: {found.head}", highlight=False, soft_wrap=True)


def _totals(chain: Chain, entries: list[RunEntry]) -> dict[str, Spending]:
    """Return what the runs on each data set, and on those that overlap it, add up to."""
    totals = {}
    for name in dict.fromkeys(entry.data_set for entry in entries):
        sharing = chain.overlapping(name)
        runs = [
            Charged(plan=entry.plan, site=entry.site, charge=entry.charge, whole=entry.whole)
            for entry in entries
            if entry.data_set in sharing
        ]
        totals[name] = together(runs, plans_chosen="adaptively", budget_delta=1.0)
    return totals


def _export(options: argparse.Namespace) -> None:
    with _opened(options) as (chain, _):
        rows, entries = chain.rows(), read_runs(chain)
    if options.format == "csv":
        writer = csv.DictWriter(sys.stdout, fieldnames=list(_FACTS), lineterminator="\n")
        writer.writeheader()
        writer.writerows(_facts(entry) for entry in entries)
        return
    found = [
        {
            "number": row.number,
            "before": row.before,
            "hash": row.hash,
            "content": json.loads(row.content),
        }
        for row in rows
    ]
    print(json.dumps(found, indent=2, allow_nan=False))


def _close(options: argparse.Namespace) -> None:
    with _opened(options) as (chain, _):
        entry = close_run(chain, options.run)
    print(
        f"{entry.run} is closed and charged ε={entry.charge.epsilon:.4g} at "
        f"δ={entry.charge.delta:g}, as {entry.charge.num_rounds} rounds ({entry.charge.method})"
    )


_FACTS = (
    "run",
    "site",
    "data_set",
    "plan_sha256",
    "state",
    "rounds_answered",
    "rounds_planned",
    "rounds_charged",
    "epsilon",
    "delta",
    "method",
)


def _facts(entry: RunEntry) -> dict[str, Any]:
    values = (
        entry.run,
        entry.site,
        entry.data_set,
        entry.plan.sha256,
        _state(entry),
        0 if entry.last_round is None else entry.last_round + 1,
        entry.whole.num_rounds,
        entry.charge.num_rounds,
        entry.charge.epsilon,
        entry.charge.delta,
        entry.charge.method,
    )
    return dict(zip(_FACTS, values, strict=True))


def _state(entry: RunEntry) -> str:
    if entry.closed is not None:
        return "closed"
    return "complete" if entry.complete else "open"
