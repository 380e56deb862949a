"""A sweep as its directory tells it: every run, means over seeds, the frontier."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal

import yaml

Status = Literal["ok", "failed", "unfinished"]
Value = str | float | int | bool | None
JOBS_FILE, ERROR_LOG = "sweep.json", "error.log"
METRICS = ("epsilon", "accuracy", "auc", "loss", "seconds")
_SEED = "seed"


@dataclass(frozen=True, kw_only=True)
class SweptRun:
    """One run of a sweep.

    Args:
        path: Its directory.
        overrides: As the sweep gave them; empty if the sweep left no plan.
        status: ok, failed (its error.log says why), or unfinished: broken off, or not begun.
        reason: Of a failure, its last line.
        settings: Name to value: of the overrides, or where there are none all of config.yaml;
            empty if it failed before it had any.
        metrics: Of `METRICS`, those that it has.
    """

    path: Path
    overrides: tuple[str, ...]
    status: Status
    reason: str
    settings: Mapping[str, Value]
    metrics: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Group:
    """Finished runs that differ in their seed alone.

    Args:
        settings: The swept settings besides the seed.
        num_runs: How many.
        means: Metric to mean.
        deviations: Metric to sample standard deviation; of two runs or more.
        on_frontier: Whether no other group has a smaller ε with at least its utility.
    """

    settings: Mapping[str, Value]
    num_runs: int
    means: Mapping[str, float]
    deviations: Mapping[str, float]
    on_frontier: bool = False


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """All runs of a sweep.

    Args:
        path: Its directory.
        runs: In the order of their numbers.
        swept: Dotted names of the settings that differ between runs, the seed left out.
    """

    path: Path
    runs: tuple[SweptRun, ...]
    swept: tuple[str, ...]

    def shown(self, run: SweptRun) -> str:
        """Return the overrides of a run that tell it from the others."""
        shared = set(run.overrides).intersection(*(other.overrides for other in self.runs))
        return " ".join(word for word in run.overrides if word not in shared)

    def count(self, status: Status) -> int:
        """Return how many runs have a status."""
        return sum(run.status == status for run in self.runs)


def read_sweep(path: Path) -> Sweep:
    """Read what a multirun has left so far.

    Raises:
        ValueError: If there is no sweep.
    """
    jobs = _jobs(path)
    found = {run_dir: tuple(overrides) for run_dir, overrides in jobs}
    for name in ("config.yaml", ERROR_LOG):
        for file in path.glob(f"*/{name}"):
            found.setdefault(file.parent, ())
    if not found:
        raise ValueError(
            f"{path.absolute()} holds no runs of a sweep: give the directory of a multirun, as "
            "multirun/DATE/TIME"
        )
    runs = tuple(_read_run(run_dir, found[run_dir]) for run_dir in sorted(found, key=_number))
    names = sorted({name for run in runs for name in run.settings})
    settled = [run for run in runs if run.settings]
    swept = tuple(
        name
        for name in names
        if name != _SEED and len({repr(run.settings.get(name)) for run in settled}) > 1
    )
    return Sweep(path=path, runs=runs, swept=swept)


def groups(sweep: Sweep) -> tuple[Group, ...]:
    """Return mean ± sd over seeds of the finished runs, by the other swept settings."""
    members: dict[tuple[Value, ...], list[SweptRun]] = {}
    for run in sweep.runs:
        if run.status == "ok":
            key = tuple(run.settings.get(name) for name in sweep.swept)
            members.setdefault(key, []).append(run)
    found = []
    for key, runs in members.items():
        values = {
            name: [run.metrics[name] for run in runs]
            for name in METRICS
            if all(name in run.metrics for run in runs)
        }
        found.append(
            Group(
                settings=dict(zip(sweep.swept, key, strict=True)),
                num_runs=len(runs),
                means={name: mean(numbers) for name, numbers in values.items()},
                deviations={
                    name: stdev(numbers) if all(map(math.isfinite, numbers)) else 0.0
                    for name, numbers in values.items()
                    if len(numbers) > 1
                },
            )
        )
    return tuple(replace(group, on_frontier=_undominated(group, found)) for group in found)


def utility(group: Group) -> tuple[str, float] | None:
    """Return the metric that runs are compared by and its mean, larger is better."""
    if "accuracy" in group.means:
        return "accuracy", group.means["accuracy"]
    return ("loss", -group.means["loss"]) if "loss" in group.means else None


def _undominated(group: Group, others: Sequence[Group]) -> bool:
    own = utility(group)
    if own is None or "epsilon" not in group.means:
        return False
    for other in others:
        theirs = utility(other)
        if other is group or theirs is None or theirs[0] != own[0]:
            continue
        epsilon, mine = other.means["epsilon"], group.means["epsilon"]
        if epsilon <= mine and theirs[1] >= own[1] and (epsilon, theirs[1]) != (mine, own[1]):
            return False
    return True


def _jobs(path: Path) -> list[tuple[Path, list[str]]]:
    """Return directory and overrides of every job that the sweep planned."""
    try:
        content = json.loads((path / JOBS_FILE).read_text(encoding="utf-8"))
        return [(path / str(job["dir"]), list(job["overrides"])) for job in content["jobs"]]
    except FileNotFoundError:
        return []
    except (OSError, json.JSONDecodeError, KeyError, TypeError):
        raise ValueError(f"{path / JOBS_FILE} is not a plan of a sweep") from None


def _read_run(path: Path, overrides: tuple[str, ...]) -> SweptRun:
    settings: dict[str, Value] = {}
    for name, _, text in (override.lstrip("+").partition("=") for override in overrides):
        settings[name] = _scalar(text)
    if not overrides and (path / "config.yaml").is_file():
        settings = dict(_flat(read_config(path)))
    reason, metrics = "", {}
    status: Status = "unfinished"
    report = _report(path)
    if (path / ERROR_LOG).is_file():
        status = "failed"
        lines = (path / ERROR_LOG).read_text(encoding="utf-8", errors="replace").split("\n")
        reason = next((line for line in lines if line.startswith("reason: ")), "")[8:]
    elif report is not None and report["run"]["finished"]:
        status = "ok"
    if report is not None:
        found = report["diagnostics_not_private"]
        numbers = {name: found.get(name) for name in ("accuracy", "auc", "loss")}
        numbers |= {"seconds": report["run"]["seconds"]}
        metrics = {name: float(number) for name, number in numbers.items() if number is not None}
        metrics["epsilon"] = float(report["guarantee"]["epsilon"])
    return SweptRun(
        path=path,
        overrides=overrides,
        status=status,
        reason=reason,
        settings=settings,
        metrics=metrics,
    )


def _report(path: Path) -> dict[str, Any] | None:
    file = path / "report.json"
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"{file} cannot be read: {type(error).__name__}") from None
    return found


def read_config(path: Path) -> dict[str, Any]:
    """Return the resolved configuration of a run.

    Raises:
        ValueError: If it cannot be read.
    """
    file = path / "config.yaml"
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError):
        raise ValueError(f"{file} cannot be read as a configuration") from None
    if not isinstance(content, dict):
        raise ValueError(f"{file} holds no configuration")
    return content


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Value]]:
    """Yield every setting under its dotted name; a class by its name, a list as text."""
    if isinstance(value, Mapping):
        for key, member in value.items():
            inner = name if key == "_target_" else f"{name}.{key}".lstrip(".")
            if key == "_target_":
                yield inner, str(member).rsplit(".", 1)[-1]
            else:
                yield from _flat(member, inner)
    else:
        yield name, json.dumps(value) if isinstance(value, list) else value


def _scalar(text: str) -> Value:
    try:
        return float(text) if not text.lstrip("-").isdigit() else int(text)
    except ValueError:
        return text


def _number(path: Path) -> tuple[int, str]:
    return (int(path.name) if path.name.isdigit() else 10**9, path.name)
