"""The published table of simulations/heart_disease, and that its command still finds it."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from simulations.heart_disease.flamby import pooled_accuracy
from simulations.heart_disease.run import GRID, experiment
from simulations.heart_disease.training import Hyperparameters
from tests.conftest import ROOT

FOLDER = ROOT / "simulations" / "heart_disease"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())


def test_the_readme_shows_the_expected_numbers() -> None:
    text = (FOLDER / "README.md").read_text()
    for name, model in (("KAN", "kan"), ("logistic", "logistic")):
        line = next(line for line in text.splitlines() if line.startswith(f"| {name}"))
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


def test_the_reader_gives_flamby_what_a_sound_run_of_theirs_gives(shared_dir: Path) -> None:
    accuracy = pooled_accuracy(str(shared_dir / "data" / "heart_disease"), seed=0)
    assert accuracy == pytest.approx(0.795, abs=0.02)
