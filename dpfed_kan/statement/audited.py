"""What an audit of a run has found, from the audit.json that `dpfed-kan audit` left beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FILE_NAME = "audit.json"
_NOT_RUN = (
    "an audit plants known records in a simulation and gives a lower bound on ε to set beside the "
    "upper bound: dpfed-kan audit"
)


def audit_of(directory: Path) -> dict[str, Any]:
    """Return the audit of a run's directory, or that there was none.

    Raises:
        ValueError: If audit.json is not what `dpfed-kan audit` writes.
    """
    path = directory / FILE_NAME
    if not path.is_file():
        return {"run": False, "note": _NOT_RUN}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {
            "run": True,
            "note": f"{found['audited']}. {found['note']}",
            "delta": found["delta"],
            "confidence": found["confidence"],
            "agrees": found["agrees"],
            "bounds": [
                *_bounds(found["found"], "as it is"),
                *(b for bug, seen in found["controls"].items() for b in _bounds(seen, bug)),
            ],
        }
    except (KeyError, TypeError, AttributeError, ValueError):
        raise ValueError(
            f"{path} is not what `dpfed-kan audit` writes: audit the run again, or remove it"
        ) from None


def _bounds(found: dict[str, Any], what: str) -> Iterator[dict[str, Any]]:
    for form in ("two_run", "one_run"):
        if found[form] is not None:
            yield {
                "mechanism": what,
                "form": form.replace("_", "-"),
                "epsilon_lower": found[form]["epsilon_lower"],
                "epsilon": found[form]["epsilon"],
            }
