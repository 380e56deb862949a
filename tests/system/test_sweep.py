"""What a sweep's directory tells: statuses, means, frontier, and the cost of having looked."""

import csv
import io
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfed_kan.cli import main
from dpfed_kan.privacy.accounting import account
from dpfed_kan.privacy.accounting.composition import Run, compose
from dpfed_kan.privacy.clipping import ClippedSum
from dpfed_kan.privacy.ledger import Ledger, read_spent
from dpfed_kan.privacy.mechanism import Mechanism
from dpfed_kan.privacy.noising import GaussianNoise
from dpfed_kan.privacy.sampling import FullBatch
from dpfed_kan.report import as_json
from dpfed_kan.run import run
from dpfed_kan.run_directory import RunDirectory
from dpfed_kan.statement.tuned import FILE_NAME, tuning_of
from dpfed_kan.streams import Streams
from dpfed_kan.sweep import Group, _undominated, groups, read_sweep
from dpfed_kan.sweep_cost import composed_cost, leave_cost
from dpfed_kan.sweep_page import as_csv, as_html
from tests.system.conftest import _experiment

Make = Callable[..., Any]
SITES = {"a": 400, "b": 500}


def released(path: Path, experiment: Any, *, rounds: int) -> None:
    """A run's directory after some rounds, with real releases of a sum of one number."""
    streams = Streams.from_seed(0)
    directory = RunDirectory.create(path, experiment=experiment, streams=streams)
    mechanism = experiment.mechanism(SITES)
    ledger = Ledger(mechanism=mechanism, num_records=SITES, path=directory.ledger_path)
    total = ClippedSum(value=np.zeros(1), l2_sensitivity=mechanism.l2_clip_norm)
    for t in range(rounds):
        ledger.record(mechanism.privatize(total, round_index=t, streams=streams).event)


def p12(experiment: Make, **changes: Any) -> Any:
    chosen: dict[str, Any] = {
        "sampling__sampling_prob": 0.05,
        "noise__noise_multiplier": 1.5,
        "noise__correlation": 0.0,
        "num_rounds": 50,
        "privacy__target_delta": 1e-5,
    }
    return experiment(**chosen | changes)


def test_choosing_the_best_of_a_sweep_costs_all_its_runs(experiment: Make, tmp_path: Path) -> None:
    """CASES.md P12."""
    number = 0
    for rate in (0.1, 0.3, 1.0, 3.0):
        for clip in (0.1, 0.5, 1.0):
            setup = p12(experiment, update__learning_rate=rate, privacy__l2_clip_norm=clip)
            released(tmp_path / str(number), setup, rounds=50)
            number += 1
    cost = composed_cost(read_sweep(tmp_path))
    assert cost is not None
    assert cost.epsilon == pytest.approx(4.18, abs=0.01)
    assert (cost.num_runs, cost.num_rounds, cost.delta) == (12, 600, 1e-5)
    assert "not covered by the ε of one run" in cost.sentence
    assert "one record under zero_out neighbors ε ≤ 4.176 at δ=1e-05" in cost.sentence
    assert cost.sharing_noise == 12  # all have the fixture's seed
    assert "12 of them share a declared seed and so their noise" in cost.sentence
    alone = account(setup.mechanism(SITES), delta=1e-5)
    assert alone.epsilon == pytest.approx(1.22, abs=0.005)


def test_failed_and_unfinished_runs_and_every_seed_are_looks(
    experiment: Make, tmp_path: Path
) -> None:
    setup = p12(experiment)
    for number, rounds in enumerate((50, 50, 20, 0)):
        released(tmp_path / str(number), replace(setup, seed=number), rounds=rounds)
    (tmp_path / "1" / "error.log").write_text("overrides: seed=1\nreason: the disk is full\n")
    sweep = read_sweep(tmp_path)
    assert [run.status for run in sweep.runs] == [
        "unfinished",
        "failed",
        "unfinished",
        "unfinished",
    ]
    assert sweep.runs[1].reason == "the disk is full"
    plan = setup.mechanism(SITES)
    looks = [Run(mechanism=plan, num_rounds=n) for n in (50, 50, 20)]
    cost = composed_cost(sweep)
    assert cost is not None
    assert cost.epsilon == pytest.approx(compose(looks, delta=1e-5).epsilon, rel=1e-3)
    assert cost.num_runs == 3
    assert cost.sharing_noise == 0
    assert "share" not in cost.sentence


