"""An adaptive rule in the rounds: its account is SGD's, its state is made of releases alone."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpfed_kan.federated.server import Server, rounds
from dpfed_kan.federated.site import Broadcast, Site
from dpfed_kan.flower.records import WireError, decode_broadcast, encode_broadcast
from dpfed_kan.kan import KANGradients, TwoLayerKAN
from dpfed_kan.privacy.accounting import account
from dpfed_kan.privacy.ledger import Ledger
from dpfed_kan.privacy.mechanism import Mechanism, Release
from dpfed_kan.privacy.noising import GaussianNoise, noise_std
from dpfed_kan.privacy.sampling import FullBatch, Poisson
from dpfed_kan.privacy.transform import ClipTransform
from dpfed_kan.streams import Streams
from dpfed_kan.update.adaclip import AdaClip
from dpfed_kan.update.checkpoint import to_arrays
from dpfed_kan.update.macadam import DPMacAdam
from dpfed_kan.update.macadam_bc import DPMacAdamBC
from dpfed_kan.update.sgd import ProjectedSGD

RNG = np.random.default_rng(0)
FEATURES, LABELS = RNG.uniform(-0.5, 0.5, (24, 3)), np.sign(RNG.normal(size=24))
MODEL = TwoLayerKAN(hidden_width=4, num_basis=6)
START = MODEL.initialize(3, np.random.default_rng(7))
MECHANISM = Mechanism(
    sampling=Poisson(sampling_prob=0.5),
    noise=GaussianNoise(noise_multiplier=0.7, correlation=0.6),
    l2_clip_norm=1.0,
    num_rounds=6,
)
ADAPTIVE = [
    DPMacAdam(learning_rate=0.01),
    DPMacAdamBC(learning_rate=0.01),
    AdaClip(learning_rate=0.1),
]


def one_site(records: slice = slice(None)) -> Site:
    return Site(
        name="a",
        num_records=len(LABELS[records]),
        gradients=KANGradients(
            model=MODEL, frozen=START.frozen, features=FEATURES[records], labels=LABELS[records]
        ),
        sampling=MECHANISM.sampling,
        l2_clip_norm=MECHANISM.l2_clip_norm,
        streams=Streams.from_seed(1).for_site("a"),
    )


class Listening(Mechanism):
    """A mechanism that keeps what it released: the transcript."""

    def privatize(self, total: Any, **where: Any) -> Release:
        release = super().privatize(total, **where)
        self.transcript.append(release)  # type: ignore[attr-defined]
        return release


def run_with(rule: Any, mechanism: Mechanism) -> tuple[list[Any], Ledger, list[Broadcast]]:
    site, told = one_site(), []
    sizes = {"a": 24}
    ledger = Ledger(mechanism=mechanism, num_records=sizes)
    server = Server(mechanism=mechanism, update_rule=rule, num_records=sizes, batch_size=12.0)

    def exchange(broadcast: Broadcast) -> list[Any]:
        told.append(broadcast)
        return [site.work(broadcast)]

    states = rounds(
        server,
        rule.start(START.trainable),
        sum_over_sites=server.over(exchange),
        streams=Streams.from_seed(2),
        ledger=ledger,
    )
    return list(states), ledger, told


@pytest.mark.parametrize("rule", ADAPTIVE, ids=lambda rule: type(rule).__name__)
def test_event_and_epsilon_are_those_of_the_same_mechanism_with_sgd(rule: Any) -> None:
    _, adaptive, _ = run_with(rule, MECHANISM)
    _, plain, _ = run_with(ProjectedSGD(learning_rate=0.1), MECHANISM)
    ours = [replace(event, release_sha256="") for event in adaptive.events]
    assert ours == [replace(event, release_sha256="") for event in plain.events]
    assert adaptive.spent(delta=1e-3).epsilon == plain.spent(delta=1e-3).epsilon
    assert adaptive.spent(delta=1e-3).epsilon == account(MECHANISM, delta=1e-3).epsilon


@pytest.mark.parametrize("rule", ADAPTIVE, ids=lambda rule: type(rule).__name__)
def test_the_transcript_of_releases_alone_gives_the_state_again(rule: Any) -> None:
    """Post-processing: the transform that sites clip in spends nothing."""
    listening = Listening(
        sampling=MECHANISM.sampling,
        noise=MECHANISM.noise,
        l2_clip_norm=1.0,
        num_rounds=MECHANISM.num_rounds,
    )
    object.__setattr__(listening, "transcript", [])
    states, ledger, told = run_with(rule, listening)
    state = rule.start(START.trainable)
    for t, release in enumerate(listening.transcript):  # type: ignore[attr-defined]
        np.testing.assert_array_equal(told[t].transform.center, state.transform.center)
        np.testing.assert_array_equal(told[t].transform.scale, state.transform.scale)
        std = noise_std(MECHANISM.noise, round_index=t, num_rounds=6)
        public = Release(value=release.value, event=ledger.events[t], noise_std=std)
        state = rule.step(state, public, batch_size=12.0)
        for name, value in to_arrays(state).items():
            np.testing.assert_array_equal(value, to_arrays(states[t])[name])
    assert not np.array_equal(state.params, START.trainable)


def test_a_site_clips_in_the_transform_that_was_broadcast() -> None:
    site = one_site()
    transform = ClipTransform(center=np.full(72, 0.3), scale=np.full(72, 1e-4))
    for t in range(5):
        count = len(site.draw(t))
        reply = site.work(Broadcast(round_index=t, params=START.trainable, transform=transform))
        assert np.linalg.norm(reply.value) <= count * (1 + 1e-12)
        assert count == 0 or np.linalg.norm(reply.value) > 0.9 * count  # all near -center/scale


@pytest.mark.parametrize("rows", [1, 5, 24, 100])
@pytest.mark.parametrize("transformed", [False, True])
def test_a_site_adds_up_the_same_a_few_records_at_a_time(rows: int, transformed: bool) -> None:
    transform = ClipTransform(center=np.full(72, 0.01), scale=np.full(72, 0.02))
    broadcast = Broadcast(
        round_index=3, params=START.trainable, transform=transform if transformed else None
    )
    whole, few = one_site().work(broadcast), replace(one_site(), rows_at_once=rows).work(broadcast)
    np.testing.assert_allclose(few.value, whole.value, rtol=0, atol=1e-12)


def test_a_site_refuses_a_transform_of_another_shape() -> None:
    transform = ClipTransform(center=np.zeros(3), scale=np.ones(3))
    with pytest.raises(ValueError, match="shape of the params"):
        one_site().work(Broadcast(round_index=0, params=START.trainable, transform=transform))


def test_the_transform_travels_and_the_identity_costs_nothing() -> None:
    plain = Broadcast(round_index=1, params=np.arange(3.0))
    content = encode_broadcast(plain, settings="s")
    assert list(content.array_records["arrays"]) == ["params"]
    assert decode_broadcast(content)[0].transform is None
    transform = ClipTransform(center=np.array([1.0, 2.0, 3.0]), scale=np.array([0.1, 1.0, 2.0]))
    content = encode_broadcast(replace(plain, transform=transform), settings="s")
    arrived = decode_broadcast(content)[0].transform
    assert arrived is not None
    np.testing.assert_array_equal(arrived.center, transform.center)
    np.testing.assert_array_equal(arrived.scale, transform.scale)
    del content.array_records["arrays"]["clip_center"]
    with pytest.raises(WireError, match="expected the arrays"):
        decode_broadcast(content)


def test_one_patient_moves_a_transformed_sum_by_at_most_the_clip() -> None:
    small = ClipTransform(center=np.zeros(72), scale=np.full(72, 1e-3))
    five = replace(
        one_site(slice(0, 5)),
        num_records=1,
        patients=np.zeros(5, dtype=np.intp),
        sampling=FullBatch(),
    )
    each = replace(five, num_records=5, patients=None)
    broadcast = Broadcast(round_index=0, params=START.trainable, transform=small)
    assert np.linalg.norm(each.work(broadcast).value) > 1.2
    assert np.linalg.norm(five.work(broadcast).value) <= 1.0 + 1e-12
