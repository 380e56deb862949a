"""`dpfed-kan report`: a run's report as one page for people and as JSON for machines."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def add_report(verbs: Any) -> None:
    """Add the verb to the command's parser."""
    verb = verbs.add_parser(
        "report",
        help="a run's report: one page for a review board, and JSON",
        description=(
            "Write report.html, one page that needs nothing else, and report.json beside it, into "
            "a run's directory. A run that is unfinished, or going on elsewhere, is reported as "
            "far as it has come; its other files are not touched."
        ),
    )
    verb.add_argument("run", type=Path, help="the run's directory")
    verb.add_argument(
        "--site-ledger",
        type=Path,
        action="append",
        default=[],
        help="the ledger of a site that took part, for ε to date; may be repeated",
    )
    verb.add_argument(
        "--policy",
        type=Path,
        help="the policy of the site whose ledger is given, for what is left of its budget",
    )
    verb.add_argument(
        "--fresh", action="store_true", help="measure and account again, from the run's files"
    )
    verb.add_argument("--json", action="store_true", help="print the JSON too")
    verb.set_defaults(answer=_report)


def _report(options: argparse.Namespace) -> None:
    # what the other verbs need not wait for
    from dpfed_kan.policy_file import load_policy
    from dpfed_kan.report import of_directory, save
    from dpfed_kan.run_directory import RunDirectory
    from dpfed_kan.statement.audited import audit_of
    from dpfed_kan.statement.groups import plain
    from dpfed_kan.statement.to_date import spent_to_date
    from dpfed_kan.statement.tuned import tuning_of

    if options.policy is not None and len(options.site_ledger) != 1:
        raise ValueError("--policy is of one site: give its ledger, and only that, --site-ledger")
    directory = RunDirectory(options.run)
    report = of_directory(directory, fresh=options.fresh)
    report["statement"]["audit"] = audit_of(directory.path)  # made after the run, as is the next
    report["statement"]["tuning"] = plain(tuning_of(directory.path))
    policy = None if options.policy is None else load_policy(options.policy)
    plan = report["statement"]["provenance"]["plan_sha256"]
    report["statement"]["spent"]["to_date"] = [
        spent_to_date(path, plan_sha256=plan, policy=policy) for path in options.site_ledger
    ] or None
    save(directory, report)
    if options.json:
        print(json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False))
        return
    print(f"{directory.page_path}: {directory.page_path.stat().st_size / 1000:.0f} kB, one file")
    print(f"{directory.report_path}: the same for machines")
