"""`python -m simulations.run` as a user meets it: other processes, other directories."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpfed_kan.run import resume
from tests.conftest import ROOT

QUICK = [
    "data=synthetic",
    "data.source.num_records=150",
    "data.source.input_dim=2",
    "num_rounds=3",
    "privacy.target_epsilon=null",
    "noise.noise_multiplier=4",
]
FILES = {
    "config.yaml",
    "key",
    "ledger.jsonl",
    "metrics.jsonl",
    "checkpoint.npz",
    "report.json",
    "report.html",
}


def command(*arguments: str, cwd: Path, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-m", "simulations.run", *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def report(directory: Path) -> Any:
    return json.loads((directory / "report.json").read_text())


def test_a_run_leaves_what_it_says_it_leaves(tmp_path: Path) -> None:
    done = command(*QUICK, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (directory,) = (tmp_path / "outputs").glob("*/*")
    assert {path.name for path in directory.iterdir()} == FILES
    assert str(directory) in done.stdout
    assert done.stdout.index("Planned") < done.stdout.index("q_k") < done.stdout.index("Result")
    stated = report(directory)["guarantee"]
    assert stated["epsilon"] > 0
    for word in ("accuracy", "AUC", "majority class", "worst site", "entropy", "trusted"):
        assert word in done.stdout
    config = yaml.safe_load((directory / "config.yaml").read_text())
    assert config["num_rounds"] == 3


def test_a_sweep_makes_complete_directories(tmp_path: Path) -> None:
    done = command("-m", *QUICK, "noise.correlation=0,0.5", "seed=0,1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    directories = sorted(path.parent for path in tmp_path.glob("multirun/*/*/*/report.json"))
    assert len(directories) == 4
    configs = [yaml.safe_load((path / "config.yaml").read_text()) for path in directories]
    assert sorted((c["noise"]["correlation"], c["seed"]) for c in configs) == [
        (0.0, 0),
        (0.0, 1),
        (0.5, 0),
        (0.5, 1),
    ]
    for directory in directories:
        assert {path.name for path in directory.iterdir()} == FILES | {"sweep_cost.json"}
        assert report(directory)["guarantee"]["noise_source"] == "seeded"


def test_resume_continues_and_takes_no_other_settings(tmp_path: Path) -> None:
    assert command(*QUICK, "hydra.run.dir=first", cwd=tmp_path).returncode == 0
    before = report(tmp_path / "first")["guarantee"]["epsilon"]
    (tmp_path / "first" / "report.json").unlink()
    done = command("resume=first", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert report(tmp_path / "first")["guarantee"]["epsilon"] == before
    assert not list(tmp_path.glob("outputs/*/*"))
    refused = command("resume=first", "num_rounds=6", cwd=tmp_path)
    assert refused.returncode != 0
    assert "under its own plan" in refused.stderr
    assert "num_rounds=6" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["noise.correlation=1"], "expected correlation=1.0 in [0, 1)"),
        (["privacy.target_delta=0.05"], "below 1/n = 0.0333 at every site, but site-1 has n=30"),
        (["update.projection_radius=0"], "projection_radius=0.0 in (0, inf]"),
        (["model.num_basis=3"], "num_basis=3 to be > spline_degree=3"),
        (["num_rounds=0"], "num_rounds=0"),
        (["noise.corelation=0.5"], "did you mean noise.correlation?"),
        (["++noise.corelation=0.5"], "did you mean noise.correlation?"),
        (
            ["num_rounds=???", "privacy.target_delta=???"],
            "privacy.target_delta: a value is required",
        ),
        (["resume=nowhere"], "holds no run that can be resumed"),
        (["hydra.run.dir=blocked/run"], "cannot be written to: blocked/run"),
    ],
)
def test_bad_input_ends_in_a_clear_line_and_leaves_nothing(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    (tmp_path / "blocked").write_text("a file where a directory should be")
    done = command(*([] if arguments[0].startswith("resume") else QUICK), *arguments, cwd=tmp_path)
    assert done.returncode not in (0, None)
    assert f"{said}" in done.stderr
    assert "Traceback" not in done.stderr
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path.name for path in left] == ["blocked"]
    assert not list(tmp_path.glob("outputs/*/*"))


def test_help_teaches_without_loading_the_model(tmp_path: Path) -> None:
    done = command("--help", cwd=tmp_path, timeout=30)
    assert done.returncode == 0
    for word in ("target_epsilon: 2.0", "noise=none", "correlated", "resume="):
        assert word in done.stdout


def test_noise_none_is_the_same_run_without_privacy(tmp_path: Path) -> None:
    done = command("noise=none", *QUICK[:-2], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "NO PRIVACY: ε = ∞" in done.stdout
    (directory,) = (tmp_path / "outputs").glob("*/*")
    stated = report(directory)["guarantee"]
    assert (stated["private"], stated["epsilon"]) == (False, "infinity")


def test_the_files_of_hospitals_train_under_a_schema_of_theirs(tmp_path: Path) -> None:
    fixtures = ROOT / "tests" / "data" / "fixtures"
    for name in ("base_site_a.csv", "base_site_b.csv", "f04_header_only.csv", "schema.yaml"):
        (tmp_path / name).write_bytes((fixtures / name).read_bytes())
    files = ",".join(
        f"{{site: {site}, path: {name}.csv}}"
        for site, name in (("a", "base_site_a"), ("b", "base_site_b"), ("c", "f04_header_only"))
    )
    arguments = ["data=csv", "data.root=.", "data.source.schema=schema.yaml", *QUICK[3:]]
    arguments += [f"data.source.files=[{files}]", "hydra.run.dir=run"]
    refused = command(*arguments, cwd=tmp_path)
    assert "c has 0 records" in refused.stderr
    assert "small_sites=leave_out" in refused.stderr
    done = command(*arguments, "data.small_sites=leave_out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "c takes no part: c has 0 records" in done.stdout.replace("\n", " ")
    assert set(report(tmp_path / "run")["public"]["left_out"]) == {"c"}
    assert set(report(tmp_path / "run")["public"]["num_records"]) == {"a", "b"}


def test_a_missing_directory_is_told_with_its_absolute_path(tmp_path: Path) -> None:
    done = command("data=heart", "data.root=nowhere", "hydra.job.chdir=true", cwd=tmp_path)
    assert str(tmp_path / "nowhere" / "processed.cleveland.data") in done.stderr
    assert "archive.ics.uci.edu" in done.stderr


def test_an_interrupted_run_says_how_to_go_on_and_goes_on(tmp_path: Path) -> None:
    slow = [word for word in QUICK if not word.startswith("num_rounds")]
    running = subprocess.Popen(
        [sys.executable, "-m", "simulations.run", *slow, "num_rounds=100000"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 90
    while not list(tmp_path.glob("outputs/*/*/checkpoint.npz")) and time.monotonic() < deadline:
        time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=60)
    (directory,) = tmp_path.glob("outputs/*/*")
    assert running.returncode == 130
    assert f"resume={directory}" in said
    num_released = len((directory / "ledger.jsonl").read_text().splitlines()) - 1
    assert num_released >= 1
    resumed = resume(directory, stop_after=num_released + 1)
    assert resumed.guarantee.num_rounds == num_released + 1
