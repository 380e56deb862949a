"""A pilot of real processes on loopback: TLS, node keys, heart-disease files, both transports."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from dpfed_kan.config import to_config
from dpfed_kan.data.heart_disease import flamby_schema
from dpfed_kan.flower_app import compose
from dpfed_kan.pilot.directory import PilotDirectory
from dpfed_kan.run import run
from tests.conftest import ROOT

pytestmark = [pytest.mark.trial, pytest.mark.xdist_group("pilot")]
HOSPITALS = ("cleveland", "hungarian", "va")
STUDY = [
    "seed=11",
    "privacy.target_epsilon=null",
    "noise.noise_multiplier=4.0",
    "privacy.target_delta=1e-3",
]


def command(*words: str, timeout: float = 400) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dpfed_kan.cli", "pilot", *words],
        env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def free_ports(number: int) -> int:
    """Return the first of some consecutive ports that are free."""
    for first in range(19500, 29500, 10):
        try:
            for port in range(first, first + number):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise AssertionError("no free ports")


def processes_of(directory: Path) -> list[str]:
    listed = subprocess.run(
        ["ps", "-A", "-ww", "-o", "stat=,pid=,args="], capture_output=True, text=True, check=True
    )
    lines = listed.stdout.splitlines()
    return [line for line in lines if str(directory) in line and not line.startswith("Z")]


def final_params(directory: Path) -> bytes:
    with np.load(directory / "checkpoint.npz") as saved:
        return bytes(saved["params"].tobytes())


def report(directory: Path) -> Any:
    return json.loads((directory / "report.json").read_text())


@pytest.fixture(scope="module")
def heart(shared_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three hospitals' own files, by path, and a pilot that is up."""
    files = shared_dir / "data" / "heart_disease"
    if not files.is_dir():
        pytest.skip("needs the heart-disease files")
    directory = tmp_path_factory.mktemp("pilot")
    schema = yaml.safe_dump(to_config(flamby_schema()), sort_keys=False)
    (directory / "schema.yaml").write_text(schema)
    sites = [
        {
            "site": name,
            "data": str(files / f"processed.{name}.data"),
            "schema": "schema.yaml",
            "allow_seed": True,
        }
        for name in HOSPITALS
    ]
    pilot = {"port": free_ports(5), "sites": sites}
    (directory / "pilot.yaml").write_text(yaml.safe_dump(pilot))
    yield directory
    begun = time.monotonic()
    down = command("down", str(directory))
    assert down.returncode == 0, down.stderr
    assert time.monotonic() - begun < 20
    assert processes_of(directory) == []


@pytest.fixture(scope="module")
def up(heart: Path) -> Path:
    done = command("up", str(heart))
    assert done.returncode == 0, done.stderr
    return heart


def simulated(heart: Path, tmp_path: Path, *overrides: str) -> bytes:
    files = yaml.safe_load((heart / "pilot.yaml").read_text())["sites"]
    root = Path(files[0]["data"]).parent
    listed = ",".join(f"{{site: {s['site']}, path: {Path(s['data']).name}}}" for s in files)
    experiment = compose(
        f"data=csv data.held_out_by=site data.source.root={root} "
        f"data.source.schema={heart / 'schema.yaml'} 'data.source.files=[{listed}]' "
        f"runtime=in_process {' '.join(overrides)}"
    )
    return final_params(run(experiment, tmp_path / "simulated").directory.path)


def test_status_says_what_runs_and_keys_are_the_owners_only(up: Path) -> None:
    done = command("status", str(up))
    assert done.returncode == 0
    for name in ("superlink", "superexec", *HOSPITALS):
        assert name in done.stdout
    assert "not running" not in done.stdout
    for name in ("server.key", "superexec", *HOSPITALS):
        assert (up / "run" / "keys" / name).stat().st_mode & 0o777 == 0o600


def test_a_hundred_rounds_over_the_channel_equal_the_simulation(up: Path, tmp_path: Path) -> None:
    done = command("run", str(up), str(tmp_path / "out"), "num_rounds=100", *STUDY)
    assert done.returncode == 0, done.stdout
    assert final_params(tmp_path / "out") == simulated(up, tmp_path, *STUDY, "num_rounds=100")
    found = report(tmp_path / "out")
    assert found["deployment"]["transport"] == "channel"
    assert found["deployment"]["seconds_per_round"] < 1.0
    assert found["diagnostics_not_private"]["per_site"] == {}
    print("seconds per round, channel:", found["deployment"]["seconds_per_round"])


def test_a_few_rounds_by_flowers_own_messages_equal_the_simulation(
    up: Path, tmp_path: Path
) -> None:
    words = ["num_rounds=3", "runtime.transport=native", *STUDY]
    done = command("run", str(up), str(tmp_path / "out"), *words)
    assert done.returncode == 0, done.stdout
    assert final_params(tmp_path / "out") == simulated(up, tmp_path, *STUDY, "num_rounds=3")
    print("seconds per round, native:", report(tmp_path / "out")["deployment"])


