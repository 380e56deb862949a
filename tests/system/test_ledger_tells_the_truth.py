"""What the ledger says of a run is what can be measured from its releases."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfed_kan.federated.server import Server, rounds
from dpfed_kan.federated.site import Site
from dpfed_kan.privacy.clipping import GradientBlock
from dpfed_kan.privacy.joint_sampling import BallsInBins, FixedSize, Sampling, at_site
from dpfed_kan.privacy.ledger import Ledger
from dpfed_kan.privacy.mechanism import Mechanism
from dpfed_kan.privacy.noising import GaussianNoise
from dpfed_kan.privacy.sampling import Cyclic, FullBatch, Poisson, PoissonBatch
from dpfed_kan.streams import Streams
from dpfed_kan.update.sgd import ProjectedSGD

SIZES = {"site-1": 300, "site-2": 100, "site-3": 600}
DIMENSION = sum(SIZES.values())
CLIP, KAPPA, LAMBDA, ROUNDS, BATCH, ETA = 0.25, 0.02, 0.6, 60, 7.0, 0.5


class OneHot:
    """A linear model whose record i has gradient 3·e_i, so a sum says who took part."""

    num_params = DIMENSION

    def __init__(self, first: int) -> None:
        self._first = first

    def blocks(self, params: np.ndarray, indices: np.ndarray) -> tuple[GradientBlock, ...]:
        right = np.zeros((len(indices), DIMENSION))
        right[np.arange(len(indices)), self._first + indices] = 1.0
        return (GradientBlock(left=np.full((len(indices), 1), 3.0), right=right),)


def measured(sampling: Sampling, path: Path) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Run and return (who took part, noise per clip norm, what the ledger's file says)."""
    mechanism = Mechanism(
        sampling=sampling,
        noise=GaussianNoise(noise_multiplier=KAPPA, correlation=LAMBDA),
        l2_clip_norm=CLIP,
        num_rounds=ROUNDS,
    )
    starts = np.cumsum([0, *SIZES.values()])
    sites = [
        Site(
            name=name,
            num_records=size,
            gradients=OneHot(int(start)),
            sampling=at_site(sampling, size),
            l2_clip_norm=CLIP,
            streams=Streams.from_seed(4).for_site(name),
        )
        for (name, size), start in zip(SIZES.items(), starts, strict=False)
    ]
    rule = ProjectedSGD(learning_rate=ETA)
    server = Server(mechanism=mechanism, update_rule=rule, num_records=SIZES, batch_size=BATCH)
    states = rounds(
        server,
        rule.start(np.zeros(DIMENSION)),
        sum_over_sites=server.over(lambda broadcast: [site.work(broadcast) for site in sites]),
        streams=Streams.from_seed(5),
        ledger=Ledger(mechanism=mechanism, num_records=SIZES, path=path),
    )
    params = np.array([np.zeros(DIMENSION), *(state.params for state in states)])
    releases = -np.diff(params, axis=0) * BATCH / ETA / CLIP
    taken = np.rint(releases)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return taken, releases - taken, {"plan": lines[0]["plan"], "releases": lines[1:]}


