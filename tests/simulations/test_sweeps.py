"""`python -m simulations.run -m` as a user meets it: CASES.md C01 to C04, C07, P12."""

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from absl.logging import get_absl_handler as absl_handler

from dpfed_kan.config import build, drop_interpolated
from simulations.run import main
from simulations.sweeping import Announcer
from tests.conftest import ROOT

QUICK = [
    "data=synthetic",
    "data.source.num_records=150",
    "data.source.input_dim=2",
    "num_rounds=2",
    "privacy.target_epsilon=null",
    "noise.noise_multiplier=4",
]
FIXTURES = ROOT / "tests" / "data" / "fixtures"


@dataclass(frozen=True, kw_only=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


Command = Callable[..., Done]


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Command]:
    """The entry in this process, which has the libraries loaded; in a directory of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    handlers, level = list(logging.root.handlers), logging.root.level

    def call(*words: str) -> Done:
        # Hydra closes all handlers, and absl's (imported by dp_accounting) then its stream, unless
        # that is sys.stderr: where a test has imported it before, it is pytest's own
        monkeypatch.setattr(absl_handler().python_handler, "stream", sys.stderr)
        monkeypatch.setattr(sys, "argv", ["run.py", *words])
        monkeypatch.setattr(Announcer, "started", [])
        capsys.readouterr()
        code: object = None
        try:
            main()
        except SystemExit as stop:
            code = stop.code
        out, err = capsys.readouterr()
        told = f"{err}{code}" if isinstance(code, str) else err
        return Done(
            returncode=code if isinstance(code, int) else int(code is not None),
            stdout=out,
            stderr=told,
        )

    yield call
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


def typed(*words: str, cwd: Path, environment: dict[str, str] | None = None) -> Done:
    """The command in a process of its own, as a user types it."""
    done = subprocess.run(
        [sys.executable, "-m", "simulations.run", *words],
        cwd=cwd,
        env=os.environ
        | {"PYTHONPATH": str(ROOT), "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
        | (environment or {}),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    return Done(returncode=done.returncode, stdout=done.stdout, stderr=done.stderr)


def of_hospitals(cwd: Path) -> list[str]:
    """A run on two hospitals' files under data.root=., all paths relative."""
    for name in ("base_site_a.csv", "base_site_b.csv", "schema.yaml"):
        (cwd / name).write_bytes((FIXTURES / name).read_bytes())
    files = ",".join(
        f"{{site: {site}, path: {name}.csv}}"
        for site, name in (("a", "base_site_a"), ("b", "base_site_b"))
    )
    return [
        "data=csv",
        "data.source.schema=schema.yaml",
        f"data.source.files=[{files}]",
        *QUICK[3:],
    ]


@pytest.mark.parametrize(
    "launcher",
    [
        [],
        pytest.param(["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"], marks=pytest.mark.slow),
    ],
)
def test_a_failed_job_ends_no_other_and_keeps_its_traceback(
    tmp_path: Path, command: Command, launcher: list[str]
) -> None:
    """C07: jobs 1 and 2 point to missing files; with the joblib launcher too."""
    arguments = ["-m", *of_hospitals(tmp_path), "data.root=.,nowhere,missing,./", "seed=3"]
    arguments += ["hydra.sweep.dir=sweep", *launcher]
    run = command if not launcher else partial(typed, cwd=tmp_path)
    done = run(*arguments)
    assert done.returncode == 1
    assert done.stdout.index("Sweep of 4 runs") < done.stdout.index("0: ")
    assert re.search(r"The first run took [\d.]+ s: about \d+ s for \d more", done.stdout)
    assert "4 runs: 2 ok, 2 failed, 0 unfinished." in done.stdout
    assert "not covered by the ε of one run" in done.stdout
    assert "2 runs did not finish: 1, 2" in done.stderr
    for number, missing in ((1, "nowhere"), (2, "missing")):
        log = (tmp_path / "sweep" / str(number) / "error.log").read_text()
        assert "Traceback (most recent call last)" in log
        assert str(tmp_path / missing / "base_site_a.csv") in log
        assert f"data.root={missing}" in log
    kept = [(tmp_path / "sweep" / str(n) / "report.json").stat().st_mtime_ns for n in (0, 3)]
    (tmp_path / "nowhere").mkdir()
    for name in ("base_site_a.csv", "base_site_b.csv"):
        (tmp_path / "nowhere" / name).write_bytes((FIXTURES / name).read_bytes())
    again = run(*arguments)
    assert again.returncode == 1
    assert again.stdout.count("skipped, finished before") == 2
    assert "4 runs: 3 ok, 1 failed, 0 unfinished." in again.stdout
    assert not (tmp_path / "sweep" / "1" / "error.log").exists()
    assert kept == [
        (tmp_path / "sweep" / str(n) / "report.json").stat().st_mtime_ns for n in (0, 3)
    ]


