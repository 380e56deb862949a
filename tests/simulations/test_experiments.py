"""conf/experiment: each overlay is the job that its folder's script runs, and `-m` sweeps it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir

from dpfed_kan.config import build
from dpfed_kan.flower_app import compose as compose_for_flower
from dpfed_kan.privacy.noising import GaussianNoise, NoNoise
from simulations.correlated_noise import fixed_epsilon
from simulations.correlated_noise.train import at_noise, job
from simulations.heart_disease.run import GRID
from simulations.heart_disease.training import mechanism as hospitals
from simulations.kan_gd import grid
from simulations.macadam_mnist import train as macadam
from tests.conftest import ROOT
from tests.test_config import composed

NAMES = sorted(path.stem for path in (ROOT / "conf" / "experiment").glob("*.yaml"))
TABLE_1 = [name for name in NAMES if name.startswith("table_1_")]


def experiment(name: str, *more: str) -> Any:
    return build(composed(f"+experiment={name}", *more))


def test_figure_2_is_the_job_that_its_script_runs() -> None:
    changes: dict[str, Any] = {"noise": at_noise(6.3, 0.5), "evaluate_every": 100}
    plain = job("synthetic", mnist_root=None, seed=0, **changes)
    assert experiment("figure_2_synthetic") == plain
    plain = job("mnist", mnist_root=Path("there"), seed=0, **changes)
    assert experiment("figure_2_mnist", "data.root=there") == plain


def test_the_fixed_epsilon_of_heart_is_the_cell_that_its_script_runs() -> None:
    cell = replace(
        fixed_epsilon.base("heart", Path("there"), seed=0),
        sampling=fixed_epsilon.samplings("heart")["poisson"],
        noise=GaussianNoise(correlation=0.5),
        update=fixed_epsilon.rules("heart")["sgd"],
    )
    assert experiment("heart_fixed_epsilon", "data.root=there") == cell


def test_the_hospitals_are_those_of_their_folder() -> None:
    found = experiment("heart_hospitals")
    plan = hospitals(1.0, l2_clip_norm=found.privacy.l2_clip_norm)
    assert (plan.num_rounds, plan.sampling) == (found.num_rounds, found.sampling)
    chosen = {(row.learning_rate, row.l2_clip_norm) for row in GRID["kan"]}
    rates = [rate for rate, clip in chosen if clip == found.privacy.l2_clip_norm]
    assert min(abs(rate - found.update.learning_rate) for rate in rates) < 1e-9


@pytest.mark.parametrize("name", TABLE_1)
def test_a_rule_of_table_1_is_the_scripts(name: str) -> None:
    found, plan = experiment(name), macadam.mechanism(60_000, 1.0)
    assert found.update == macadam.RULES[name.removeprefix("table_1_")]
    assert found.mechanism({"all": 60_000}) == plan


def test_table_1_has_the_six_rules() -> None:
    assert len(TABLE_1) == 6


@pytest.mark.parametrize("data", ["synthetic", "mnist"])
def test_gd_and_dp_gd_are_the_grids(data: str, shared_dir: Any) -> None:
    private, plain = experiment(f"dp_gd_{data}"), experiment(f"gd_{data}")
    task = grid.load(data, root=shared_dir / "data" / "mnist", seed=0)
    assert private.model.num_basis == task.num_basis
    assert private.model.input_grid in (None, task.input_grid)  # None: 1/√d
    assert private.model.train_second_layer
    assert private.update.learning_rate in task.rates
    assert private.privacy.target_epsilon == grid.EPSILON
    assert private.privacy.target_delta == task.delta
    assert private.privacy.l2_clip_norm == grid.CLIP
    assert plain == replace(
        private,
        noise=NoNoise(),
        privacy=replace(private.privacy, target_epsilon=None, l2_clip_norm=float("inf")),
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_says_what_a_sweep_of_it_runs(name: str) -> None:
    text = (ROOT / "conf" / "experiment" / f"{name}.yaml").read_text(encoding="utf-8")
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = compose("config", [f"+experiment={name}"], return_hydra_config=True)
    number = 1
    for values in config.hydra.sweeper.params.values():
        number *= len(str(values).split(","))
    if "sweeper" in text:  # else it is the one that it builds on
        assert f"# what -m runs: {number} runs" in text
    assert number > 1
    assert f"`{name}`" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_flowers_own_command_takes_an_experiment_too() -> None:
    found = compose_for_flower("+experiment=figure_2_synthetic num_rounds=3")
    assert found == experiment("figure_2_synthetic", "num_rounds=3", "runtime=in_process")