def test_noise_that_two_runs_share_cancels_between_them() -> None:
    """Why a sweep over λ under one seed has no ε of its own: its releases can be combined."""
    sums = np.random.default_rng(0).normal(size=(2, 3, 4))
    seen = np.empty_like(sums)
    for which, correlation in enumerate((0.0, 0.5)):
        mechanism = Mechanism(
            sampling=FullBatch(),
            noise=GaussianNoise(noise_multiplier=6.3, correlation=correlation),
            l2_clip_norm=1.0,
            num_rounds=3,
        )
        for t in range(3):
            total = ClippedSum(value=sums[which, t], l2_sensitivity=1.0)
            release = mechanism.privatize(total, round_index=t, streams=Streams.from_seed(0))
            seen[which, t] = release.value
    without = seen[1, 1] - seen[0, 1] + 0.5 * seen[0, 0]
    np.testing.assert_allclose(
        without, sums[1, 1] - sums[0, 1] + 0.5 * sums[0, 0], rtol=0, atol=1e-13
    )


def test_a_run_without_noise_costs_everything(experiment: Make, tmp_path: Path) -> None:
    released(tmp_path / "0", p12(experiment), rounds=2)
    bare = experiment(noise={"_target_": "dpfed_kan.privacy.noising.NoNoise"})
    released(tmp_path / "1", bare, rounds=2)
    cost = composed_cost(read_sweep(tmp_path))
    assert cost is not None
    assert math.isinf(cost.epsilon)
    assert "ε ≤ ∞" in cost.sentence


