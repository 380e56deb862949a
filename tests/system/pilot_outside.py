"""What tests ask of a pilot from outside: its commands, processes and files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from dpfed_kan.pilot.directory import PilotDirectory
from tests.conftest import ROOT

COMMAND_SECONDS = 420.0


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200", "OMP_NUM_THREADS": "1"}


def pilot(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dpfed_kan.cli", "pilot", *words],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )


def listed() -> list[tuple[int, int, str]]:
    """Return (pid, session, arguments) of every process that lives."""
    found = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,sess=,stat=,args="],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [line.split(maxsplit=3) for line in found.stdout.splitlines()]
    return [
        (int(row[0]), int(row[1]), row[3]) for row in rows if len(row) == 4 and "Z" not in row[2]
    ]


def num_released(output_dir: Path) -> int:
    path = output_dir / "ledger.jsonl"
    return path.read_text().count('"release"') if path.exists() else 0


def end(running: subprocess.Popen[bytes]) -> None:
    """End a command with the `flwr run` below it, as closing its window would."""
    if running.poll() is not None:
        return
    below = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True
    )
    for line in below.stdout.splitlines():
        pid, parent = line.split()
        if int(parent) == running.pid:
            os.kill(int(pid), signal.SIGKILL)
    running.kill()
    running.wait()


def run_name(output_dir: Path) -> str:
    return (output_dir / "run_id").read_text()


def events(output_dir: Path) -> list[dict[str, object]]:
    """The releases that the server's ledger holds, whole lines only."""
    path = output_dir / "ledger.jsonl"
    text = path.read_text() if path.exists() else ""
    lines = text[: text.rfind("\n") + 1].splitlines()
    return [row["release"] for row in map(json.loads, lines) if "release" in row]


def zeros(output_dir: Path) -> list[tuple[int, str]]:
    """(round, site) of each zero that the server's ledger holds."""
    path = output_dir / "ledger.jsonl"
    text = path.read_text() if path.exists() else ""
    lines = map(json.loads, text[: text.rfind("\n") + 1].splitlines())
    return [(row["zero"]["round_index"], row["zero"]["site"]) for row in lines if "zero" in row]


def start(directory: Path, output_dir: Path, *overrides: str) -> subprocess.Popen[bytes]:
    """Start a training; what it says goes to OUTPUT_DIR.log."""
    words = ["run", str(directory), str(output_dir), *overrides]
    with output_dir.with_name(f"{output_dir.name}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "dpfed_kan.cli", "pilot", *words],
            env=environment(),
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def await_that(what: Callable[[], object], *, seconds: float, every: float = 0.05) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, f"not within {seconds:g} s"
        time.sleep(every)


def clients(directory: Path, site: str) -> list[int]:
    """The client processes of a site that live."""
    recorded = {s.name: s.pid for s in PilotDirectory(directory).processes.running()}
    return [
        pid
        for pid, session, words in listed()
        if session == recorded.get(site) and "flwr-clientapp" in words
    ]