@pytest.fixture(scope="module")
def poisson(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    return measured(Poisson(sampling_prob=0.2), path)


def test_one_record_contributes_at_most_the_recorded_sensitivity(poisson: Any) -> None:
    taken, _, said = poisson
    assert set(np.unique(taken)) == {0.0, 1.0}  # in units of the clip norm
    assert {line["release"]["l2_sensitivity"] for line in said["releases"]} == {CLIP}
    assert said["plan"]["l2_clip_norm"] == CLIP


def test_records_were_included_at_the_recorded_rate(poisson: Any) -> None:
    taken, _, said = poisson
    recorded = said["plan"]["sampling"]
    assert recorded["type"] == "Poisson"
    std = math.sqrt(recorded["sampling_prob"] * (1 - recorded["sampling_prob"]) / taken.size)
    assert abs(taken.mean() - recorded["sampling_prob"]) < 4 * std
    for column in np.split(taken, np.cumsum(list(SIZES.values()))[:-1], axis=1):
        assert abs(column.mean() - recorded["sampling_prob"]) < 0.02


def test_batches_vary_as_poisson_batches_do(poisson: Any) -> None:
    taken, _, said = poisson
    prob = said["plan"]["sampling"]["sampling_prob"]
    counts = taken.sum(axis=1)
    assert 0.5 < counts.var() / (DIMENSION * prob * (1 - prob)) < 1.7
    assert abs(np.corrcoef(counts[1:], counts[:-1])[0, 1]) < 0.5


def test_the_noise_has_the_recorded_scale_and_correlation(poisson: Any) -> None:
    _, noise, said = poisson
    for t, line in enumerate(said["releases"]):
        event = line["release"]
        assert event["round_index"] == t
        expected = event["noise_multiplier"] * math.sqrt(
            1 + (event["correlation"] ** 2 if t else 0)
        )
        assert noise[t].std() == pytest.approx(expected, rel=0.1)
    lam = said["plan"]["noise"]["correlation"]
    lagged = np.mean(noise[1:-1] * noise[2:]) / np.mean(noise[1:] ** 2)
    assert lagged == pytest.approx(-lam / (1 + lam**2), abs=0.02)
    assert abs(np.mean(noise[:-2] * noise[2:]) / np.mean(noise**2)) < 0.02
    assert noise.mean() == pytest.approx(0.0, abs=4 * KAPPA / math.sqrt(noise.size))


def test_every_release_is_recorded_once(poisson: Any) -> None:
    _, _, said = poisson
    assert len(said["releases"]) == said["plan"]["num_rounds"] == ROUNDS


def test_a_cycle_takes_each_record_as_often_as_the_plan_says(tmp_path: Path) -> None:
    taken, _, said = measured(Cyclic(num_batches=6), tmp_path / "ledger.jsonl")
    assert said["plan"]["sampling"] == {"type": "Cyclic", "num_batches": 6}
    assert (taken.sum(axis=0) == ROUNDS / 6).all()
    assert all((np.diff(np.flatnonzero(column)) == 6).all() for column in taken.T)


def test_a_full_batch_takes_everybody(tmp_path: Path) -> None:
    taken, _, said = measured(FullBatch(), tmp_path / "ledger.jsonl")
    assert said["plan"]["sampling"] == {"type": "FullBatch"}
    assert taken.all()


def test_bins_take_each_record_once_in_every_cycle_in_an_order_of_its_own(tmp_path: Path) -> None:
    taken, _, said = measured(BallsInBins(num_bins=6), tmp_path / "ledger.jsonl")
    assert said["plan"]["sampling"] == {"type": "BallsInBins", "num_bins": 6}
    assert (taken.sum(axis=0) == ROUNDS / 6).all()
    assert all((np.diff(np.flatnonzero(column)) == 6).all() for column in taken.T)
    first = taken[:6].argmax(axis=0)
    assert np.bincount(first, minlength=6).min() > 100  # uniform: 167 each
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 0.15


def test_fixed_size_takes_exactly_b_records_wherever_they_are(tmp_path: Path) -> None:
    taken, _, said = measured(FixedSize(batch_size=100), tmp_path / "ledger.jsonl")
    assert said["plan"]["sampling"] == {"type": "FixedSize", "batch_size": 100}
    assert (taken.sum(axis=1) == 100).all()
    site_1 = taken[:, : SIZES["site-1"]].sum(axis=1)
    assert site_1.mean() == pytest.approx(30, abs=2.5)
    assert 8 < site_1.var() < 35  # hypergeometric: 18.9; a fixed share would have 0
    assert np.abs(taken.mean(axis=0) - 0.1).max() < 0.25


def test_sites_with_rates_of_their_own_take_part_at_them(tmp_path: Path) -> None:
    taken, _, said = measured(PoissonBatch(site_batch_size=50), tmp_path / "ledger.jsonl")
    assert said["plan"]["sampling"] == {"type": "PoissonBatch", "site_batch_size": 50}
    for column, size in zip(
        np.split(taken, np.cumsum(list(SIZES.values()))[:-1], axis=1), SIZES.values(), strict=True
    ):
        assert column.mean() == pytest.approx(50 / size, rel=0.12)
