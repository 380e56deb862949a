import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfed_kan.report import as_json
from dpfed_kan.run import Run, resume, run
from dpfed_kan.training import Progress


def traces(result: Run) -> dict[str, Any]:
    """All that a run leaves behind, except the time it took."""
    report = as_json(result)
    del report["run"]["seconds"], report["run"]["made_at"]
    del report["statement"]["provenance"]["ledger_sha256"]  # of all its lines, see `released`
    for bound in report["guarantee"].get("bounds_tried", []):
        del bound["seconds"]
    with np.load(result.directory.checkpoint_path) as saved:
        checkpoint = {name: saved[name].tobytes() for name in saved.files}
    return {
        "report": report,
        "checkpoint": checkpoint,
        "ledger": released(result.directory.ledger_path),
        "metrics": result.directory.metrics_path.read_text(),
    }


def released(ledger: Path) -> list[str]:
    """The plan and the releases, without the marks of where a process began and ended."""
    lines = ledger.read_text().splitlines()
    return [line for line in lines if not line.startswith(('{"reserved"', '{"settled"'))]


def test_a_run_resumed_after_any_round_equals_the_unbroken_one(
    tmp_path: Path, experiment: Callable[..., Any]
) -> None:
    whole = traces(run(experiment(), tmp_path / "whole"))
    assert len(whole["metrics"].splitlines()) == 10
    for stop in range(1, 11):
        stopped = run(experiment(), tmp_path / f"{stop}", stop_after=stop)
        assert stopped.guarantee.num_rounds == stop
        assert stopped.finished == (stop == 10)
        resumed = resume(tmp_path / f"{stop}")
        assert resumed.finished
        assert traces(resumed) == whole


def test_an_adaptive_rule_resumed_equals_the_unbroken_one(
    tmp_path: Path, experiment: Callable[..., Any]
) -> None:
    changes = {
        "update": {
            "_target_": "dpfed_kan.update.macadam_bc.DPMacAdamBC",
            "learning_rate": 0.05,
            "average": "last_half",
        }
    }
    whole = traces(run(experiment(**changes), tmp_path / "whole"))
    assert "share_at_min_variance" in whole["metrics"]
    for stop in (1, 6):
        run(experiment(**changes), tmp_path / f"{stop}", stop_after=stop)
        assert traces(resume(tmp_path / f"{stop}")) == whole


def test_a_crash_between_ledger_and_checkpoint_releases_the_same_thing_again(
    tmp_path: Path, experiment: Callable[..., Any]
) -> None:
    whole = traces(run(experiment(), tmp_path / "whole"))
    run(experiment(), tmp_path / "cut", stop_after=4)
    older = (tmp_path / "cut" / "checkpoint.npz").read_bytes()
    stopped = resume(tmp_path / "cut", stop_after=5)
    stopped.directory.checkpoint_path.write_bytes(older)  # round 5 is in the ledger only
    assert traces(resume(tmp_path / "cut")) == whole


def test_other_data_under_the_same_noise_is_refused(
    tmp_path: Path, experiment: Callable[..., Any]
) -> None:
    run(experiment(), tmp_path / "cut", stop_after=4)
    older = (tmp_path / "cut" / "checkpoint.npz").read_bytes()
    resume(tmp_path / "cut", stop_after=5)
    config = tmp_path / "cut" / "config.yaml"
    config.write_text(config.read_text().replace("steepness: 8.0", "steepness: 0.1"))
    (tmp_path / "cut" / "checkpoint.npz").write_bytes(older)
    before = released(tmp_path / "cut" / "ledger.jsonl")
    with pytest.raises(ValueError, match="round 4 was already released, over a different sum"):
        resume(tmp_path / "cut")
    assert released(tmp_path / "cut" / "ledger.jsonl") == before


def test_a_finished_run_has_nothing_left_to_run(
    tmp_path: Path, experiment: Callable[..., Any]
) -> None:
    first = traces(run(experiment(), tmp_path / "run"))
    told: list[Progress] = []
    assert traces(resume(tmp_path / "run", listener=told.append)) == first
    assert told == []


def test_more_rounds_than_planned_are_refused(
    tmp_path: Path, experiment: Callable[..., Any]
) -> None:
    run(experiment(), tmp_path / "run")
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace("num_rounds: 10", "num_rounds: 20"))
    with pytest.raises(ValueError, match="another plan"):
        resume(tmp_path / "run")


def test_epsilon_grows_with_the_rounds_and_ends_at_the_reported_one(
    tmp_path: Path, experiment: Callable[..., Any]
) -> None:
    told: list[Progress] = []
    result = run(experiment(), tmp_path / "run", listener=told.append)
    spent = [progress.epsilon for progress in told]
    assert spent == sorted(spent)
    assert spent[0] > 0
    assert spent[-1] == result.guarantee.epsilon
    rows = [json.loads(line) for line in result.directory.metrics_path.read_text().splitlines()]
    assert [row["epsilon"] for row in rows] == spent
    assert [row["round"] for row in rows] == list(range(1, 11))


def test_two_runs_never_share_a_directory(tmp_path: Path, experiment: Callable[..., Any]) -> None:
    run(experiment(), tmp_path / "run", stop_after=1)
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    with pytest.raises(ValueError, match="already holds a run"):
        run(experiment(), tmp_path / "run")
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


def test_without_a_seed_two_runs_differ_and_with_one_they_do_not(
    tmp_path: Path, experiment: Callable[..., Any]
) -> None:
    def params(name: str, seed: int | None) -> bytes:
        result = run(experiment(seed=seed), tmp_path / name, stop_after=2)
        assert result.seeded == (seed is not None)
        return result.directory.load_checkpoint().params.tobytes()  # type: ignore[union-attr]

    assert params("a", None) != params("b", None)
    assert params("c", 1) == params("d", 1) != params("e", 2)


def test_there_must_be_a_run_to_resume(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no run that can be resumed"):
        resume(tmp_path)
