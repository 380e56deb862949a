"""Kill processes of a pilot at random moments of its runs, and have every run end all the same."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dpfed_kan.pilot.directory import PilotDirectory
from dpfed_kan.pilot.running import status
from tests.system.pilot_outside import (
    COMMAND_SECONDS,
    end,
    environment,
    listed,
    num_released,
    pilot,
)

WEIGHTS = {"server": 5, "client": 5, "superlink": 1, "supernode": 1}
TRANSPORT = os.environ.get("KILLS_TRANSPORT", "channel")
NUM_ROUNDS = 300 if TRANSPORT == "channel" else 3  # a round of native messages takes 20 s and more
_AT_ONCE = [1, 2, 3, 4, 5] if TRANSPORT == "channel" else [1]
_ATTEMPTS = 8  # of the same command after the last kill
_STARTING_SECONDS = 35.0  # about the time before round 0
_POLL_SECONDS = 0.02


@dataclass(frozen=True, kw_only=True)
class Kill:
    """One kill -9.

    Args:
        kind: Of the process.
        phase: "before" round 0 of this attempt, or in the "rounds".
        round_index: Rounds in the server's ledger at that moment.
        pid: Of the process.
    """

    kind: str
    phase: str
    round_index: int
    pid: int


@dataclass(kw_only=True)
class Told:
    """What happened to one run."""

    kills: list[Kill] = field(default_factory=list)
    attempts: int = 0
    returned: list[int] = field(default_factory=list)
    refused_as_held: int = 0


class Killer:
    """A pilot that is up, whose processes are killed while runs go on.

    Args:
        directory: Of the pilot.
        seed: Of kinds and moments.
        kills: How many in all.
        seconds: After these, none any more.
        observe: Called right after every kill, for what the files say at that moment.
        say: Called with a line about every kill and attempt.
    """

    def __init__(
        self,
        directory: Path,
        *,
        seed: int,
        kills: int,
        seconds: float,
        observe: Callable[[Path], None],
        say: Callable[[str], None] = print,
    ) -> None:
        self.directory = PilotDirectory(directory)
        self.left = kills
        self.until = time.monotonic() + seconds
        self.sessions: set[int] = set()  # of all that was ever started
        self._draw = random.Random(seed)
        self._observe = observe
        self._say = say
        kinds = list(WEIGHTS)
        first = kinds if kills >= len(kinds) else kinds[:kills]
        rest = self._draw.choices(kinds, weights=list(WEIGHTS.values()), k=kills - len(first))
        self._kinds = [*first, *rest]
        self._server_died, self._released_before = False, 0
        self._killed: set[int] = set()  # one that is dying is still listed for a moment
        self._draw.shuffle(self._kinds)

    def up(self) -> None:
        """Start what does not run."""
        for _ in range(3):
            if None not in status(self.directory).values():
                break
            done = pilot("up", str(self.directory.path))
            if done.returncode != 0:
                self._say(f"  up: {done.stderr.strip()[-300:]}")
        assert None not in status(self.directory).values()
        self.sessions |= {started.pid for started in self.directory.processes.running()}

    def train(self, output_dir: Path, *overrides: str, most: int) -> Told:
        """Give the same command until the run ends, killing on the way.

        Args:
            output_dir: Of the run.
            overrides: Of the run.
            most: Kills in this run; fewer if all have been done.
        """
        told = Told()
        quota = min(most, self.left)
        without_kill = 0
        while not (output_dir / "report.json").exists():
            assert without_kill < _ATTEMPTS, f"{output_dir} does not end: {told}"
            self.up()
            before = len(told.kills)
            code = self._attempt(output_dir, overrides, told, quota)
            told.attempts += 1
            told.returned.append(code)
            without_kill = without_kill + 1 if len(told.kills) == before else 0
            self._say(
                f"  attempt {told.attempts}: {code}, {num_released(output_dir)} released, "
                f"{len(told.kills)} kills"
            )
        return told

    def _attempt(self, output_dir: Path, overrides: Sequence[str], told: Told, quota: int) -> int:
        words = ["run", str(self.directory.path), str(output_dir), *overrides]
        log_path = output_dir.with_name(f"{output_dir.name}-{told.attempts}.log")
        with log_path.open("wb") as log:
            running = subprocess.Popen(
                [sys.executable, "-m", "dpfed_kan.cli", "pilot", *words],
                env=environment(),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        begun = time.monotonic()
        try:
            self._kill_on_the_way(running, output_dir, told, quota)
            while not self._over(running, output_dir, begun):
                if self._server_died and not self._pids("server"):
                    time.sleep(2 * self._draw.random())
                    break  # who waits is told in about a minute; who does not, starts it again
                time.sleep(0.2)
            code = running.poll()
        finally:
            end(running)
        if b"in use by another process" in log_path.read_bytes():
            told.refused_as_held += 1
        return -1 if code is None else code

    def _kill_on_the_way(
        self, running: subprocess.Popen[bytes], output_dir: Path, told: Told, quota: int
    ) -> None:
        self._server_died, self._released_before = False, num_released(output_dir)
        begun = time.monotonic()
        while len(told.kills) < quota and time.monotonic() < self.until:
            if not self._volley(running, output_dir, told, begun):
                break

    def _volley(
        self, running: subprocess.Popen[bytes], output_dir: Path, told: Told, begun: float
    ) -> bool:
        """Wait for a random moment and kill some; False once this attempt is over."""
        released = num_released(output_dir)
        moment, due = float("inf"), NUM_ROUNDS + 1
        if told.kills and self._draw.random() < 0.4:  # close upon those before
            moment = time.monotonic() + self._draw.uniform(0, 4.0)
        elif self._draw.random() < 0.4 and time.monotonic() - begun < _STARTING_SECONDS:
            moment = time.monotonic() + self._draw.uniform(0, _STARTING_SECONDS)
        else:
            due = released + 1 + int(self._draw.random() * (NUM_ROUNDS - released) * 0.6)
        while time.monotonic() < moment and num_released(output_dir) < due:
            if self._over(running, output_dir, begun):
                return False
            time.sleep(_POLL_SECONDS)
        killed = set()
        for _ in range(min(self._draw.choice(_AT_ONCE), self.left)):
            while not (pids := self._pids(self._kinds[-1])):  # before it is there
                if killed or self._over(running, output_dir, begun):
                    break
                time.sleep(_POLL_SECONDS)
            time.sleep(self._draw.uniform(0.0, 0.03 if not killed else 1.0))
            if self._kill(pids, output_dir, told, begun):
                killed.add(told.kills[-1].kind)
        if killed & {"superlink", "supernode"}:
            self.up()
        self._server_died |= "server" in killed
        return bool(killed) and not killed & {"server", "superlink"}

    def _over(self, running: subprocess.Popen[bytes], output_dir: Path, begun: float) -> bool:
        late = time.monotonic() - begun > COMMAND_SECONDS
        return late or running.poll() is not None or (output_dir / "report.json").exists()

    def _kill(self, pids: Sequence[int], output_dir: Path, told: Told, begun: float) -> bool:
        if not pids or (output_dir / "report.json").exists():
            self._draw.shuffle(self._kinds)  # of the kinds to come, another one next time
            return False
        pid = self._draw.choice(pids)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        self._killed.add(pid)
        now = num_released(output_dir)
        started = now > self._released_before
        phase = "rounds" if started else "before"
        told.kills.append(Kill(kind=self._kinds.pop(), phase=phase, round_index=now, pid=pid))
        self.left -= 1
        seconds = time.monotonic() - begun
        self._say(f"  {seconds:.1f} s: killed {told.kills[-1].kind} {pid}, {phase}, {now} released")
        self._observe(output_dir)
        return True

    def _pids(self, kind: str) -> list[int]:
        recorded = {started.name: started.pid for started in self.directory.processes.running()}
        names = [site.site for site in self.directory.pilot.sites]
        if kind == "superlink":
            return [recorded["superlink"]] if "superlink" in recorded else []
        if kind == "supernode":
            return [recorded[name] for name in names if name in recorded]
        word, owners = (
            ("flwr-clientapp", names)
            if kind == "client"
            else (
                "flwr-serverapp",
                ["superexec"],
            )
        )
        sessions = {recorded[name] for name in owners if name in recorded}
        return [
            pid
            for pid, session, words in listed()
            if session in sessions and word in words and pid not in self._killed
        ]

    def left_behind(self) -> list[str]:
        """Processes of any session that the pilot ever had."""
        mark = str(self.directory.path)
        return [
            words[:120]
            for _, session, words in listed()
            if session in self.sessions or (mark in words and "pytest" not in words)
        ]


def count(told: Sequence[Told]) -> dict[str, int]:
    """How many of each kind, and in which phase."""
    found = Counter(kill.kind for one in told for kill in one.kills)
    phases = Counter(f"{kill.phase}" for one in told for kill in one.kills)
    return {**found, **phases}
