"""Trials P02, P10 and F05 on the invented records of tests/data/fixtures."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpfed_kan.data.encoding import encode
from dpfed_kan.data.reader import read_table
from dpfed_kan.data.records import Records
from dpfed_kan.federated.server import RoundRefused, Server
from dpfed_kan.federated.site import Broadcast, Reply, Site
from dpfed_kan.kan import KANGradients, TwoLayerKAN
from dpfed_kan.privacy.accounting import account
from dpfed_kan.privacy.clipping import GradientBlock
from dpfed_kan.privacy.joint_sampling import Sampling
from dpfed_kan.privacy.mechanism import Mechanism
from dpfed_kan.privacy.noising import GaussianNoise
from dpfed_kan.privacy.sampling import Cyclic, Poisson
from dpfed_kan.schema_file import load_schema
from dpfed_kan.streams import Streams
from dpfed_kan.update.sgd import ProjectedSGD
from tests.conftest import ROOT

FIXTURES = ROOT / "tests" / "data" / "fixtures"
SCHEMA = load_schema(FIXTURES / "schema.yaml")
MODEL = TwoLayerKAN(hidden_width=3, input_grid=None).for_inputs(14)
PARAMS = MODEL.initialize(14, np.random.default_rng(0))


def records(name: str) -> Records:
    return encode(read_table(FIXTURES / f"{name}.csv", SCHEMA), SCHEMA)


def site(of: Records, sampling: Sampling, gradients: Any = None) -> Site:
    kan = KANGradients(model=MODEL, frozen=PARAMS.frozen, features=of.features, labels=of.labels)
    return Site(
        name="a",
        num_records=len(of),
        gradients=gradients or kan,
        sampling=sampling,
        l2_clip_norm=1.0,
        streams=Streams.from_seed(0).for_site("a"),
    )


def mechanism(sampling: Sampling, **settings: Any) -> Mechanism:
    noise = GaussianNoise(noise_multiplier=1.5)
    return Mechanism(sampling=sampling, noise=noise, l2_clip_norm=1.0, num_rounds=10, **settings)


@pytest.mark.parametrize(
    ("name", "sampling", "divisor"),
    [
        ("base_site_a", Poisson(sampling_prob=0.25), 10.0),
        ("p02_site_53rows", Cyclic(num_batches=4), 13.25),
    ],
)
def test_the_divisor_is_a_public_constant_whatever_comes(  # P02
    name: str, sampling: Sampling, divisor: float
) -> None:
    here = site(records(name), sampling)
    counts = {len(here.draw(t)) for t in range(10)}
    assert len(counts) > 1  # 13 and 14 of 53 records in a cycle of four
    assert sampling.expected_batch_size(here.num_records) == divisor
    steps = []
    for round_index in range(10):
        reply = here.work(Broadcast(round_index=round_index, params=PARAMS.trainable))
        release = mechanism(sampling).privatize(
            Server(
                mechanism=mechanism(sampling),
                update_rule=ProjectedSGD(learning_rate=1.0),
                num_records={"a": here.num_records},
                batch_size=divisor,
            ).add_up([reply], round_index=round_index, dimension=len(reply.value)),
            round_index=round_index,
            streams=Streams.from_seed(1),
        )
        rule = ProjectedSGD(learning_rate=1.0)
        moved = rule.step(rule.start(PARAMS.trainable), release, batch_size=divisor)
        steps.append((PARAMS.trainable - moved.params) / release.value)
    np.testing.assert_allclose(np.array(steps), 1 / divisor, rtol=1e-6)


def test_non_finite_cells_that_get_through_count_as_nothing() -> None:  # P10
    loose = replace(
        SCHEMA,
        columns=tuple(
            replace(c, low=-1e300, high=1e300, out_of_range="clip") if c.name == "oldpeak" else c
            for c in SCHEMA.columns
        ),
    )
    table = read_table(FIXTURES / "p10_inf_cells.csv", loose)
    assert [finding.rows for finding in table.fatal] == [(5, 11)]
    sound = [k for k in range(12) if k not in (3, 7, 9)]  # rows 5, 9 and 11 of the file

    class Forced:  # the check of the reader forced off
        num_params = 4

        def blocks(self, params: np.ndarray, indices: np.ndarray) -> tuple[GradientBlock, ...]:
            cells = np.ones((12, 4))
            cells[3, 0], cells[7, 1], cells[9, 2] = np.inf, 1e308, -np.inf
            left = np.full((12, 1), 3.0)
            left[7] = 1e10
            return (GradientBlock(left=left[indices], right=cells[indices]),)

    here = site(records("base_site_a"), Poisson(sampling_prob=1.0), gradients=Forced())
    reply = replace(here, num_records=12).work(Broadcast(round_index=0, params=np.zeros(4)))
    np.testing.assert_allclose(reply.value, np.full(4, len(sound) * 0.5))


def test_a_site_that_replies_nan_is_refused_by_name() -> None:  # P10
    server = Server(
        mechanism=mechanism(Poisson(sampling_prob=1.0)),
        update_rule=ProjectedSGD(learning_rate=1.0),
        num_records={"a": 9, "b": 9},
        batch_size=18.0,
    )
    replies = [
        Reply(site="a", round_index=0, value=np.zeros(3)),
        Reply(site="b", round_index=0, value=np.array([0.0, np.nan, 0.0])),
    ]
    with pytest.raises(RoundRefused, match="round 0, b: the sum is not finite"):
        server.add_up(replies, round_index=0, dimension=3)


def test_a_site_smaller_than_the_batch_is_accounted_without_amplification() -> None:  # F05
    found = account(mechanism(Poisson(sampling_prob=1.0)), delta=1e-5)
    assert found.epsilon == pytest.approx(10.67, rel=0.02)
    here = site(records("f05_five_rows"), Poisson(sampling_prob=1.0))
    assert here.draw(0).tolist() == [0, 1, 2, 3, 4]
    one = site(records("f05_one_row"), Poisson(sampling_prob=1.0))
    reply = one.work(Broadcast(round_index=0, params=PARAMS.trainable))
    assert reply.value.shape == PARAMS.trainable.shape
