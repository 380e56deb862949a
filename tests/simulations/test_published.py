"""The scripts behind published results run, at a size that takes seconds."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulations.kan_gd.train import train as train_kan_gd
from simulations.macadam_mnist import train as macadam
from simulations.macadam_mnist.mnist import Digits, read_digits
from simulations.macadam_mnist.table import table


def digits(count: int) -> Digits:
    rng = np.random.default_rng(count)
    classes = rng.integers(0, 10, count)
    features = rng.random((count, 784)) * 0.1
    features[np.arange(count), classes] = 1.0
    return Digits(features=features, classes=classes)


@pytest.mark.parametrize("model", list(macadam.MODELS))
@pytest.mark.parametrize("rule", ["sgd", "macadam", "macadam_bc_exact"])
def test_a_run_of_the_comparison(monkeypatch: pytest.MonkeyPatch, model: str, rule: str) -> None:
    plan = macadam.mechanism
    monkeypatch.setattr(
        macadam, "mechanism", lambda n, sigma, _: replace(plan(n, sigma), num_rounds=3)
    )
    row = macadam.train(rule, model_name=model, sigma=1.0, seed=0, digits=(digits(600), digits(50)))
    assert 0 <= row["test_accuracy"] <= 1
    again = macadam.train(
        rule, model_name=model, sigma=1.0, seed=0, digits=(digits(600), digits(50))
    )
    assert row["test_accuracy"] == again["test_accuracy"]


def test_the_plan_is_five_epochs_of_256_expected() -> None:
    plan = macadam.mechanism(60_000, 1.0)
    assert plan.num_rounds == 1172
    assert plan.sampling.expected_batch_size(60_000) == pytest.approx(256.0)
    assert set(macadam.RULES) >= {"sgd", "adam", "adam_bc", "adaclip", "macadam", "macadam_bc"}


def test_the_digits_are_read(shared_dir: Any) -> None:
    train, test = read_digits(shared_dir / "data" / "mnist")
    assert (train.features.shape, test.features.shape) == ((60_000, 784), (10_000, 784))
    assert (train.features.min(), train.features.max()) == (0.0, 1.0)
    assert set(train.classes) == set(range(10))


@pytest.mark.parametrize("form", ["lipschitz", "paper", "clip"])
def test_a_cell_of_the_grid_of_widths_and_steps(form: str) -> None:
    row = train_kan_gd(form, width=4, steps=2, rate=1.0, seed=0)
    assert 0.2 < row["test_accuracy"] < 1.0


def test_the_table_shows_what_was_run_and_what_was_not() -> None:
    row = {"model": "mlp", "rule": "sgd", "sigma": 1.0, "epsilon": 0.784, "seconds": 1.0}
    rows = [row | {"test_accuracy": 0.8}, row | {"test_accuracy": 0.9}]
    rows.append(row | {"test_accuracy": 0.7, "sigma": 0.6, "epsilon": 3.99, "rule": "adam"})
    shown = table(rows).splitlines()
    assert shown[0] == "| model | rule | σ=0.6, ε=3.99 | σ=1, ε=0.784 | s a run |"
    assert shown[2] == "| mlp | sgd | - | 0.850 ± 0.071 (2 seeds) | 1 |"
    assert shown[3] == "| mlp | adam | 0.700 (1 seed) | - | 1 |"
