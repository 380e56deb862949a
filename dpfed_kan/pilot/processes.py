"""Processes that outlive the command that started them: recorded, recognised, ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
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
        since: When the system says that it started; tells it from a later one of the same number.
    """

    name: str
    pid: int
    since: str


class Processes:
    """The processes of one pilot, in a file that the next command reads.

    Args:
        path: The file.
        log_dir: Where each writes what it prints.
    """

    def __init__(self, path: Path, *, log_dir: Path) -> None:
        self._path = path
        self._log_dir = log_dir

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
        since = _since([process.pid]).get(process.pid, "")
        self._write([*others, Started(name=name, pid=process.pid, since=since)])
        return process

    def running(self) -> list[Started]:
        """Return those that run."""
        recorded = self._recorded()
        since = _since(started.pid for started in recorded)
        return [started for started in recorded if since.get(started.pid) == started.since]

    def all(self) -> list[Started]:
        """Return those that were started, running or not."""
        return self._recorded()

    def log(self, name: str) -> Path:
        """Return where a process writes what it prints."""
        return self._log_dir / f"{name}.log"

    def stop(self, patience: float = _PATIENCE_SECONDS) -> list[str]:
        """End all with what they have started: ask first, insist after `patience` seconds.

        Returns:
            The names of those that were running.
        """
        running = self.running()
        sessions = {started.pid for started in running}
        for signal_number in (signal.SIGTERM, signal.SIGKILL):
            members = _members(sessions)
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal_number)
            deadline = time.monotonic() + patience
            while _members(sessions) and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
            if not _members(sessions):
                break
        left = [started for started in running if _members({started.pid})]
        self._write(left)
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


def _since(pids: Iterable[int]) -> dict[int, str]:
    """Return when each process started, of those that run."""
    return {pid: since for pid, _, since in _listed() if pid in set(pids)}


def _members(sessions: set[int]) -> list[int]:
    """Return the processes of some sessions, leaders included, that have not ended."""
    return [pid for pid, session, _ in _listed() if session in sessions]


def _listed() -> list[tuple[int, int, str]]:
    """Return (pid, session, start) of every process that has not ended."""
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,sess=,stat=,lstart="],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "LC_ALL": "C"},
    )
    rows = [line.split(maxsplit=3) for line in listed.stdout.splitlines()]
    return [
        (int(pid), int(session), since.strip())
        for pid, session, state, since in rows
        if not state.startswith("Z")
    ]
