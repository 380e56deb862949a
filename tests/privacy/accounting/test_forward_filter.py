import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from dpfed_kan.privacy.accounting import Bound
from dpfed_kan.privacy.accounting.forward_filter import EpsilonEstimate, estimate_poisson_epsilon
from dpfed_kan.privacy.accounting.gaussian import gaussian_epsilon
from dpfed_kan.privacy.noising import GaussianNoise
from dpfed_kan.privacy.sensitivity import full_batch_sensitivity

ORACLES = Path(__file__).parents[3].parent / "shared" / "oracles" / "accounts.json"


def rows(*keys):
    if not ORACLES.exists():
        return []
    oracles = json.loads(ORACLES.read_text(encoding="utf-8"))
    return [row for key in keys for row in oracles[key]]


def estimate(kappa, correlation, sampling_prob, num_rounds, delta, **more) -> EpsilonEstimate:
    return estimate_poisson_epsilon(
        noise=GaussianNoise(noise_multiplier=kappa, correlation=correlation),
        sampling_prob=sampling_prob,
        num_rounds=num_rounds,
        horizon=num_rounds,
        delta=delta,
        rng=np.random.default_rng(17),
        **more,
    )


def agrees(found, exact, extra=0.0):
    value, error = found
    return abs(value - exact) <= 4 * error + extra


@pytest.mark.parametrize("row", rows("brute_T123"), ids=str)
def test_short_runs_agree_with_brute_force(row):
    found = estimate(
        row["kappa"], row["lam"], row["r"], row["T"], row["delta"], num_samples=6000, num_grid=272
    )
    tolerance = 2e-3 * row["exact_rem"]  # of the oracle at q = 1 and of the grid
    assert agrees(found.remove, row["exact_rem"], tolerance)
    assert agrees(found.add, row["exact_add"], tolerance)


LONG = [r for r in rows("lambda_poisson_mc_estimate") if r["lam"] < 0.9]
LONG += rows("lambda_poisson_mc_estimate_fine")


def long_run(row, **more):
    found = estimate(row["kappa"], row["lam"], 0.025, 400, row["delta"], **more)
    for value, key in ((found.remove, "rem"), (found.add, "add")):
        spread = (row[f"{key}_3se"] - row[key]) / 3
        grid = 0.01 * row[key] if row["lam"] > 0 else 0.0
        assert agrees(value, row[key], 4 * spread + grid)


@pytest.mark.parametrize(
    "row",
    [r for r in LONG if r["kappa"] == 6.3 and r["delta"] == 1e-5 and r["lam"] != 0.25],
    ids=str,
)
def test_long_runs_agree_with_the_independent_estimate(row):
    long_run(row, num_samples=1200, num_grid=160 if row["lam"] > 0 else 2)


@pytest.mark.slow
@pytest.mark.parametrize("row", LONG, ids=str)
def test_all_long_runs_agree_with_the_independent_estimate(row):
    long_run(row, num_samples=9600, num_grid=224 if row["lam"] > 0 else 2)


def test_the_full_batch_is_one_gaussian():
    noise = GaussianNoise(noise_multiplier=15.0, correlation=0.8, column_normalized=True)
    sensitivity = full_batch_sensitivity(noise, num_rounds=20, horizon=30)
    found = estimate_poisson_epsilon(
        noise=noise,
        sampling_prob=1.0,
        num_rounds=20,
        horizon=30,
        delta=1e-4,
        rng=np.random.default_rng(0),
        num_samples=2400,
        num_grid=500,
    )
    exact = gaussian_epsilon(delta=1e-4, mu=sensitivity / 15.0)
    assert agrees(found.remove, exact, 2e-3 * exact)
    assert agrees(found.add, exact, 2e-3 * exact)


def test_an_estimate_cannot_be_taken_for_a_bound():
    names = {field.name for field in dataclasses.fields(EpsilonEstimate)}
    assert "epsilon" not in names
    assert not hasattr(EpsilonEstimate, "epsilon")
    assert not issubclass(EpsilonEstimate, Bound)
    assert {"estimate", "standard_error"} <= names


def test_the_estimate_is_the_larger_direction_and_a_function_of_the_random_state():
    first, again = (estimate(2.0, 0.5, 0.1, 5, 1e-3, num_samples=480) for _ in range(2))
    assert first == again
    assert (first.estimate, first.standard_error) == max(first.remove, first.add)


def test_settings_out_of_range_are_refused_by_name():
    for wrong in [
        {"kappa": 0.0},
        {"sampling_prob": 0.0},
        {"delta": 1.0},
        {"num_rounds": 0},
        {"num_grid": 1},
        {"num_samples": 3},
    ]:
        good = {"kappa": 1.0, "correlation": 0.5, "sampling_prob": 0.1, "num_rounds": 3}
        name = "noise_multiplier" if "kappa" in wrong else next(iter(wrong))
        with pytest.raises(ValueError, match=name):
            estimate(**(good | {"delta": 1e-3} | wrong))
