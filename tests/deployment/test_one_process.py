"""A run is worked on by one process at a time, and a start that was killed is begun again."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys

import pytest

from dpfed_kan.deployment import training
from dpfed_kan.run_directory import RunDirectory, held
from tests.deployment.test_training import params

_HOLD = """
import sys, time
from pathlib import Path
from dpfed_kan.run_directory import held
with held(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        with pytest.raises(ValueError, match="in use by another process"), held(tmp_path / "run"):
            pytest.fail("two processes have one run")
        first.kill()
    with held(tmp_path / "run"):
        pass


def test_a_file_system_without_locks_is_refused(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", no_locks)
    with pytest.raises(ValueError, match="would not be noticed"), held(tmp_path):
        pass


@pytest.mark.parametrize("again", [training.train, training.resume])
def test_no_run_is_begun_or_continued_that_another_process_has(trial, tmp_path, again):
    directory = tmp_path / "run"
    training.train(trial.grid(), trial.deployed("num_rounds=2"), directory)
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    other = os.open(directory, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    try:
        with pytest.raises(ValueError, match="in use by another process"):
            again(trial.grid(), trial.deployed("num_rounds=2"), directory)
    finally:
        os.close(other)
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before


@pytest.mark.parametrize("left", ["config.yaml in part", "no key", "half a key", "no name"])
def test_a_start_that_was_killed_before_the_run_had_a_name_is_begun_again(trial, tmp_path, left):
    whole = training.train(trial.grid(), trial.deployed("num_rounds=2"), tmp_path / "whole")
    directory = tmp_path / "run"
    experiment = trial.deployed("num_rounds=2")
    RunDirectory.create(directory, experiment=experiment, streams=experiment.streams())
    if left == "config.yaml in part":
        (directory / "config.yaml").write_text("_target_: dpf")
    if left in ("config.yaml in part", "no key"):
        (directory / "key").unlink()
    if left == "half a key":
        (directory / "key").write_text("")
    found = training.resume(trial.grid(), experiment, directory)
    assert found.run.finished
    assert params(found.run.directory).tobytes() == params(whole.run.directory).tobytes()


def test_a_run_that_has_a_ledger_is_never_forgotten(trial, tmp_path):
    directory = tmp_path / "run"
    training.train(trial.grid(), trial.deployed("num_rounds=2"), directory)
    (directory / "run_id").unlink()
    with pytest.raises(ValueError, match="expected run_id"):
        training.resume(trial.grid(), trial.deployed("num_rounds=2"), directory)
    with pytest.raises(ValueError, match="has a ledger"):
        RunDirectory(directory).forget()
    assert (directory / "key").exists()
