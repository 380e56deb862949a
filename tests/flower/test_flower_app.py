from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

import dpfed_kan
from dpfed_kan.data.partition import Natural
from dpfed_kan.flower_app import compose, train
from dpfed_kan.run import run

ROOT = Path(__file__).parents[2]
SMALL = (
    "seed=5 num_rounds=3 data=synthetic data.source.num_records=90 data.source.input_dim=3 "
    "partition.num_sites=3 noise.noise_multiplier=1.0 privacy.target_epsilon=null"
)
LOCAL_SUPERLINK_PORT = 39091


def test_without_overrides_the_experiment_is_the_default_one():
    experiment = compose("")
    assert (experiment.num_rounds, experiment.seed) == (80, None)


def test_overrides_are_those_of_the_command_line():
    experiment = compose("noise=column_normalized noise.correlation='0.8' num_rounds=1e2")
    assert experiment.noise.column_normalized
    assert (experiment.noise.correlation, experiment.num_rounds) == (0.8, 100)


def test_the_data_of_real_hospitals_are_composed_with_their_own_sites():
    data = compose("data=heart data.root=/records").data
    assert (data.source.root, data.partition) == ("/records", Natural())


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ("noise.corelation=0.5", "noise.corelation"),
        ("+noise.corelation=0.5", "did you mean noise.correlation"),
        ("noise.correlation=2", "noise"),
        ("resume=outputs/1", "simulations.run resume=DIR"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_and_named(overrides, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        compose(overrides)


@pytest.mark.parametrize("config", [{}, {"output-dir": ""}, {"output-dir": "runs/1"}])
def test_an_output_dir_that_is_not_absolute_is_refused(config, federation):
    with pytest.raises(ValueError, match="to be an absolute path"):
        train(federation.grid(), config)


def test_the_bundle_names_apps_that_exist_and_the_version_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    app = project["tool"]["flwr"]["app"]
    assert app["components"] == {
        "serverapp": "dpfed_kan.flower_app:server",
        "clientapp": "dpfed_kan.flower_app:client",
    }
    assert {"output-dir", "overrides", "resume"} == set(app["config"])
    assert project["project"]["version"] == dpfed_kan.__version__


def _flwr(home: Path, run_config: str, num_sites: int = 3) -> str:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
    }
    command = ["flwr", "run", ".", "local", "--stream"]
    command += [
        "--federation-config", f"num-supernodes={num_sites} client-resources-num-cpus=1",
        "--run-config", run_config,
    ]  # fmt: skip
    result = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240
    )
    return result.stdout + result.stderr


@pytest.fixture
def flwr_home(tmp_path):
    """A home of Flower's own; the SuperLink that `flwr run` leaves behind is ended."""
    pytest.importorskip("ray", reason="`flwr run . local` needs the extra: dpfed-kan[ray]")
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", LOCAL_SUPERLINK_PORT)) == 0:
            pytest.skip("a local SuperLink runs already; it is not ours to use")
    home = tmp_path / "flwr-home"
    home.mkdir()
    yield home
    assert _processes(str(home))
    for pid in _processes(str(home)):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 20
    while _processes(str(home)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not _processes(str(home))


def _processes(word: str) -> list[int]:
    listed = subprocess.run(["ps", "-ww", "-eo", "pid=,args="], capture_output=True, text=True)
    lines = [line.split(maxsplit=1) for line in listed.stdout.splitlines()]
    return [int(line[0]) for line in lines if len(line) == 2 and word in line[1]]


@pytest.mark.slow
def test_flwr_run_ends_with_the_files_of_an_in_process_run_bit_for_bit(flwr_home, tmp_path):
    output = _flwr(flwr_home, f"output-dir='{tmp_path}/over' overrides='{SMALL}'")
    own = run(compose(SMALL), tmp_path / "own")
    assert "Results in" in output, output
    for name in ("checkpoint.npz", "metrics.jsonl", "config.yaml"):
        assert (tmp_path / "over" / name).read_bytes() == (own.directory.path / name).read_bytes()
    over, ours = (
        [line for line in (at / "ledger.jsonl").read_text().splitlines() if "release" in line]
        for at in (tmp_path / "over", own.directory.path)
    )
    assert over == ours  # a simulation in one process reserves rounds ahead, and settles
    assert len(over) == own.guarantee.num_rounds
    assert (tmp_path / "over" / "report.json").is_file()

    output = _flwr(flwr_home, f"output-dir='{tmp_path}/four' overrides='{SMALL}'", num_sites=4)
    assert "have 4 sites, need 3" in output
    assert not (tmp_path / "four" / "report.json").exists()
