"""Beside Figure 2: the shifted iterate, clipping that the step makes up for, and the ball."""

import json
from dataclasses import replace

import pytest

from dpfed_kan.privacy.sampling import FullBatch
from dpfed_kan.simulated_sites import SimulatedSites
from dpfed_kan.update.adam import DPAdam
from dpfed_kan.update.sgd import ProjectedSGD
from simulations.correlated_noise.clipping import at_clip, in_ball, run, share_clipped
from simulations.correlated_noise.shifted_iterate import deviation
from simulations.correlated_noise.train import at_noise, job, train
from tests.conftest import ROOT

PLAIN = replace(job("synthetic", mnist_root=None, seed=0), num_rounds=40)


@pytest.fixture(scope="module")
def sites() -> SimulatedSites:
    return SimulatedSites(PLAIN, PLAIN.streams())


@pytest.mark.parametrize("lam", [0.0, 0.5, 0.9])
def test_a_run_moves_as_the_shifted_iterate_says(sites: SimulatedSites, lam: float) -> None:
    found = deviation(replace(PLAIN, noise=at_noise(6.3, lam)), sites)
    assert found.share_projected == 0
    assert found.of_a_step < 1e-12
    assert found.of_the_sum < 1e-12


def test_it_does_not_where_the_iterates_are_projected(sites: SimulatedSites) -> None:
    noisy = replace(PLAIN, noise=at_noise(6.3, 0.9))
    found = deviation(in_ball(noisy, 1.0), sites)
    assert found.share_projected > 0.5
    assert found.of_a_step > 0.1
    assert found.of_the_sum > 0.1


def test_it_is_of_any_sampling_and_step(sites: SimulatedSites) -> None:
    other = replace(
        PLAIN,
        sampling=FullBatch(),
        noise=at_noise(2.0, 0.7),
        update=ProjectedSGD(learning_rate=3.0),
        num_rounds=10,
    )
    assert deviation(other, sites).of_a_step < 1e-12


def test_it_is_asked_of_nothing_else(sites: SimulatedSites) -> None:
    noisy = replace(PLAIN, noise=at_noise(6.3, 0.5))
    with pytest.raises(TypeError, match="expected ProjectedSGD, got DPAdam"):
        deviation(replace(noisy, update=DPAdam(learning_rate=0.1)), sites)
    normalized = replace(at_noise(6.3, 0.5), column_normalized=True)
    with pytest.raises(ValueError, match="not normalised"):
        deviation(replace(PLAIN, noise=normalized), sites)


def test_where_all_is_clipped_a_stronger_clip_and_a_longer_step_are_the_same(
    sites: SimulatedSites,
) -> None:
    """η C fixed: below the shortest gradient C has no effect at all, noise included."""
    cell = {"kappa": 6.3, "correlation": 0.5}
    found = [run(PLAIN, sites, cell | {"clip": clip}) for clip in (1e-4, 1e-5)]
    assert found[0]["share_clipped_at_start"] == 1
    assert found[0]["averaged_loss"] == pytest.approx(found[1]["averaged_loss"], rel=1e-6)
    loose = run(PLAIN, sites, cell | {"clip": 4.0})
    assert loose["share_clipped_at_start"] == 0
    assert abs(loose["averaged_loss"] - found[0]["averaged_loss"]) > 1e-3


def test_the_multiplier_and_so_the_epsilon_do_not_depend_on_the_clip(
    sites: SimulatedSites,
) -> None:
    plans = [
        replace(at_clip(PLAIN, clip), noise=at_noise(6.3, 0.5)).mechanism(sites.num_records)
        for clip in (0.5, 0.1)
    ]
    assert replace(plans[1], l2_clip_norm=0.5) == plans[0]


def test_the_share_that_is_clipped_falls_with_the_clip(sites: SimulatedSites) -> None:
    shares = [share_clipped(sites, clip) for clip in (0.02, 0.25, 0.5, 2.0)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == 1
    assert shares[-1] == 0


def test_a_smaller_ball_is_left_more_often_and_correlated_noise_leaves_it_less(
    sites: SimulatedSites,
) -> None:
    share = {
        (radius, lam): run(PLAIN, sites, {"radius": radius, "kappa": 6.3, "correlation": lam})[
            "share_projected"
        ]
        for radius, lam in ((4.0, 0.0), (4.0, 0.9), (64.0, 0.0))
    }
    assert share[4.0, 0.0] > 0.5 > share[4.0, 0.9]
    assert share[64.0, 0.0] == 0


EXPECTED = json.loads((ROOT / "simulations" / "correlated_noise" / "expected.json").read_text())


@pytest.mark.parametrize(
    ("result", "cell"),
    [
        ("figure_2", {"kappa": 11.8, "correlation": 0.9}),
        ("clipping", {"clip": 0.25, "kappa": 6.3, "correlation": 0.5}),
        ("ball", {"radius": 8.0, "kappa": 6.3, "correlation": 0.0}),
    ],
)
def test_a_cell_that_is_run_again_is_what_was_expected(
    sites: SimulatedSites, result: str, cell: dict[str, float]
) -> None:
    """Seed 0 of the synthetic set, all 400 rounds."""
    (row,) = (
        row
        for row in EXPECTED[result]
        if (cell | {"data": "synthetic", "seed": 0}).items() <= row.items()
    )
    whole = job("synthetic", mnist_root=None, seed=0)
    if result == "figure_2":
        noisy = replace(whole, noise=at_noise(cell["kappa"], cell["correlation"]))
        found = train(noisy, sites, noisy.mechanism(sites.num_records))
    else:
        found = run(whole, sites, cell)
    for name in set(found) & set(row):
        assert found[name] == pytest.approx(row[name], abs=2e-3), name
