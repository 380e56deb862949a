"""The published table of simulations/heart_disease, and that its command still finds it."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from simulations.heart_disease.flamby import compare, fedavg, pooled, read_splits
from simulations.heart_disease.run import GRID, experiment
from simulations.heart_disease.training import Hyperparameters
from tests.conftest import ROOT

FOLDER = ROOT / "simulations" / "heart_disease"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
FLAMBY = json.loads((FOLDER / "expected_flamby.json").read_text())
README = (FOLDER / "README.md").read_text()


def test_the_readme_shows_the_expected_numbers() -> None:
    for name, model in (("KAN", "kan"), ("logistic", "logistic")):
        line = next(line for line in README.splitlines() if line.startswith(f"| {name}"))
        shown = [float(number) for number in re.findall(r"\.\d{3}", line)]
        rows = [row for row in EXPECTED if row["model"] == model]
        wanted = [round(row[key], 3) for row in rows for key in ("accuracy", "auc")]
        assert shown == wanted
    assert [row["epsilon"] for row in EXPECTED] == ["infinity", 3.0, 1.0, 0.5] * 2


def test_the_epsilon_that_was_spent_is_within_the_target() -> None:
    for row in EXPECTED:
        assert row["epsilon"] == "infinity" or 0.99 < row["epsilon_spent"] / row["epsilon"] <= 1


def test_the_command_finds_what_is_expected(shared_dir: Path) -> None:
    root = str(shared_dir / "data" / "heart_disease")
    expected = {(row["model"], row["epsilon"]): row for row in EXPECTED}
    fixed: Any = {name: (Hyperparameters(**expected[name, 3.0]["chosen"]),) for name in GRID}
    found = experiment(root, seeds=range(2), epsilons=(3.0,), grid=fixed)
    for row in found:
        wanted = expected[row["model"], row["epsilon"]]
        assert row["epsilon_spent"] <= 3.0
        assert math.isclose(row["auc"], wanted["auc"], abs_tol=0.02)
        assert math.isclose(row["accuracy"], wanted["accuracy"], abs_tol=0.04)


@pytest.mark.parametrize(("method", "published"), [("pooled", 0.735), ("fedavg", 0.685)])
def test_flambys_published_accuracy_is_found_within_noise(method: str, published: float) -> None:
    row = FLAMBY[method]
    assert round(row["flamby"], 3) == published
    assert row["num_seeds"] == 50
    assert abs(row["difference_in_standard_errors"]) < 2
    shown = next(line for line in README.splitlines() if line.lower().startswith(f"| {method}"))
    numbers = [float(number) for number in re.findall(r"\.\d{3}", shown)]
    keys = ("flamby", "flamby", "flamby_std", "found", "found_std")
    assert numbers == [round(row[key], 3) for key in keys]


def test_the_command_finds_flambys_accuracies(shared_dir: Path) -> None:
    found = compare(str(shared_dir / "data" / "heart_disease"), seeds=range(5))
    assert found["pooled"]["found"] == pytest.approx(FLAMBY["pooled"]["found"], abs=0.005)
    assert found["fedavg"]["found"] == pytest.approx(FLAMBY["fedavg"]["found"], abs=0.06)


def test_flambys_pooled_model_is_tested_on_other_columns_than_it_was_trained_on(
    shared_dir: Path,
) -> None:
    hospitals = read_splits(str(shared_dir / "data" / "heart_disease"))
    assert [len(hospital.train) for hospital in hospitals] == [199, 172, 30, 85]
    together = pooled(hospitals, seed=0)
    assert together.pooled - together.hospitals == pytest.approx(0.06, abs=0.02)
    assert fedavg(hospitals, seed=0) == fedavg(hospitals, seed=0)
