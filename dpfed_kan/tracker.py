"""The numbers of a sweep for TensorBoard: those of metrics.jsonl and report.json, and no others."""

from __future__ import annotations

import json
import math
from pathlib import Path

from dpfed_kan.sweep import Sweep

_NEEDS = "--tensorboard needs the extra: pip install 'dpfed-kan[tracker]'"


def write_events(sweep: Sweep, log_dir: Path) -> int:
    """Write each run's metrics as TensorBoard scalars, by round, and return how many runs had any.

    Args:
        sweep: As read from its directory.
        log_dir: One directory a run is made in it.

    Raises:
        ValueError: If tensorboardX is not installed, or the directory holds events of such runs.
    """
    try:
        from tensorboardX import SummaryWriter
    except ModuleNotFoundError:
        raise ValueError(_NEEDS) from None
    written = 0
    for run in sweep.runs:
        metrics = run.path / "metrics.jsonl"
        if not metrics.is_file():
            continue
        target = log_dir / run.path.name
        if list(target.glob("events.out.tfevents.*")):
            raise ValueError(f"{target} holds events already: give a new directory")
        with SummaryWriter(str(target)) as writer:
            for line in metrics.read_text(encoding="utf-8").splitlines(keepends=True):
                if line.endswith("\n"):
                    _write(writer, json.loads(line))
            for name, value in run.metrics.items():
                if math.isfinite(value):
                    writer.add_scalar(f"final/{name}", value, 0)
            writer.add_text("settings", " ".join(run.overrides), 0)
        written += 1
    return written


def _write(writer: object, row: dict[str, object]) -> None:
    for name, value in row.items():
        if name != "round" and isinstance(value, int | float):
            writer.add_scalar(name, value, row["round"])  # type: ignore[attr-defined]