def test_an_interrupted_run_ends_within_20_s_and_the_same_command_continues_it(
    up: Path, tmp_path: Path
) -> None:
    words = ["run", str(up), str(tmp_path / "out"), "num_rounds=600", *STUDY]
    running = start_run(up, tmp_path / "out", "num_rounds=600", *STUDY)
    await_rounds(tmp_path / "out", 5)
    running.send_signal(signal.SIGINT)
    begun = time.monotonic()
    said, _ = running.communicate(timeout=60)
    assert running.returncode == 130, said
    sessions = {started.pid for started in PilotDirectory(up).processes.running()}
    while (left := apps_of(sessions)) and time.monotonic() - begun < 20:
        time.sleep(0.5)
    assert left == []
    released = (tmp_path / "out" / "ledger.jsonl").read_text()
    assert released.endswith("\n")
    done = command(*words)
    assert done.returncode == 0, done.stdout
    after = (tmp_path / "out" / "ledger.jsonl").read_text()
    assert after.startswith(released)
    assert len(after.splitlines()) == 601
    assert final_params(tmp_path / "out") == simulated(up, tmp_path, *STUDY, "num_rounds=600")


def apps_of(sessions: set[int]) -> list[str]:
    """The ServerApp and ClientApps that processes of these sessions have started."""
    listed = subprocess.run(
        ["ps", "-A", "-ww", "-o", "sess=,stat=,args="], capture_output=True, text=True, check=True
    )
    rows = [line.split(maxsplit=2) for line in listed.stdout.splitlines()]
    return [
        row[2]
        for row in rows
        if len(row) == 3 and int(row[0]) in sessions and "app" in row[2] and "Z" not in row[1]
        if "flwr-serverapp" in row[2] or "flwr-clientapp" in row[2]
    ]


def start_run(up: Path, output_dir: Path, *overrides: str) -> subprocess.Popen[str]:
    words = ["run", str(up), str(output_dir), *overrides]
    return subprocess.Popen(
        [sys.executable, "-m", "dpfed_kan.cli", "pilot", *words],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def await_rounds(output_dir: Path, number: int) -> None:
    deadline = time.monotonic() + 120
    path = output_dir / "metrics.jsonl"
    while time.monotonic() < deadline:
        if path.exists() and path.read_text().count("\n") >= number:
            return
        time.sleep(0.1)
    raise AssertionError(f"{number} rounds were not reached")


LONG = ["seed=11", "noise=none", "privacy.target_epsilon=null", "num_rounds=1500"]


@pytest.mark.parametrize("victim", ["superlink", "client"])
def test_a_run_goes_on_when_a_process_is_killed(up: Path, tmp_path: Path, victim: str) -> None:
    """The SuperLink's death stops no channel run; a client's is followed by a new invitation."""
    running = start_run(up, tmp_path / "out", *LONG)
    await_rounds(tmp_path / "out", 20)
    processes = {s.name: s.pid for s in PilotDirectory(up).processes.running()}
    if victim == "superlink":
        os.kill(processes["superlink"], signal.SIGKILL)
        time.sleep(3)
        again = command("up", str(up))
        assert again.returncode == 0, again.stderr
    else:
        os.kill(client_of(processes["va"]), signal.SIGKILL)
    deadline = time.monotonic() + 240
    while not (tmp_path / "out" / "report.json").exists() and time.monotonic() < deadline:
        time.sleep(0.5)
    said, _ = running.communicate(timeout=60)
    assert (tmp_path / "out" / "report.json").exists(), said
    assert len((tmp_path / "out" / "ledger.jsonl").read_text().splitlines()) == 1501
    assert final_params(tmp_path / "out") == simulated(up, tmp_path, *LONG)


def client_of(session: int) -> int:
    listed = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,sess=,stat=,args="],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [line.split(maxsplit=3) for line in listed.stdout.splitlines()]
    (pid,) = (
        int(row[0])
        for row in rows
        if len(row) == 4 and int(row[1]) == session and "flwr-clientapp" in row[3]
        if "Z" not in row[2]
    )
    return pid


def test_a_server_that_is_killed_is_resumed_by_the_same_command(up: Path, tmp_path: Path) -> None:
    running = start_run(up, tmp_path / "out", *LONG)
    await_rounds(tmp_path / "out", 20)
    superexec = {s.name: s.pid for s in PilotDirectory(up).processes.running()}["superexec"]
    listed = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,sess=,args="], capture_output=True, text=True, check=True
    )
    for line in listed.stdout.splitlines():
        pid, session, words = line.split(maxsplit=2)
        if int(session) == superexec and "flwr-serverapp" in words:
            os.kill(int(pid), signal.SIGKILL)
    running.communicate(timeout=120)
    assert running.returncode == 1
    released = (tmp_path / "out" / "ledger.jsonl").read_text()
    done = command("run", str(up), str(tmp_path / "out"), *LONG)
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "out" / "ledger.jsonl").read_text().startswith(released)
    assert final_params(tmp_path / "out") == simulated(up, tmp_path, *LONG)
