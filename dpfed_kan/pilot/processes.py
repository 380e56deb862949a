"""Processes that outlive the command that started them: recorded, recognised, ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

_POLL_SECONDS = 0.1
_PATIENCE_SECONDS = 8.0


@dataclass(frozen=True, kw_only=True)
class Started:
    """One process that was started.

    Args:
        name: What it is.
        pid: Its number, and that of its session.
    """

    name: str
    pid: int


class Processes:
    """The processes of one pilot, in a file that the next command reads.

    Args:
        path: The file.
        log_dir: Where each writes what it prints.
        mark: In the arguments of each, and of no other process: a number is not enough, since the
            system gives it again to others.
    """

    def __init__(self, path: Path, *, log_dir: Path, mark: str) -> None:
        self._path = path
        self._log_dir = log_dir
        self._mark = mark

    def start(
        self, name: str, command: Sequence[str], *, environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """Start a process in a session of its own, and record it before anything else happens.

        Raises:
            ValueError: If it cannot be started.
        """
        self._log_dir.mkdir(parents=True, exist_ok=True)
        with (self._log_dir / f"{name}.log").open("ab") as log:
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=dict(environment),
                    start_new_session=True,
                )
            except OSError as error:
                raise ValueError(f"{command[0]} cannot be started: {error.strerror}") from None
        others = [started for started in self._recorded() if started.name != name]
        self._write([*others, Started(name=name, pid=process.pid)])
        return process

    def running(self) -> list[Started]:
        """Return those that run."""
        ours = {pid for pid, session, words in _listed() if pid == session and self._mark in words}
        return [started for started in self._recorded() if started.pid in ours]

    def log(self, name: str) -> Path:
        """Return where a process writes what it prints."""
        return self._log_dir / f"{name}.log"

    def stop(self, names: Collection[str] | None = None) -> list[str]:
        """End processes with what they have started: ask first, insist after some seconds.

        Args:
            names: Which; all if not given.

        Returns:
            The names of those that were running and have ended.
        """
        others = [
            started
            for started in self._recorded()
            if names is not None and started.name not in names
        ]
        running = [started for started in self.running() if started not in others]
        if not running:
            return []
        sessions = {started.pid for started in running}
        for signal_number in (signal.SIGTERM, signal.SIGKILL):
            members = _members(sessions)
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal_number)
            deadline = time.monotonic() + _PATIENCE_SECONDS
            while _members(sessions) and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
            if not _members(sessions):
                break
        left = [started for started in running if _members({started.pid})]
        self._write([*others, *left])
        return [started.name for started in running if started not in left]

    def _recorded(self) -> list[Started]:
        try:
            return [Started(**row) for row in json.loads(self._path.read_text(encoding="utf-8"))]
        except FileNotFoundError:
            return []
        except (ValueError, TypeError):
            raise ValueError(f"{self._path} is not a list of processes") from None

    def _write(self, processes: Sequence[Started]) -> None:
        temporary = self._path.with_suffix(".tmp")
        rows = [asdict(started) for started in processes]
        temporary.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
        temporary.replace(self._path)


def _members(sessions: set[int]) -> list[int]:
    """Return the processes of some sessions, leaders included, that have not ended."""
    return [pid for pid, session, _ in _listed() if session in sessions]


def _listed() -> list[tuple[int, int, str]]:
    """Return (pid, session, arguments) of every process that has not ended."""
    listed = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,sess=,stat=,args="],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [line.split(maxsplit=3) for line in listed.stdout.splitlines()]
    return [
        (int(row[0]), int(row[1]), row[3])
        for row in rows
        if len(row) == 4 and not row[2].startswith("Z")
    ]
