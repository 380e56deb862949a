"""`dpfed-kan check-data` and `plan`: what a file holds, and who would hold what."""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from rich.console import Console
from rich.table import Table as Shown

from dpfed_kan.config import build, drop_interpolated
from dpfed_kan.data.encoding import encode, encoded_names
from dpfed_kan.data.findings import row_numbers
from dpfed_kan.data.reader import Table, read_table
from dpfed_kan.data.schema import Schema
from dpfed_kan.schema_file import load_schema
from dpfed_kan.sites.plan import Plan, read_plan

if TYPE_CHECKING:
    from dpfed_kan.experiment import Experiment

_FEW = 20


def add_check_data(verbs: Any) -> None:
    """Add the verb to the command's parser."""
    verb = verbs.add_parser(
        "check-data",
        help="what would be accepted of a file",
        description=(
            "Check a file against the schema that the sites agreed on. The answer holds columns, "
            "counts and row numbers (a header line is row 1), never a value. It is about the "
            "site's own records: for the site's own eyes."
        ),
    )
    verb.add_argument("schema", type=Path, help="the agreed schema, YAML")
    verb.add_argument("file", type=Path, help="the site's delimited file")
    verb.add_argument("--json", action="store_true", help="print JSON")
    verb.set_defaults(answer=_check_data)


def add_plan(verbs: Any) -> None:
    """Add the verb to the command's parser."""
    verb = verbs.add_parser(
        "plan",
        help="what sites would approve, who would hold what, at which ε",
        description=(
            "Show each site's n_k, class shares, q_k and ε_k before training, then the plan, which "
            "is all that touches privacy, and its hash, for a site's allowed_plans. The "
            "configuration is a run's config.yaml, or what `python -m simulations.run --cfg job "
            "--resolve` prints. With seed: null every plan draws its own partition. Of a plan that "
            "was saved (.json) the plan and its hash are shown."
        ),
    )
    verb.add_argument("config", type=Path, help="a resolved configuration, YAML; or a saved plan")
    verb.add_argument("--save", type=Path, help="write the plan here (.json), to send to the sites")
    verb.add_argument("--plot", type=Path, help="write a heat map (extra `plots`)")
    verb.add_argument("--json", action="store_true", help="print JSON")
    verb.set_defaults(answer=_plan)


def _plan(options: argparse.Namespace) -> None:
    # what the other verbs need not wait for
    from dpfed_kan.planning import as_table, plan_sites, save_heat_map

    console = Console()
    if options.config.suffix == ".json":
        _show_plan(read_plan(_text(options.config)), options)
        return
    experiment = load_experiment(options.config)
    planned = plan_sites(experiment)
    if options.plot is not None:
        save_heat_map(planned.rows, options.plot)
    if options.json:
        sites = [{**asdict(row), "epsilon": _json_number(row.epsilon)} for row in planned.rows]
        _show_plan(planned.plan, options, sites=sites, left_out=dict(planned.left_out))
        return
    console.print(as_table(planned.rows, unit=experiment.privacy.privacy_unit))
    for site, reason in planned.left_out.items():
        console.print(f"{site} takes no part: {reason}", style="bold", highlight=False)
    _show_plan(planned.plan, options)


def _show_plan(plan: Plan, options: argparse.Namespace, **more: Any) -> None:
    shown = json.dumps(plan.as_plain(), indent=2, sort_keys=True)
    if options.save is not None:
        try:
            options.save.write_text(shown + "\n", encoding="utf-8")
        except OSError as error:
            raise ValueError(f"{options.save} cannot be written: {error.strerror}") from None
    if options.json:
        found = more | {"plan": plan.as_plain(), "plan_sha256": plan.sha256}
        print(json.dumps(found, indent=2, ensure_ascii=False, allow_nan=False))
        return
    print(shown)
    print(f"plan hash: {plan.sha256}")


def load_experiment(path: Path) -> Experiment:
    """Return the experiment of a resolved configuration, or of a run's directory.

    Raises:
        ValueError: If there is none, or it cannot be built; every problem is named.
    """
    experiment: Experiment = build(_settings(path / "config.yaml" if path.is_dir() else path))
    return experiment


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path.absolute()} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not text in UTF-8") from None


def _settings(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(_text(path))
    except yaml.YAMLError:
        raise ValueError(f"{path} is not a YAML file in UTF-8") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no configuration")
    content.pop("resume", None)
    drop_interpolated(content)
    return content


def _json_number(number: float) -> float | str:
    return "infinity" if math.isinf(number) else number


def _check_data(options: argparse.Namespace) -> None:
    schema = load_schema(options.schema)
    table = read_table(options.file, schema)
    found = _found(table, schema)
    if options.json:
        print(json.dumps(found, indent=2, ensure_ascii=False, allow_nan=False))
    else:
        _show(table, found)
    if table.fatal:
        sys.exit(1)
    if not found["accepted"]:
        raise ValueError(f"{options.file}: no usable rows")


def _found(table: Table, schema: Schema) -> dict[str, Any]:
    accepted = None if table.fatal else encode(table, schema)
    positive = classes = None
    if accepted is not None and schema.label.classes:
        counts = np.bincount(accepted.labels.astype(np.intp), minlength=schema.label.num_classes)
        classes = {
            each.name: int(count) for each, count in zip(schema.label.classes, counts, strict=True)
        }
    elif accepted is not None:
        positive = int((accepted.labels > 0).sum())
    return {
        "rows": table.num_rows,
        "accepted": 0 if accepted is None else len(accepted),
        "refused": bool(table.fatal),
        "features": list(encoded_names(schema)),
        "positive": positive,
        "classes": classes,
        "patients": None if table.patients is None else len(set(table.patients.tolist())),
        "findings": [{**asdict(finding), "count": len(finding.rows)} for finding in table.findings],
    }


def _show(table: Table, found: dict[str, Any]) -> None:
    console = Console()
    if table.findings:
        shown = Shown(title="What is odd", title_justify="left")
        for name in ("column", "what", "count", "where", ""):
            shown.add_column(name, justify="right" if name == "count" else "left")
        for finding in table.findings:
            where = (
                "every row" if len(finding.rows) == table.num_rows else row_numbers(finding.rows)
            )
            shown.add_row(
                finding.column or "(whole rows)",
                finding.kind,
                str(len(finding.rows)),
                where,
                "refused" if finding.fatal else "",
            )
        console.print(shown)
    if found["refused"]:
        console.print(
            f"Refused: of {found['rows']} rows none would be used until the lines marked refused "
            "are put right, in the file or in the schema.",
            style="bold red",
            highlight=False,
        )
        return
    patients = "" if found["patients"] is None else f" of {found['patients']} patients"
    labels = f"{found['positive']} positive"
    if found["classes"] is not None:
        labels = ", ".join(f"{count} {name}" for name, count in found["classes"].items())
    console.print(
        f"Accepted: {found['accepted']} of {found['rows']} rows{patients}, {labels}, encoded into "
        f"{len(found['features'])} columns.",
        style="bold",
        highlight=False,
    )
    if found["accepted"] < _FEW:
        console.print(
            f"Fewer than {_FEW} records: by default a federation refuses such a site.",
            highlight=False,
        )
