"""GD and DP-GD over m and T: a cell, what is chosen, and that expected.json is what is run."""

import json
from typing import Any

import pytest

from dpfed_kan.privacy.accounting import account
from simulations.kan_gd.grid import DATA_SETS, EPSILON, Task, descend, load, mechanism, run
from simulations.kan_gd.plot import chosen, draw, one_each, one_rate, table
from tests.conftest import ROOT

ROW = {"data": "synthetic", "form": "dp_gd", "width": 8, "steps": 4}


@pytest.fixture(scope="module")
def task() -> Task:
    return load("synthetic", root=None, seed=0)


@pytest.mark.parametrize("steps", [4, 64])
def test_dp_gd_spends_its_epsilon_whatever_the_steps(task: Task, steps: int) -> None:
    spent = account(mechanism("dp_gd", task, steps), delta=task.delta).epsilon
    assert 0.99 * EPSILON < spent <= EPSILON


def test_a_shorter_descent_without_noise_is_the_beginning_of_a_longer_one(task: Task) -> None:
    asked: dict[str, Any] = {"width": 4, "rate": 4.0, "seed": 0}
    long = descend(task, mechanism("gd", task, 6), stops=(3, 6), **asked)
    short = descend(task, mechanism("gd", task, 3), stops=(3,), **asked)
    assert long[3] == short[3]
    assert long[6] != long[3]


def test_mnist_is_split_into_what_is_trained_on_and_the_test_files(shared_dir: Any) -> None:
    task = load("mnist", root=shared_dir / "data" / "mnist", seed=0)
    assert task.features.shape == (2000, 784)
    assert len(task.held_out) == 1984  # 3 and 8 of the 10,000
    with pytest.raises(ValueError, match="--root"):
        load("mnist", root=None, seed=0)


def test_a_cell_shows_the_rate_of_least_training_loss_and_its_test_accuracy() -> None:
    rows = [
        ROW | {"rate": rate, "seed": seed, "training_loss": loss, "test_accuracy": accuracy}
        for rate, loss, accuracy in ((1.0, 0.2, 0.7), (4.0, 0.1, 0.6))  # the better is not taken
        for seed in (0, 1)
    ]
    seen = chosen(rows, data="synthetic", form="dp_gd")[4, 8]
    assert (seen.rate, seen.accuracy, seen.num_seeds) == (4.0, 0.6, 2)
    assert chosen(rows, data="synthetic", form="dp_gd", rate=1.0)[4, 8].accuracy == 0.7
    assert one_rate(rows, data="synthetic", form="dp_gd") == 4.0
    assert "| 4 | 0.600 ± 0.000, η=4 |" in table({(4, 8): seen})
    with pytest.raises(ValueError, match="expected runs of gd"):
        one_rate(rows, data="synthetic", form="gd")


def test_a_run_without_noise_is_a_row_for_each_number_of_steps() -> None:
    row = {"form": "gd", "at": [{"steps": 4, "test_accuracy": 0.5}, {"steps": 16}]}
    assert list(one_each([row, {"form": "dp_gd", "steps": 4}])) == [
        {"form": "gd", "steps": 4, "test_accuracy": 0.5},
        {"form": "gd", "steps": 16},
        {"form": "dp_gd", "steps": 4},
    ]


EXPECTED = json.loads((ROOT / "simulations" / "kan_gd" / "expected.json").read_text())


@pytest.mark.parametrize("cell", [{"width": 8, "steps": 64}, {"width": 32, "steps": 16}])
def test_a_cell_that_is_run_again_is_what_was_expected(task: Task, cell: dict[str, int]) -> None:
    named = {"data": "synthetic", "form": "dp_gd", "rate": 16.0, "seed": 0} | cell
    (row,) = (row for row in EXPECTED["grid"] if named.items() <= row.items())
    found = run(task, named)
    assert found["training_loss"] == pytest.approx(row["training_loss"], abs=2e-3)
    assert found["test_accuracy"] == pytest.approx(row["test_accuracy"], abs=5e-3)


def test_the_pictures_are_drawn(tmp_path: Any) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra plots")
    rows = list(one_each(EXPECTED["grid"]))
    for data in DATA_SETS:
        draw(rows, data, tmp_path)
        assert (tmp_path / f"grid_{data}.png").read_bytes().startswith(b"\x89PNG")


def test_at_one_rate_the_middle_of_the_grid_is_best() -> None:
    """The claim: a moderate width and a moderate number of steps, on XOR at ε = 2."""
    rows = list(one_each(EXPECTED["grid"]))
    rate = one_rate(rows, data="synthetic", form="dp_gd")
    found = chosen(rows, data="synthetic", form="dp_gd", rate=rate)
    best = max(found, key=lambda cell: found[cell].accuracy)
    assert best[0] == 64
    assert best[1] in (32, 128)
