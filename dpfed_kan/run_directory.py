"""A run's directory: what a user finds there, written so that a crash loses nothing."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import yaml

from dpfed_kan.config import build, to_config
from dpfed_kan.privacy.clipping import Vector
from dpfed_kan.streams import Streams
from dpfed_kan.update.checkpoint import from_arrays, to_arrays
from dpfed_kan.update.rule import UpdateState

_TIMES_ITS_COST = 20.0


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Let no second process work on the same run: two would write one ledger.

    The system lets go when this process ends, however it does. A file system that keeps no locks
    of directories is refused.

    Args:
        path: Of the run; created if absent.

    Raises:
        ValueError: If another process has it, or the directory cannot be made, opened or locked.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise ValueError(
            f"the output directory {path} cannot be written to: {error.strerror}"
        ) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"the run in {path} is in use by another process, which goes on with it; wait "
                "until that has ended"
            ) from None
        except OSError as error:
            raise ValueError(
                f"{path} is on a file system without locks ({error.strerror}), where two processes "
                "at once would not be noticed; give an output directory on a local disk"
            ) from None
        yield
    finally:
        os.close(descriptor)


class RunDirectory:
    """The files of one run.

    `config.yaml` (resolved), `key` (secret, owner only), `ledger.jsonl`, `metrics.jsonl`,
    `checkpoint.npz` (every few rounds and at the end), `report.json` and `report.html` (at the
    end).

    Args:
        path: An existing directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_path = path / "config.yaml"
        self.ledger_path = path / "ledger.jsonl"
        self.metrics_path = path / "metrics.jsonl"
        self.checkpoint_path = path / "checkpoint.npz"
        self.report_path = path / "report.json"
        self.page_path = path / "report.html"
        self._key_path = path / "key"
        self._metrics: TextIO | None = None

    @classmethod
    def create(cls, path: Path, *, experiment: object, streams: Streams) -> RunDirectory:
        """Start a run in a directory that holds none.

        Raises:
            ValueError: If the directory cannot be written to, or already holds a run.
        """
        directory = cls(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            with directory.config_path.open("x", encoding="utf-8") as file:
                yaml.safe_dump(to_config(experiment), file, sort_keys=False, allow_unicode=True)
        except FileExistsError:
            raise ValueError(
                f"{path} already holds a run; give another output directory, or continue it with "
                f"resume={path}"
            ) from None
        except OSError as error:
            raise ValueError(
                f"the output directory {path} cannot be written to: {error.strerror}"
            ) from None
        streams.save(directory._key_path)
        return directory

    def forget(self) -> None:
        """Remove a run that was begun and has no ledger yet: nothing was made of its key.

        Raises:
            ValueError: If there is a ledger.
        """
        if self.ledger_path.exists():
            raise ValueError(f"{self.path} holds a run that has a ledger")
        self._key_path.unlink(missing_ok=True)
        self.config_path.unlink(missing_ok=True)

    @classmethod
    def open(cls, path: Path) -> tuple[RunDirectory, Any, Streams]:
        """Return the directory, experiment and streams of a run that was started before.

        Raises:
            ValueError: If there is no run.
        """
        directory = cls(path)
        if not directory.config_path.is_file() or not directory._key_path.is_file():
            raise ValueError(
                f"{path.absolute()} holds no run that can be resumed: expected config.yaml and key"
            )
        config = yaml.safe_load(directory.config_path.read_text(encoding="utf-8"))
        return directory, build(config), Streams.load(directory._key_path)

    def save_checkpoint(self, state: UpdateState, *, frozen: Vector, layout: object) -> None:
        """Replace the checkpoint in one step: a reader sees the old one or the new one.

        Args:
            state: After a round.
            frozen: Parameters that are not trained.
            layout: Names and shapes of the trained parameters.
        """
        self._flush_metrics()
        temporary = self.checkpoint_path.with_suffix(".tmp")
        with temporary.open("wb") as file:
            np.savez(
                file,
                **to_arrays(state),
                frozen=frozen,
                layout=json.dumps(layout),
            )
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.checkpoint_path)
        self._sync_directory()

    def load_checkpoint(self) -> UpdateState | None:
        """Return the state after the last round that was checkpointed, or None before any."""
        if not self.checkpoint_path.is_file():
            return None
        with np.load(self.checkpoint_path, allow_pickle=False) as saved:
            return from_arrays({name: saved[name] for name in saved.files})

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Add one round's metrics; `save_checkpoint` has them written out first."""
        if self._metrics is None:
            self._metrics = self.metrics_path.open("a", encoding="utf-8")
            weakref.finalize(self, self._metrics.close)
        self._metrics.write(json.dumps(row, allow_nan=False) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return the metrics of the rounds so far."""
        self._flush_metrics()
        if not self.metrics_path.is_file():
            return []
        lines = self.metrics_path.read_text(encoding="utf-8").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def drop_metrics_after(self, num_rounds: int) -> None:
        """Forget metrics of rounds that a crash left without a checkpoint."""
        rows = [row for row in self.read_metrics() if row["round"] <= num_rounds]
        self._metrics = None
        temporary = self.metrics_path.with_suffix(".tmp")
        with temporary.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row, allow_nan=False) + "\n" for row in rows)
        temporary.replace(self.metrics_path)

    def save_report(self, report: Mapping[str, Any]) -> None:
        """Write the final report; valid JSON, without NaN or Infinity."""
        text = json.dumps(report, indent=2, allow_nan=False, ensure_ascii=False)
        self._replace(self.report_path, text + "\n")

    def save_page(self, page: str) -> None:
        """Write the report as a page for people."""
        self._replace(self.page_path, page)

    @staticmethod
    def _replace(path: Path, text: str) -> None:
        temporary = path.with_suffix(".tmp")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)

    def _flush_metrics(self) -> None:
        if self._metrics is not None:
            self._metrics.flush()

    def _sync_directory(self) -> None:
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class Checkpoints:
    """Checkpoints as often as costs a twentieth of the time; the rest is run again after a crash.

    A round that is run again is released again, the same bit for bit: it costs time, no privacy.

    Args:
        directory: Of the run.
        frozen: Parameters that are not trained.
        layout: Names and shapes of the trained parameters.
    """

    def __init__(self, directory: RunDirectory, *, frozen: Vector, layout: object) -> None:
        self._directory = directory
        self._frozen = frozen
        self._layout = layout
        self._unsaved: UpdateState | None = None
        self._last = self._cost = 0.0

    def offer(self, state: UpdateState) -> None:
        """Save the state after a round, if it is time."""
        self._unsaved = state
        if time.perf_counter() - self._last >= _TIMES_ITS_COST * self._cost:
            self.save()

    def save(self) -> None:
        """Save the last state that was offered, if it is not saved yet."""
        if self._unsaved is None:
            return
        start = time.perf_counter()
        self._directory.save_checkpoint(self._unsaved, frozen=self._frozen, layout=self._layout)
        self._unsaved, self._last = None, time.perf_counter()
        self._cost = self._last - start