def test_runs_under_other_relations_are_not_composed(
    experiment: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    released(tmp_path / "0", p12(experiment), rounds=2)
    other = p12(experiment, privacy__neighboring_relation="replace_one")
    released(tmp_path / "1", other, rounds=2)
    main(["sweep", str(tmp_path)])
    said = " ".join(capsys.readouterr().out.split())
    assert "the cost of all runs together was not found: expected one neighbouring relation" in said


def test_a_ledger_of_another_configuration_is_refused(experiment: Make, tmp_path: Path) -> None:
    released(tmp_path / "0", p12(experiment), rounds=2)
    ledger = tmp_path / "0" / "ledger.jsonl"
    ledger.write_text(ledger.read_text().replace('"correlation": 0.0', '"correlation": 0.5', 1))
    with pytest.raises(ValueError, match="not written under the config"):
        composed_cost(read_sweep(tmp_path))


def test_what_is_spent_is_read_without_touching_the_ledger(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_text('{"plan": {}, "num_records": {}}\n{"reserved": 7}\n{"release": {}}\n{"rel')
    before = path.read_bytes()
    assert read_spent(path)[1] == 7
    assert path.read_bytes() == before
    path.write_text('{"plan": {}, "num_records": {}}\n{"reserved": 7}\n' + '{"settled": 3}\n')
    assert read_spent(path)[1] == 3
    path.write_text("no ledger\n")
    with pytest.raises(ValueError, match="no ledger"):
        read_spent(path)


@pytest.fixture(scope="module")
def swept_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rates × two λ × two seeds, with what a user's text could do to a page."""
    tmp_path = tmp_path_factory.mktemp("sweep")
    jobs = []
    for correlation in (0.0, 0.5):
        for rate in (1.0, 5.0):
            for seed in (0, 1):
                setup = _experiment(
                    noise__correlation=correlation, update__learning_rate=rate, seed=seed
                )
                name = str(len(jobs))
                words = [f"noise.correlation={correlation}", f"update.learning_rate={rate}"]
                jobs.append({"dir": name, "overrides": [*words, f"seed={seed}"]})
                done = run(replace(setup, num_rounds=2), tmp_path / name)
                done.directory.save_report(as_json(done))
    jobs.append({"dir": "8", "overrides": ["noise.correlation=<b>&", "seed=0"]})
    (tmp_path / "8").mkdir()
    (tmp_path / "8" / "error.log").write_text("reason: <script>alert(1)</script>\n")
    (tmp_path / "sweep.json").write_text(json.dumps({"jobs": jobs}))
    return tmp_path


@pytest.fixture
def swept(swept_once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(swept_once, tmp_path / "sweep"))


def test_the_table_has_means_and_deviations_over_seeds(swept: Path) -> None:
    sweep = read_sweep(swept)
    assert sweep.swept == ("noise.correlation", "update.learning_rate")
    rows = list(csv.DictReader(io.StringIO(as_csv(sweep))))
    assert len(rows) == 4
    losses = [run.metrics["loss"] for run in sweep.runs[:2]]
    assert float(rows[0]["loss_mean"]) == pytest.approx(np.mean(losses))
    assert float(rows[0]["loss_sd"]) == pytest.approx(np.std(losses, ddof=1))
    assert [row["runs"] for row in rows] == ["2"] * 4
    page = as_html(sweep, cost=composed_cost(sweep))
    assert "9 runs: 8 ok, 1 failed, 0 unfinished." in page
    assert "<svg" in page
    assert "Heat map" in page
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "not covered by the ε of one run" in page
    for outside in ("http", "src=", "url(", "@import"):
        assert outside not in page


def test_the_frontier_leaves_out_what_another_group_beats() -> None:
    def group(epsilon: float, accuracy: float) -> Group:
        means = {"epsilon": epsilon, "accuracy": accuracy}
        return Group(settings={}, num_runs=1, means=means, deviations={})

    found = [group(1, 0.8), group(2, 0.9), group(2, 0.7), group(3, 0.9), group(1, 0.8)]
    assert [_undominated(each, found) for each in found] == [True, True, False, False, True]


def test_the_command_writes_table_page_and_the_same_numbers_for_a_tracker(
    swept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["sweep", str(swept), "--tensorboard", str(tmp_path / "events")])
    said = capsys.readouterr().out
    assert "8 runs written" in said
    assert (swept / "sweep.csv").read_text() == as_csv(read_sweep(swept))
    events = next((tmp_path / "events" / "3").iterdir()).read_bytes()
    assert b"held_out_loss" in events
    last = json.loads((swept / "3" / "metrics.jsonl").read_text().splitlines()[-1])
    assert np.float32(last["held_out_loss"]).tobytes() in events
    with pytest.raises(SystemExit, match="holds events already"):
        main(["sweep", str(swept), "--tensorboard", str(tmp_path / "events")])


def test_a_directory_without_runs_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="multirun/DATE/TIME"):
        main(["sweep", str(tmp_path)])


def test_groups_hold_only_finished_runs(swept: Path) -> None:
    (swept / "0" / "report.json").unlink()
    found = groups(read_sweep(swept))
    assert sorted(group.num_runs for group in found) == [1, 2, 2, 2]


def test_the_report_of_a_run_states_what_its_sweep_cost(swept: Path) -> None:
    alone = json.loads((swept / "0" / "report.json").read_text())
    assert alone["statement"]["tuning"]["composed"] is None
    main(["sweep", str(swept)])
    main(["report", str(swept / "0")])
    report = json.loads((swept / "0" / "report.json").read_text())
    cost = composed_cost(read_sweep(swept))
    assert cost is not None
    stated = report["statement"]["tuning"]
    assert not stated["charged"]
    assert stated["composed"]["epsilon"] == cost.epsilon > report["guarantee"]["epsilon"]
    assert (stated["composed"]["num_runs"], stated["composed"]["num_rounds"]) == (8, 16)
    page = (swept / "0" / "report.html").read_text(encoding="utf-8")
    assert "Not charged, but known." in page
    assert 'data-from="/statement/tuning/composed/epsilon"' in page
    main(["report", "--fresh", str(swept / "0")])
    again = json.loads((swept / "0" / "report.json").read_text())
    assert again["statement"]["tuning"] == stated


def test_a_cost_that_is_no_longer_known_is_taken_back(swept: Path) -> None:
    main(["sweep", str(swept)])
    assert (swept / "3" / FILE_NAME).is_file()
    assert not (swept / "8" / FILE_NAME).exists()  # it released nothing
    leave_cost(read_sweep(swept), None)
    assert not list(swept.rglob(FILE_NAME))


def test_a_cost_that_a_sweep_did_not_write_is_refused(swept: Path) -> None:
    (swept / "0" / FILE_NAME).write_text('{"epsilon": "many"}')
    with pytest.raises(SystemExit, match="not what the summary of a sweep writes"):
        main(["report", str(swept / "0")])


def test_the_cost_of_a_run_without_noise_is_infinite(experiment: Make, tmp_path: Path) -> None:
    released(tmp_path / "0", p12(experiment), rounds=2)
    bare = experiment(noise={"_target_": "dpfed_kan.privacy.noising.NoNoise"})
    released(tmp_path / "1", bare, rounds=2)
    sweep = read_sweep(tmp_path)
    leave_cost(sweep, composed_cost(sweep))
    composed = tuning_of(tmp_path / "0")["composed"]
    assert math.isinf(composed["epsilon"])