def test_a_sweep_can_stop_at_its_first_failure(tmp_path: Path, command: Command) -> None:
    words = ["-m", *QUICK, "noise.correlation=1,0,0.5", "hydra.sweep.dir=sweep"]
    done = command(*words, "stop_at_failure=true")
    assert done.returncode == 1
    assert "3 runs: 0 ok, 1 failed, 2 unfinished." in done.stdout
    assert not (tmp_path / "sweep" / "1" / "config.yaml").exists()


def test_an_unfinished_run_goes_on_and_another_run_is_not_overwritten(
    tmp_path: Path, command: Command
) -> None:
    words = ["-m", *QUICK, "seed=1,2", "hydra.sweep.dir=sweep"]
    assert command(*words).returncode == 0
    report = json.loads((tmp_path / "sweep" / "1" / "report.json").read_text())
    ledger = (tmp_path / "sweep" / "1" / "ledger.jsonl").read_text()
    key = (tmp_path / "sweep" / "1" / "key").read_text()
    (tmp_path / "sweep" / "1" / "report.json").unlink()
    again = command(*words)
    assert again.returncode == 0, again.stderr
    assert again.stdout.count("skipped, finished before") == 1
    after = json.loads((tmp_path / "sweep" / "1" / "report.json").read_text())
    assert after["diagnostics_not_private"] == report["diagnostics_not_private"]
    assert (tmp_path / "sweep" / "1" / "ledger.jsonl").read_text() == ledger
    assert (tmp_path / "sweep" / "1" / "key").read_text() == key
    (tmp_path / "sweep" / "2").mkdir()
    (tmp_path / "sweep" / "2" / "config.yaml").write_text("num_ro")  # torn before anything ran
    third = command(*words[:-2], "seed=1,2,3", "hydra.sweep.dir=sweep")
    assert third.returncode == 0, third.stderr
    other = command(*words[:-2], "seed=1,3", "hydra.sweep.dir=sweep")
    assert other.returncode == 1
    assert "holds a run of other settings" in other.stdout
    assert json.loads((tmp_path / "sweep" / "1" / "report.json").read_text()) == after


