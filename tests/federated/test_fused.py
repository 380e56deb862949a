"""The fused sites are the sites: the same draws bit for bit, the same sums up to rounding."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpfed_kan.data.federation import IID, FederatedData
from dpfed_kan.data.partition import QuantitySkew
from dpfed_kan.data.synthetic import SyntheticLogistic
from dpfed_kan.experiment import Experiment, PrivacySettings
from dpfed_kan.federated.fused import FusedSites, UnionSite
from dpfed_kan.federated.runtimes import Fused
from dpfed_kan.federated.server import Server, rounds
from dpfed_kan.federated.site import Broadcast, Site, draw_block
from dpfed_kan.kan import KANGradients, TwoLayerKAN
from dpfed_kan.models.spec import MLP
from dpfed_kan.privacy.joint_sampling import BallsInBins, FixedSize, total_batch_size
from dpfed_kan.privacy.ledger import Ledger
from dpfed_kan.privacy.noising import GaussianNoise
from dpfed_kan.privacy.sampling import Cyclic, FullBatch, Poisson, PoissonBatch
from dpfed_kan.privacy.transform import ClipTransform
from dpfed_kan.simulated_sites import SimulatedSites
from dpfed_kan.streams import Streams
from dpfed_kan.update.macadam import DPMacAdam
from dpfed_kan.update.sgd import ProjectedSGD

KAN = TwoLayerKAN(hidden_width=4, num_basis=5, spline_degree=2)
SAMPLERS: list[Any] = [
    Poisson(sampling_prob=0.1),
    PoissonBatch(site_batch_size=6),
    FixedSize(batch_size=30),
    BallsInBins(num_bins=4),
    Cyclic(num_batches=3),
    FullBatch(),
]


def experiment(sampling: Any, **changes: Any) -> Experiment:
    made = Experiment(
        data=FederatedData(
            source=SyntheticLogistic(num_records=400, input_dim=3),
            partition=QuantitySkew(num_sites=7, concentration=0.7),
            min_records=1,
        ),
        model=KAN,
        sampling=sampling,
        noise=GaussianNoise(noise_multiplier=0.7, correlation=0.4),
        privacy=PrivacySettings(l2_clip_norm=0.2, target_epsilon=None, target_delta=1e-5),
        update=ProjectedSGD(learning_rate=0.5),
        runtime=Fused(),
        num_rounds=6,
        seed=0,
    )
    return replace(made, **changes)


def trained(job: Experiment, sites: SimulatedSites, total: Any) -> tuple[list[Any], list[Any]]:
    mechanism = job.mechanism(sites.num_records)
    server = Server(
        mechanism=mechanism,
        update_rule=job.update,
        num_records=sites.num_records,
        batch_size=total_batch_size(job.sampling, list(sites.num_records.values())),
    )
    if total is None:
        answering = [sites(sites.settings, k) for k in range(len(sites.num_records))]
        total = server.over(lambda broadcast: [site.work(broadcast) for site in answering])
    ledger = Ledger(mechanism=mechanism, num_records=sites.num_records)
    state = job.update.start(sites.params.trainable, num_rounds=job.num_rounds)
    states = rounds(server, state, sum_over_sites=total, streams=job.streams(), ledger=ledger)
    return [state.params for state in states], ledger.events


@pytest.mark.parametrize("sampling", SAMPLERS, ids=lambda sampling: type(sampling).__name__)
@pytest.mark.parametrize("rule", [ProjectedSGD(learning_rate=0.5), DPMacAdam(learning_rate=0.01)])
def test_the_fused_release_is_that_of_the_messages(sampling: Any, rule: Any) -> None:
    job = experiment(sampling, update=rule)
    sites = SimulatedSites(job, job.streams())
    fused, events = trained(job, sites, sites.fused())
    messages, expected = trained(job, sites, None)
    assert len(fused) == 6
    np.testing.assert_allclose(fused, messages, rtol=0, atol=1e-12 * np.abs(messages).max())
    assert [replace(event, release_sha256="") for event in events] == [
        replace(event, release_sha256="") for event in expected
    ]


def test_a_torch_module_too() -> None:
    job = experiment(SAMPLERS[0], model=MLP(hidden_widths=[5], num_outputs=1, loss="logistic"))
    sites = SimulatedSites(job, job.streams())
    fused, messages = trained(job, sites, sites.fused())[0], trained(job, sites, None)[0]
    np.testing.assert_allclose(fused, messages, rtol=0, atol=1e-12 * np.abs(messages).max())


def in_union(fused: FusedSites, drawn: Mapping[str, Any]) -> list[int]:
    return sorted(int(i) + fused.sites[name].first for name in drawn for i in drawn[name])


@pytest.mark.parametrize("sampling", SAMPLERS, ids=lambda sampling: type(sampling).__name__)
def test_the_draws_are_the_sites_own_bit_for_bit(sampling: Any) -> None:
    job = experiment(sampling)
    sites = SimulatedSites(job, job.streams())
    fused = sites.fused()
    answering = [sites(sites.settings, k) for k in range(len(sites.num_records))]
    for t in (0, 1, 5, 1023, 1024, 1025, 3000, 2):
        counts = None
        if isinstance(sampling, FixedSize):
            counts = {site.name: t % (site.num_records + 1) for site in answering}
        broadcast = Broadcast(round_index=t, params=np.zeros(1), counts=counts)
        own = {
            site.name: site.draw(t, count=None if counts is None else counts[site.name])
            for site in answering
        }
        union = fused.draw_units(broadcast).tolist()
        assert sorted(union) == in_union(fused, own)
        assert len(set(union)) == len(union)


def test_a_site_draws_its_blocks_from_streams_of_their_own() -> None:
    job = experiment(Poisson(sampling_prob=0.3))
    site = SimulatedSites(job, job.streams())
    sizes = list(site.num_records.values())
    one = site(site.settings, sizes.index(max(sizes)))
    length = Poisson.rounds_at_once(one.num_records)
    for block in (0, 1, 3):
        drawn = draw_block(
            one.sampling, num_records=one.num_records, index=block, streams=one.streams
        )
        for position in (0, 1, length - 1):
            expected = drawn.of(position)
            np.testing.assert_array_equal(one.draw(block * length + position), expected)
    rounds_seen = {one.draw(t).tobytes() for t in range(2 * length)}
    assert len(rounds_seen) > 1.9 * length  # no block repeats another


def test_ten_thousand_sites_of_one_record() -> None:
    job = experiment(
        Poisson(sampling_prob=0.0125),
        data=FederatedData(
            source=SyntheticLogistic(num_records=10_100, input_dim=3),
            partition=IID(num_sites=10_000),
            min_records=1,
            test_fraction=100 / 10_100,
        ),
    )
    sites = SimulatedSites(job, job.streams())
    fused = sites.fused()
    sizes = [
        len(fused.draw_units(Broadcast(round_index=t, params=np.zeros(1)))) for t in range(400)
    ]
    assert abs(np.mean(sizes) - 125) < 4 * np.sqrt(125 / 400)
    assert 0.7 < np.var(sizes) / (125 * (1 - 0.0125)) < 1.4


def test_a_broadcast_that_does_not_fit_is_refused() -> None:
    job = experiment(SAMPLERS[0])
    fused = SimulatedSites(job, job.streams()).fused()
    with pytest.raises(ValueError, match="params of shape"):
        fused(Broadcast(round_index=0, params=np.zeros(3)))
    with pytest.raises(ValueError, match="finite"):
        fused(Broadcast(round_index=0, params=np.full(fused.gradients.num_params, np.nan)))


@pytest.mark.parametrize("transformed", [False, True])
def test_the_records_of_a_patient_are_clipped_together_at_each_site(transformed: bool) -> None:
    rng = np.random.default_rng(0)
    params = KAN.initialize(3, rng)
    shards = []
    for size, patients in ((30, 9), (50, 20)):
        whose = np.concatenate([np.arange(patients), rng.integers(0, patients, size - patients)])
        features = rng.uniform(-1, 1, (size, 3))
        shards.append((features, rng.choice([-1.0, 1.0], size), whose.astype(np.intp), patients))
    sites, first, union = {}, 0, []
    for number, (features, labels, whose, patients) in enumerate(shards):
        sites[f"site-{number}"] = Site(
            name=f"site-{number}",
            num_records=patients,
            gradients=KANGradients(
                model=KAN, frozen=params.frozen, features=features, labels=labels
            ),
            sampling=Poisson(sampling_prob=0.5),
            l2_clip_norm=0.05,
            streams=Streams.from_seed(number),
            patients=whose,
        )
        union.append(whose + first)
        first += patients
    fused = FusedSites(
        sites={
            name: UnionSite(
                num_records=site.num_records,
                sampling=site.sampling,
                streams=site.streams,
                first=0 if name == "site-0" else 9,
            )
            for name, site in sites.items()
        },
        gradients=KANGradients(
            model=KAN,
            frozen=params.frozen,
            features=np.concatenate([shard[0] for shard in shards]),
            labels=np.concatenate([shard[1] for shard in shards]),
        ),
        l2_clip_norm=0.05,
        patients=np.concatenate(union),
    )
    size = len(params.trainable)
    transform = ClipTransform(center=rng.normal(0, 0.1, size), scale=rng.uniform(1, 2, size))
    for t in range(5):
        broadcast = Broadcast(
            round_index=t, params=params.trainable, transform=transform if transformed else None
        )
        expected = sum(site.work(broadcast).value for site in sites.values())
        np.testing.assert_allclose(fused(broadcast).value, expected, rtol=0, atol=1e-12)
