"""A multirun: its plan before it starts, one job of it, its summary and exit code.

A job that fails keeps its traceback in its own directory and ends no other. Run again with the
same hydra.sweep.dir, finished jobs are skipped and unfinished ones go on where they were.
"""

from __future__ import annotations

import itertools
import json
import math
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import yaml
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from dpfed_kan.sweep import ERROR_LOG, JOBS_FILE

if TYPE_CHECKING:
    from dpfed_kan.experiment import Experiment
    from dpfed_kan.run import Run

Train = Callable[["Experiment", Path, bool], "Run"]


class SweepFailed(Exception):
    """Some runs of a sweep failed; the summary names them."""


class Announcer(Callback):
    """Shows the plan of a sweep before it starts, and remembers where it is."""

    started: ClassVar[list[Path]] = []

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Print the plan and write it down for the summary."""
        directory = Path(str(config.hydra.sweep.dir)).absolute()
        jobs = _jobs([*_configured(config), *config.hydra.overrides.task])
        sweep: dict[str, Any] = OmegaConf.to_container(config.hydra.sweep)  # type: ignore[assignment]
        numbered = sweep["subdir"] == "${hydra.job.num}"
        named = [{"dir": str(number), "overrides": job} for number, job in enumerate(jobs)]
        plan = {
            "began": time.time(),
            "at_once": _at_once(config),
            "jobs": named if numbered else [],  # else only what is found can be told
        }
        directory.mkdir(parents=True, exist_ok=True)
        temporary = directory / f"{JOBS_FILE}.tmp"
        temporary.write_text(json.dumps(plan, indent=1) + "\n", encoding="utf-8")
        temporary.replace(directory / JOBS_FILE)
        self.started.append(directory)
        print(f"Sweep of {len(jobs)} runs, {plan['at_once']} at a time, in {directory}", flush=True)
        shared = set(jobs[0]).intersection(*jobs) if len(jobs) > 1 else set()
        for override in (word for word in jobs[0] if word in shared):
            print(f"  all: {override}")
        for number, job in enumerate(jobs):
            print(f"  {number}: {' '.join(word for word in job if word not in shared)}")
        reports = [directory / str(number) / "report.json" for number in range(len(jobs))]
        done = sum(report.is_file() for report in reports)
        if done:
            print(f"{done} have a report already: skipped, if their settings are the same")


def run_job(
    experiment: Callable[[], Experiment], train: Train, *, stop_at_failure: bool = False
) -> None:
    """Run one job of a sweep; whatever happens to it stays with it.

    Args:
        experiment: Builds what to run; its errors are the job's.
        train: Runs it in a directory, from the start or (True) from where it was.
        stop_at_failure: Leave the job for later if another of this sweep has failed.
    """
    directory = Path(HydraConfig.get().runtime.output_dir)
    overrides = list(HydraConfig.get().overrides.task)
    name = f"{directory.name}: {' '.join(overrides)}"
    log = directory / ERROR_LOG
    if stop_at_failure and _failed_since_it_began(directory.parent):
        print(f"{name}: not begun, since another run failed", flush=True)
        return
    start = time.perf_counter()
    try:
        wanted = experiment()
        state = _state(directory, wanted)
        log.unlink(missing_ok=True)
        if state == "finished":
            print(f"{name}: skipped, finished before", flush=True)
            return
        run = train(wanted, directory, state == "begun")
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        text = f"overrides: {' '.join(overrides)}\nreason: {reason}\n\n{traceback.format_exc()}"
        directory.mkdir(parents=True, exist_ok=True)
        log.write_text(text, encoding="utf-8")
        print(f"{name}: FAILED, {reason} (traceback in {log})", flush=True)
        return
    seconds = time.perf_counter() - start
    found = run.assessment
    loss = "" if found is None else f"held-out loss {found.pooled.loss:.3f}, "
    print(f"{name}: ok, {loss}{seconds:.1f} s; {run.guarantee.sentence}", flush=True)
    _estimate(directory, seconds)


def finish(directories: Sequence[Path]) -> None:
    """Print the summary of the sweeps that ran.

    Raises:
        SweepFailed: If a run failed or is unfinished.
    """
    from rich.console import Console

    from dpfed_kan.cli_sweep import cost_of, show
    from dpfed_kan.sweep import read_sweep
    from dpfed_kan.sweep_cost import leave_cost

    bad = []
    for directory in directories:
        sweep = read_sweep(directory)
        cost, problem = cost_of(sweep)
        leave_cost(sweep, cost)
        show(sweep, Console(), cost=cost, problem=problem)
        print(f"`dpfed-kan sweep {directory}` writes the table as CSV and HTML", flush=True)
        bad += [run for run in sweep.runs if run.status != "ok"]
    if bad:
        raise SweepFailed(
            f"{len(bad)} runs did not finish: {', '.join(run.path.name for run in bad)}. A failed "
            "one has its traceback in its error.log. The same command with hydra.sweep.dir="
            f"{bad[0].path.parent} runs these and skips the rest"
        )


def _configured(config: DictConfig) -> list[str]:
    """Return what an experiment sweeps by itself; the command line goes before it."""
    params = config.hydra.sweeper.get("params") or {}
    return [f"{name}={value}" for name, value in params.items()]


def _jobs(overrides: list[str]) -> list[list[str]]:
    """Return the overrides of every job, in the order of their numbers."""
    choices: dict[str, list[str]] = {}
    loader = GlobalHydra.instance().config_loader()  # which options glob(...) names
    for override in OverridesParser.create(loader).parse_overrides(overrides):
        key = override.get_key_element()
        if override.is_discrete_sweep():
            choices[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
        else:
            choices[key] = [f"{key}={override.get_value_element_as_str()}"]
    return [list(job) for job in itertools.product(*choices.values())]


def _at_once(config: DictConfig) -> int:
    """Return how many jobs the launcher runs at a time."""
    wanted = config.hydra.launcher.get("n_jobs", 1)
    if wanted is None or int(wanted) >= 1:
        return int(wanted or 1)
    import joblib

    return int(joblib.effective_n_jobs(int(wanted)))


def _state(directory: Path, wanted: Experiment) -> str:
    """Return whether a job is new, begun or finished.

    Raises:
        ValueError: If the directory holds a run of other settings.
    """
    from dpfed_kan.config import to_config

    config, report = directory / "config.yaml", directory / "report.json"
    if not config.is_file():
        return "new"
    if not any((directory / name).exists() for name in ("key", "ledger.jsonl")):
        config.unlink()  # a crash while the run was set up: nothing was drawn, nothing released
        return "new"
    plain = yaml.safe_load(yaml.safe_dump(to_config(wanted)))
    if yaml.safe_load(config.read_text(encoding="utf-8")) != plain:
        raise ValueError(
            f"{directory} holds a run of other settings: give the sweep another hydra.sweep.dir, "
            "or the settings and the order that it had"
        )
    finished = (
        report.is_file() and json.loads(report.read_text(encoding="utf-8"))["run"]["finished"]
    )
    return "finished" if finished else "begun"


def _failed_since_it_began(sweep_dir: Path) -> bool:
    began = json.loads((sweep_dir / JOBS_FILE).read_text(encoding="utf-8"))["began"]
    return any(log.stat().st_mtime >= began for log in sweep_dir.glob(f"*/{ERROR_LOG}"))


def _estimate(directory: Path, seconds: float) -> None:
    """After the first run of a sweep, say how long the rest will take."""
    plan_file = directory.parent / JOBS_FILE
    if not plan_file.is_file():
        return
    plan = json.loads(plan_file.read_text(encoding="utf-8"))
    reports = [directory.parent / str(job["dir"]) / "report.json" for job in plan["jobs"]]
    there = [report for report in reports if report.is_file()]
    fresh = [report for report in there if report.stat().st_mtime >= plan["began"]]
    left = len(reports) - len(there)
    if len(fresh) == 1 and left > 0:
        expected = seconds * math.ceil(left / plan["at_once"])
        print(f"The first run took {seconds:.1f} s: about {expected:.0f} s for {left} more")
