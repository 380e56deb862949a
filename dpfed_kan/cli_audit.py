"""`dpfed-kan audit`: an empirical lower bound on ε beside the account's upper one."""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from dpfed_kan.cli_data import load_experiment
from dpfed_kan.streams import Streams

if TYPE_CHECKING:
    from dpfed_kan.auditing import Audit, Found

FILE_NAME = "audit.json"


def add_audit(verbs: Any) -> None:
    """Add the verb to the command's parser."""
    verb = verbs.add_parser(
        "audit",
        help="a lower bound on ε, measured, beside the account's",
        description=(
            "Plant canaries in simulated runs of the configuration's own server, sites, clip, "
            "noise and update rule, and report the ε that an adversary's success proves (95 % "
            "confidence), beside the accounted ε. Random batches are replaced by full ones at the "
            "same target, where an audit is tight. Every audit is repeated with the noise halved "
            "and with the clip off, to show whether it would notice."
        ),
    )
    verb.add_argument(
        "config",
        type=Path,
        help="a run's directory, whose audit.json is written; or a resolved configuration, YAML",
    )
    verb.add_argument(
        "--runs", type=int, default=1000, help="of the two-run form; 0: without; default 1000"
    )
    verb.add_argument(
        "--rounds", type=int, default=20, help="of each of these runs, at most; default 20"
    )
    verb.add_argument(
        "--canaries", type=int, default=400, help="of the one-run form; 0: without; default 400"
    )
    verb.add_argument(
        "--keep-sampling", action="store_true", help="audit random batches as they are: not tight"
    )
    verb.add_argument("--seed", type=int, help="of the audit; else the configuration's")
    verb.add_argument("--save", type=Path, help="write the result here, JSON")
    verb.add_argument("--json", action="store_true", help="print JSON")
    verb.set_defaults(answer=_audit)


def as_json(found: Audit) -> dict[str, Any]:
    """Return an audit as plain data for audit.json."""
    return {
        "audited": found.audited,
        "note": found.note,
        "delta": found.delta,
        "confidence": found.confidence,
        "agrees": not found.found.exceeding,
        "would_notice": {bug: list(seen.exceeding) for bug, seen in found.controls.items()},
        "found": _plain(found.found),
        "controls": {bug: _plain(seen) for bug, seen in found.controls.items()},
    }


def _plain(found: Found) -> dict[str, Any]:
    plain = asdict(found)
    for form in plain.values():
        for name, value in (form or {}).items():
            if isinstance(value, float) and math.isinf(value):
                form[name] = "infinity"
    return plain


def _audit(options: argparse.Namespace) -> None:
    from dpfed_kan.auditing import audit  # what the other verbs need not wait for

    found = audit(
        load_experiment(options.config),
        num_runs=options.runs,
        num_rounds=options.rounds,
        num_canaries=options.canaries,
        keep_sampling=options.keep_sampling,
        streams=None if options.seed is None else Streams.from_seed(options.seed),
    )
    text = json.dumps(as_json(found), indent=2, ensure_ascii=False, allow_nan=False)
    targets = [options.save] if options.save else []
    if options.config.is_dir():
        targets.append(options.config / FILE_NAME)
    for target in targets:
        _write(target, text)
    if options.json:
        print(text)
    else:
        _show(found, Console(), targets)
    if found.found.exceeding:
        sys.exit(
            "error: a lower bound exceeds the account's ε. By chance that happens in at most one "
            "audit of twenty: audit again with other randomness; if it happens again, ε is wrong"
        )


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.write_text(text + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}") from None


def _show(found: Audit, console: Console, targets: list[Path]) -> None:
    console.print(f"Audited: {found.audited}. {found.note}.", highlight=False)
    table = Table(
        title=f"ε at δ={found.delta:g}, {found.confidence:.0%} confidence", title_justify="left"
    )
    for name in ("form", "ε measured ≥", "ε accounted ≤", "unwhitened ≥", "taken for in, or right"):
        table.add_column(name, justify="left" if name.startswith(("form", "taken")) else "right")
    _add_rows(table, found.found, "")
    for bug, seen in found.controls.items():
        table.add_section()
        _add_rows(table, seen, f", {bug}")
    console.print(table)
    two, one = found.found.two_run, found.found.one_run
    if two is not None:
        console.print(
            f"two-run: independent runs of {two.num_rounds} rounds in a small federation; "
            f"{two.method}.",
            highlight=False,
        )
    if one is not None:
        console.print(
            f"one-run: {one.num_canaries} canaries in one run of {one.num_rounds} rounds beside "
            "the configuration's own records (Steinke et al. 2023); valid, and less tight.",
            highlight=False,
        )
    for bug, seen in found.controls.items():
        by = " and ".join(seen.exceeding)
        if by:
            console.print(f"This audit would notice: {bug} (by the {by} form).", highlight=False)
        else:
            console.print(
                f"This audit would NOT notice: {bug}. Give it more --runs or --canaries.",
                style="bold red",
                highlight=False,
            )
    for target in targets:
        console.print(f"Saved in {target}", highlight=False, soft_wrap=True)


def _add_rows(table: Table, found: Found, bug: str) -> None:
    two, one = found.two_run, found.one_run
    if two is not None:
        rates = two.rates
        of_in = f"{rates.true_positives}/{rates.num_in} in"
        table.add_row(
            f"two-run{bug}",
            f"{two.epsilon_lower:.3f}",
            f"{two.epsilon:.3f}",
            f"{two.unwhitened:.3f}",
            f"{of_in}, {rates.false_positives}/{rates.num_out} out",
        )
    if one is not None:
        table.add_row(
            f"one-run{bug}",
            f"{one.epsilon_lower:.3f}",
            f"{one.epsilon:.3f}",
            "",
            f"{one.num_correct}/{one.num_guesses} of {one.num_canaries}",
        )