@pytest.mark.slow
def test_24_runs_of_which_two_fail(tmp_path: Path) -> None:
    words = ["-m", *QUICK, "update.learning_rate=1,3,10,30", "privacy.l2_clip_norm=0.1,0.3,1"]
    words += ["seed=0,1", "hydra.sweep.dir=sweep"]
    words += ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    for number in (5, 17):  # a file where the run's directory should be
        (tmp_path / "sweep").mkdir(exist_ok=True)
        (tmp_path / "sweep" / str(number)).mkdir()
        (tmp_path / "sweep" / str(number) / "key").write_text("another's")
    done = typed(*words, cwd=tmp_path)
    assert done.returncode == 1
    assert "24 runs: 22 ok, 2 failed, 0 unfinished." in done.stdout
    costs = re.search(
        r"at most ([\d.]+) here.*the 22 runs that released anything.*ε ≤ ([\d.]+) at",
        " ".join(done.stdout.split()),
    )
    assert costs is not None
    assert float(costs[1]) < float(costs[2]) < 22 * float(costs[1])
    for number in (5, 17):
        assert "Traceback" in (tmp_path / "sweep" / str(number) / "error.log").read_text()
        for name in ("key", "config.yaml"):
            (tmp_path / "sweep" / str(number) / name).unlink()
    again = typed(*words, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert again.stdout.count("skipped, finished before") == 22
    assert "24 runs: 24 ok, 0 failed, 0 unfinished." in again.stdout
    assert "the 24 runs that released anything" in " ".join(again.stdout.split())


@pytest.mark.parametrize("plus", ["+", "++"])
def test_a_misspelled_key_with_plus_is_refused_with_the_nearest(
    tmp_path: Path, command: Command, plus: str
) -> None:
    """C01."""
    done = command(*QUICK, f"{plus}privacy.clip_nrom=0.5")
    assert done.returncode == 1
    assert "privacy.clip_nrom: unknown setting; did you mean privacy.l2_clip_norm?" in done.stderr
    assert not list(tmp_path.rglob("report.json"))


def test_a_misspelled_key_in_a_file_of_settings_is_refused(
    tmp_path: Path, command: Command
) -> None:
    """C01, in an experiment file."""
    (tmp_path / "own" / "study").mkdir(parents=True)
    own = "# @package _global_\nprivacy:\n  clip_nrom: 0.5\n"
    (tmp_path / "own" / "study" / "one.yaml").write_text(own)
    done = command(*QUICK, "+study=one", "--config-dir", "own")
    assert done.returncode == 1
    assert "did you mean privacy.l2_clip_norm?" in done.stderr


def test_numbers_in_any_notation_are_numbers_also_when_swept(
    tmp_path: Path, command: Command
) -> None:
    """C02."""
    words = ["-m", *QUICK, "update.learning_rate=1.0e-5,1.0e-6", "hydra.sweep.dir=sweep"]
    words += ["privacy.target_delta=1E-05", "num_rounds='2'"]
    done = command(*words)
    assert done.returncode == 0, done.stderr
    rates = []
    for number in (0, 1):
        saved: dict[str, Any] = yaml.safe_load(
            (tmp_path / "sweep" / str(number) / "config.yaml").read_text()
        )
        rates.append(saved["update"]["learning_rate"])
        assert saved["privacy"]["target_delta"] == 1e-5
        assert saved["num_rounds"] == 2
        assert saved["seed"] is None
        drop_interpolated(saved)
        assert build(saved) == build(saved | {"num_rounds": "2"})
    assert rates == [1e-5, 1e-6]
    word = command(*QUICK, "privacy.target_epsilon=None")
    assert "privacy.target_epsilon: expected a number or null, got 'None'" in word.stderr


def test_a_list_is_one_value_and_a_number_is_no_list(tmp_path: Path, command: Command) -> None:
    """C03."""
    model = ["-m", *QUICK, "model=mlp", "hydra.sweep.dir=sweep"]
    done = command(*model, "model.hidden_widths=[8,4],[16,8]")
    assert done.returncode == 0, done.stderr
    assert "Sweep of 2 runs" in done.stdout
    assert command(*QUICK, "model=mlp", "model.hidden_widths=16,8").returncode == 1
    model[-1] = "hydra.sweep.dir=other"
    wrong = command(*model, "model.hidden_widths=16,8")
    assert wrong.returncode == 1
    said = "model.hidden_widths: expected a list of an integer, got 16; a list is written in"
    assert f"{said} brackets, as [16]" in wrong.stdout
    assert "2 runs: 0 ok, 2 failed" in wrong.stdout
    assert not list((tmp_path / "other").rglob("ledger.jsonl"))


@pytest.mark.parametrize("runtime", ["fused", "in_process"])
@pytest.mark.parametrize("chdir", ["true", "false"])
@pytest.mark.parametrize("multirun", [[], ["-m"]])
def test_relative_paths_count_from_where_the_command_was_given(
    tmp_path: Path, command: Command, multirun: list[str], chdir: str, runtime: str
) -> None:
    """C04."""
    words = [*multirun, *of_hospitals(tmp_path), "data.root=.", f"hydra.job.chdir={chdir}"]
    done = command(*words, f"runtime={runtime}")
    assert done.returncode == 0, done.stderr
    (saved,) = tmp_path.rglob("config.yaml")
    assert yaml.safe_load(saved.read_text())["data"]["source"]["root"] == str(tmp_path)


@pytest.mark.slow
def test_a_job_that_the_system_kills_leaves_a_summary(tmp_path: Path) -> None:
    killer = "import os, signal\n\n\ndef build(*sizes):\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    (tmp_path / "killer.py").write_text(killer)
    words = ["-m", *QUICK, "seed=0,1", "hydra.sweep.dir=sweep", "hydra/launcher=joblib"]
    words += ["hydra.launcher.n_jobs=2", "model=user", "model.factory=killer:build"]
    environment = {"DPFED_KAN_MODULES": "killer", "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    done = typed(*words, cwd=tmp_path, environment=environment)
    assert done.returncode == 1
    assert "the sweep broke off: " in done.stderr
    assert "2 runs: 0 ok, 0 failed, 2 unfinished." in done.stdout
    assert "2 runs did not finish: 0, 1" in done.stderr


def test_a_sweep_of_an_experiment_is_planned_as_it_is_run(command: Command) -> None:
    quick = ["num_rounds=2", "data.source.num_records=300", "sampling.batch_size=10"]
    done = command(
        "-m", "+experiment=figure_2_synthetic", "noise.correlation=0.5", "seed=0", *quick
    )
    assert done.returncode == 0, done.stderr
    assert "Sweep of 2 runs" in done.stdout
    assert "0: noise.noise_multiplier=6.3\n" in done.stdout
    assert "1: noise.noise_multiplier=11.8\n" in done.stdout
    assert "2 runs: 2 ok" in done.stdout


def test_a_sweep_over_experiments_by_a_pattern_is_planned(command: Command) -> None:
    done = command("-m", "+experiment=glob(heart_*)", "++data.root=nowhere", "seed=0")
    assert "Sweep of 2 runs" in done.stdout
    assert "2 runs: 0 ok, 2 failed" in done.stdout
    assert done.returncode == 1
