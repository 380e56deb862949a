"""A disk that is full, a directory that cannot be written to: a clear end, the ledger whole."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from dpfed_kan.deployment import training


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_stops_the_run_and_the_next_one_ends_as_an_unbroken_one(trial, tmp_path):
    whole = training.train(trial.grid(), trial.deployed(), tmp_path / "whole")
    directory = tmp_path / "full"
    directory.mkdir()
    (directory / "checkpoint.tmp").symlink_to("/dev/full")
    with pytest.raises(ValueError, match=r"No space left on device.*the same command") as stopped:
        training.train(trial.grid(), trial.deployed(), directory)
    assert str(directory) in str(stopped.value)
    ledger = (directory / "ledger.jsonl").read_text()
    assert len(ledger.splitlines()) == 2
    (directory / "checkpoint.tmp").unlink()
    training.resume(trial.grid(), trial.deployed(), directory)
    for name in ("ledger.jsonl", "checkpoint.npz"):
        ours, theirs = directory / name, tmp_path / "whole" / name
        if name.endswith("npz"):
            with np.load(ours) as a, np.load(theirs) as b:
                assert a["params"].tobytes() == b["params"].tobytes()
        else:
            assert ours.read_bytes() == theirs.read_bytes()
    assert whole.run.finished


@pytest.mark.parametrize("kind", ["a file", "read only"])
def test_a_directory_that_cannot_be_written_to_is_named_before_any_site_is_asked(
    trial, tmp_path, kind
):
    blocked = tmp_path / "blocked"
    if kind == "a file":
        blocked.write_text("")
    else:
        blocked.mkdir(mode=0o500)
        if os.access(blocked, os.W_OK):
            pytest.skip("this user may write anywhere")
    grid = trial.grid()
    with pytest.raises(ValueError, match=f"{blocked / 'run'} cannot be written to"):
        training.train(grid, trial.deployed(), blocked / "run")
    assert list((trial.directory / "state").glob("*")) == []
