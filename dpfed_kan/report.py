"""What was guaranteed and what was measured: report.json, and the table at the end of a run."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from dpfed_kan import __version__
from dpfed_kan.assessment import SMALLEST_BIN, Assessment, Quality
from dpfed_kan.data.schema import Schema
from dpfed_kan.page.page import as_page
from dpfed_kan.privacy.accounting import NonPrivate
from dpfed_kan.run import Run, inspect
from dpfed_kan.run_directory import RunDirectory
from dpfed_kan.statement import curves
from dpfed_kan.statement.groups import accuracy_differences, plain, statement
from dpfed_kan.statement.provenance import file_sha256

FORMAT = 2
_NOT_PRIVATE = (
    "measured on held-out records without noise: these numbers are facts about those records and "
    "are not covered by the guarantee"
)


def sentence(run: Run) -> str:
    """Return the guarantee of a run in one sentence, with the source of its noise."""
    if isinstance(run.guarantee, NonPrivate):
        return f"{run.guarantee.sentence}."
    source = (
        "noise SEEDED: a simulation, anybody with the seed can remove the noise"
        if run.seeded
        else "noise from the operating system's entropy"
    )
    return f"{run.guarantee.sentence}; {source}."


def as_json(run: Run) -> dict[str, Any]:
    """Return the report as plain data: what is private apart from what is not."""
    guarantee = run.guarantee
    worst = max(run.epsilon_per_site, key=lambda site: run.epsilon_per_site[site])
    stated: dict[str, Any] = {"private": not isinstance(guarantee, NonPrivate)}
    stated |= {"epsilon": _json_number(guarantee.epsilon), "sentence": sentence(run)}
    if not isinstance(guarantee, NonPrivate):
        stated |= {
            "delta": guarantee.delta,
            "unit": guarantee.unit,
            "neighboring_relation": guarantee.neighboring_relation,
            "sampling": guarantee.sampling,
            "noise": guarantee.noise,
            "noise_multiplier": guarantee.noise_multiplier,
            "trust": guarantee.trust,
            "accountant": guarantee.best.method,
            "assumption": guarantee.best.assumption,
            "independent_check": guarantee.check,
            "bounds_tried": [asdict(bound) for bound in guarantee.tried],
        }
    stated |= {
        "num_rounds": guarantee.num_rounds,
        "worst_site": worst,
        "epsilon_per_site": {
            site: _json_number(epsilon) for site, epsilon in run.epsilon_per_site.items()
        },
        "noise_source": "seeded" if run.seeded else "operating system entropy",
    }
    report = {
        "format": FORMAT,
        "guarantee": stated,
        "statement": statement(run),
        "curves": _curves(run),
        "private": {"share_projected": run.share_projected},
        "public": {"num_records": dict(run.num_records), "left_out": dict(run.left_out)},
        "diagnostics_not_private": _diagnostics(run.assessment),
        "run": {
            "finished": run.finished,
            "seconds": round(run.seconds, 3),
            "made_at": datetime.now(tz=UTC).isoformat(timespec="seconds"),
            "version": __version__,
            "python": platform.python_version(),
        },
    }
    found: dict[str, Any] = plain(report)
    return found


def save(directory: RunDirectory, report: Mapping[str, Any]) -> None:
    """Write a report for machines and for people: report.json and report.html."""
    directory.save_report(report)
    directory.save_page(as_page(report))


def of_directory(directory: RunDirectory, *, fresh: bool = False) -> dict[str, Any]:
    """Return the report of a run's directory: the one that lies there, or made anew.

    Args:
        directory: Of the run.
        fresh: Make it anew even if the one that lies there is of this very ledger.

    Raises:
        ValueError: If there is no run, or it has to be made anew and the data are gone.
    """
    if not fresh and directory.report_path.is_file():
        found = _read(directory.report_path)
        if (
            found.get("format") == FORMAT
            and found["run"]["finished"]
            and found["statement"]["provenance"]["ledger_sha256"]
            == file_sha256(directory.ledger_path)
        ):
            return found
    return as_json(inspect(directory.path))


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def print_report(run: Run, console: Console) -> None:
    """Print the table, the sentence, and where the results are."""
    table = Table(title="Result", title_justify="left")
    table.add_column("site")
    unit = run.experiment.privacy.privacy_unit
    table.add_column(f"{unit}s", justify="right")
    table.add_column("ε", justify="right")
    for site, epsilon in _shown(run.epsilon_per_site):
        records = str(run.num_records[site]) if site in run.num_records else ""
        table.add_row(site, records, epsilon)
    table.add_section()
    worst = max(run.epsilon_per_site.values())
    table.add_row("worst site", "", _number(worst), style="bold")
    console.print(table)
    for site, reason in sorted(run.left_out.items()):
        console.print(f"{site} takes no part: {reason}", style="bold", highlight=False)
    if run.assessment is not None:
        console.print(_quality_table(run.assessment))
    style = "bold red" if math.isinf(run.guarantee.epsilon) else "bold"
    console.print(sentence(run), style=style, highlight=False)
    directory = run.directory
    console.print(f"Results in {directory.path}:", highlight=False, soft_wrap=True)
    for path, what in (
        (directory.page_path, "this report for a review board: one page, to be mailed"),
        (directory.report_path, "this report for machines"),
        (directory.metrics_path, "metrics per round"),
        (directory.ledger_path, "every release"),
        (directory.checkpoint_path, "the model"),
        (directory.config_path, "the resolved configuration"),
    ):
        console.print(f"  {path.name:18} {what}", highlight=False)


_SITES_SHOWN = 12


def _curves(run: Run) -> dict[str, Any]:
    state = run.directory.load_checkpoint()
    schema = getattr(run.experiment.data.source, "schema", None)
    return {
        "rounds": curves.rounds(
            run.directory.read_metrics(), num_rounds=0 if state is None else state.num_steps
        ),
        "noise": curves.noise(run.plan.mechanism),
        "edges": curves.edges(
            run.experiment.model,
            state,
            run.feature_names,
            schema if isinstance(schema, Schema) else None,
        ),
    }


def _diagnostics(found: Assessment | None) -> dict[str, Any]:
    if found is None:
        return {"note": "the server holds no records, so that there is nothing to measure on"}
    return {
        "note": _NOT_PRIVATE,
        **asdict(found.pooled),
        "per_site": {site: asdict(quality) for site, quality in found.per_site.items()},
        "mean_over_sites": {
            "accuracy": found.mean_accuracy,
            "auc": found.mean_auc,
            "num_sites": len(found.per_site),
            "num_sites_with_auc": found.num_sites_with_auc,
        },
        "reliability": [asdict(each) for each in found.reliability],
        "smallest_bin": SMALLEST_BIN,
        "accuracy_differences": accuracy_differences(found),
    }


def _quality_table(found: Assessment) -> Table:
    title = f"Held-out records ({found.pooled.num_records}), not private; base rate: majority class"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("site")
    headings = ("n", "accuracy", "AUC", "base rate", "ECE", "loss")
    for name in headings:
        table.add_column(name, justify="right", no_wrap=name in ("accuracy", "AUC"))
    for site, quality in list(sorted(found.per_site.items()))[:_SITES_SHOWN]:
        table.add_row(site, *_cells(quality))
    if len(found.per_site) > _SITES_SHOWN:
        table.add_row(f"and {len(found.per_site) - _SITES_SHOWN} more")
    table.add_section()
    if found.mean_accuracy is not None:
        auc = "undefined" if found.mean_auc is None else f"{found.mean_auc:.3f}"
        of = f"{auc} ({found.num_sites_with_auc} of {len(found.per_site)})"
        table.add_row("mean over sites", "", f"{found.mean_accuracy:.3f}", of)
    table.add_row("all", *_cells(found.pooled), style="bold")
    return table


def _cells(found: Quality) -> tuple[str, ...]:
    auc = "undefined" if found.auc is None else _with_interval(found.auc, found.auc_interval)
    return (
        str(found.num_records),
        _with_interval(found.accuracy, found.accuracy_interval),
        auc,
        _with_interval(found.base_rate, None),
        _with_interval(found.calibration_error, None),
        f"{found.loss:.3f}",
    )


def _with_interval(value: float | None, interval: tuple[float, float] | None) -> str:
    if value is None:
        return "none"
    return f"{value:.3f}" + (f" [{interval[0]:.2f}, {interval[1]:.2f}]" if interval else "")


def _shown(epsilon_per_site: Any) -> list[tuple[str, str]]:
    sites = [(site, _number(epsilon)) for site, epsilon in sorted(epsilon_per_site.items())]
    if len(sites) <= _SITES_SHOWN:
        return sites
    return [*sites[:_SITES_SHOWN], (f"and {len(sites) - _SITES_SHOWN} more", "")]


def _number(epsilon: float) -> str:
    return "∞" if math.isinf(epsilon) else f"{epsilon:.3f}"


def _json_number(epsilon: float) -> float | str:
    return "infinity" if math.isinf(epsilon) else epsilon
