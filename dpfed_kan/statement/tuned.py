"""What choosing cost, from the sweep_cost.json that a sweep's summary left beside each run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

FILE_NAME = "sweep_cost.json"
_ALONE = (
    "what is stated is this run alone. If its settings were chosen after looking at other runs on "
    "the same records, the ε of those runs must be added: for a sweep, dpfed-kan sweep computes it"
)
_COMPOSED = (
    "the ε of this page is of this run alone. It is one of a sweep's runs, and if it was chosen "
    "because of what they showed, the figure to state is that of all runs that released anything, "
    "for the same unit and neighboring relation, if all were on the same records and the sweep was "
    "fixed before it began. Looks at these records outside the sweep are not in it"
)


def tuning_of(directory: Path) -> dict[str, Any]:
    """Return what is known of the choice of a run's settings.

    The ε of a run's report is never more than its own: what a sweep costs is stated beside it.

    Args:
        directory: Of the run.

    Returns:
        charged (of the run's own ε: never), note and, if a sweep's summary has left it, composed:
        epsilon and delta of all runs of the sweep, their number, rounds and accountant, what is
        protected, and how many share their noise with another (none, where ε is to hold).

    Raises:
        ValueError: If the file is not what a sweep's summary writes.
    """
    path = directory / FILE_NAME
    if not path.is_file():
        return {"charged": False, "note": _ALONE, "composed": None}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        composed = {
            "epsilon": math.inf if found["epsilon"] == "infinity" else float(found["epsilon"]),
            "delta": float(found["delta"]),
            "num_runs": int(found["num_runs"]),
            "num_rounds": int(found["num_rounds"]),
            "method": str(found["method"]),
            "protects": str(found["protects"]),
            "sharing_noise": int(found["sharing_noise"]),
        }
    except (KeyError, TypeError, ValueError):
        raise ValueError(
            f"{path} is not what the summary of a sweep writes: run dpfed-kan sweep again, or "
            "remove it"
        ) from None
    return {"charged": False, "note": _COMPOSED, "composed": composed}
