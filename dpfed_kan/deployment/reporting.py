"""The report of a run over real sites: the same as a simulation's, and who contributed zero."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from rich.console import Console

from dpfed_kan.assessment import Quality
from dpfed_kan.deployment.training import Deployment
from dpfed_kan.report import as_json, print_report

_GREATEST = 1e12  # of a measurement; NaN is not less
_NONE = "none: metrics leave a site only where the study asks for them and the site allows it"
_NOT_PRIVATE = (
    "measured by each site on its own held-out records without noise: these numbers are facts "
    "about those records and are not covered by the guarantee"
)


def deployment_as_json(found: Deployment) -> dict[str, Any]:
    """Return the report as plain data."""
    report = as_json(found.run)
    report["diagnostics_not_private"] = {
        "note": _NOT_PRIVATE if found.metrics else _NONE,
        "per_site": {site: measured(metrics) for site, metrics in found.metrics.items()},
    }
    runtime = found.run.experiment.runtime
    report["deployment"] = {
        "transport": getattr(runtime, "transport", None),
        "on_bad_reply": getattr(runtime, "on_bad_reply", None),
        "rounds_contributed_zero": dict(found.zeroed),
        "seconds_per_round": found.seconds_per_round,
    }
    return report


def measured(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a site's answer is a measurement: a site may send whatever it likes."""
    return {
        field.name: metrics[field.name]
        for field in fields(Quality)
        if field.name in metrics and _fits(field.name, metrics[field.name])
    }


def _fits(name: str, value: object) -> bool:
    if value is None:
        return True
    if name == "auc_reason":
        return isinstance(value, str)
    if name.endswith("_interval"):
        return isinstance(value, list) and len(value) == 2 and all(map(_is_number, value))
    return _is_number(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _GREATEST


def print_deployment(found: Deployment, console: Console) -> None:
    """Print the report."""
    print_report(found.run, console)
    for site, count in sorted(found.zeroed.items()):
        console.print(f"{site} contributed zero to {count} rounds", style="bold", highlight=False)
    for site, metrics in sorted(found.metrics.items()):
        accuracy = metrics.get("accuracy")
        if isinstance(accuracy, float):
            console.print(f"{site}: held-out accuracy {accuracy:.3f}, not private", highlight=False)
    if found.seconds_per_round is not None:
        console.print(f"{found.seconds_per_round:.3f} s a round (median)", highlight=False)
