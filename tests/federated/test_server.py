import math
import weakref
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from dpfed_kan.federated.server import RoundRefused, Server, rounds
from dpfed_kan.federated.site import Broadcast, Reply, Site
from dpfed_kan.kan import KANGradients, TwoLayerKAN
from dpfed_kan.privacy.ledger import Ledger
from dpfed_kan.privacy.mechanism import Mechanism
from dpfed_kan.privacy.noising import GaussianNoise
from dpfed_kan.privacy.sampling import Poisson
from dpfed_kan.streams import Streams
from dpfed_kan.update.sgd import ProjectedSGD

SIZES = {"a": 3, "b": 5}
MECHANISM = Mechanism(
    sampling=Poisson(sampling_prob=0.5),
    noise=GaussianNoise(noise_multiplier=1.0),
    l2_clip_norm=2.0,
    num_rounds=4,
)
SERVER = Server(
    mechanism=MECHANISM,
    update_rule=ProjectedSGD(learning_rate=1.0),
    num_records=SIZES,
    batch_size=4.0,
)
GOOD = [Reply(site=site, round_index=1, value=np.array([1.0, -1.0])) for site in sorted(SIZES)]


def test_the_sum_does_not_depend_on_the_order_of_the_replies() -> None:
    values = np.random.default_rng(0).normal(size=(2, 2))
    replies = [replace(reply, value=v) for reply, v in zip(GOOD, values, strict=True)]
    forward = SERVER.add_up(replies, round_index=1, dimension=2)
    backward = SERVER.add_up(replies[::-1], round_index=1, dimension=2)
    np.testing.assert_array_equal(forward.value, backward.value)
    assert forward.l2_sensitivity == 2.0


def test_what_was_added_is_let_go_of() -> None:
    alive: list[weakref.ref[np.ndarray]] = []

    def replies() -> Iterator[Reply]:
        for site in sizes:
            assert sum(value() is not None for value in alive) <= 1
            value = np.ones(2)
            alive.append(weakref.ref(value))
            yield Reply(site=site, round_index=1, value=value)

    sizes = {f"site-{k}": 1 for k in range(9)}
    total = replace(SERVER, num_records=sizes).add_up(replies(), round_index=1, dimension=2)
    assert total.value.tolist() == [9.0, 9.0]


@pytest.mark.parametrize(
    ("replies", "match"),
    [
        (GOOD[:1], r"have 1 replies, need one from each of 2 sites; missing \['b'\]"),
        ([*GOOD, GOOD[0]], "have 3 replies"),
        ([GOOD[0], replace(GOOD[1], site="c")], r"missing \['b'\], unknown \['c'\]"),
        ([GOOD[0], replace(GOOD[1], round_index=0)], "round 1, b: the reply answers round 0"),
        ([GOOD[0], replace(GOOD[1], value=np.zeros(3))], r"round 1, b: .*\(2,\).*\(3,\)"),
        ([GOOD[0], replace(GOOD[1], value=np.zeros((1, 2)))], "round 1, b"),
        ([GOOD[0], replace(GOOD[1], value=np.zeros(2, np.float32))], "round 1, b.*float32"),
        ([GOOD[0], replace(GOOD[1], value=np.array([math.nan, 0]))], "round 1, b: .*not finite"),
        ([GOOD[0], replace(GOOD[1], value=np.array([math.inf, 0]))], "round 1, b: .*not finite"),
        ([GOOD[0], replace(GOOD[1], value=np.array([10.1, 0]))], "round 1, b: .*longer than 5"),
        ([], "have 0 replies"),
    ],
)
def test_a_reply_that_no_site_may_send_stops_the_round_and_is_named(
    replies: list[Reply], match: str
) -> None:
    ledger = Ledger(mechanism=MECHANISM, num_records=SIZES)
    state = replace(SERVER.update_rule.start(np.zeros(2)), num_steps=1)
    with pytest.raises(RoundRefused, match=match):
        next(
            rounds(
                SERVER,
                state,
                sum_over_sites=SERVER.over(lambda _: replies),
                streams=Streams.from_seed(0),
                ledger=ledger,
            )
        )
    assert ledger.events == []


def test_a_refusal_shows_no_value() -> None:
    bad = replace(GOOD[1], value=np.array([123.456, math.nan]))
    with pytest.raises(RoundRefused) as error:
        SERVER.add_up([GOOD[0], bad], round_index=1, dimension=2)
    assert "123" not in str(error.value)
    assert "123" not in repr(bad)


def test_params_move_only_by_a_release_that_the_ledger_holds() -> None:
    ledger = Ledger(mechanism=MECHANISM, num_records=SIZES)
    replies = [replace(reply, round_index=0) for reply in GOOD]
    state = SERVER.update_rule.start(np.zeros(2))
    streams = Streams.from_seed(0)
    total = SERVER.add_up(replies, round_index=0, dimension=2)
    after = SERVER.finish_round(state, total, round_index=0, streams=streams, ledger=ledger)
    release = MECHANISM.privatize(total, round_index=0, streams=streams)
    np.testing.assert_array_equal(after.params, -release.value / 4.0)
    assert ledger.events == [release.event]


def test_the_divisor_is_a_public_constant() -> None:
    with pytest.raises(ValueError, match="batch_size"):
        replace(SERVER, batch_size=0.0)
    with pytest.raises(ValueError, match="at least one site"):
        replace(SERVER, num_records={})


def site() -> Site:
    model = TwoLayerKAN(hidden_width=2, num_basis=4)
    params = model.initialize(2, np.random.default_rng(0))
    return Site(
        name="a",
        num_records=4,
        gradients=KANGradients(
            model=model,
            frozen=params.frozen,
            features=np.full((4, 2), 0.3),
            labels=np.array([1.0, -1.0, 1.0, 1.0]),
        ),
        sampling=Poisson(sampling_prob=0.05),
        l2_clip_norm=1e-3,
        streams=Streams.from_seed(0).for_site("a"),
    )


def test_a_site_answers_with_a_sum_of_clipped_gradients_also_of_none() -> None:
    """Trial P01: four records at q=0.05 are mostly an empty batch, and that is no event."""
    one, empty = site(), 0
    for t in range(60):
        reply = one.work(Broadcast(round_index=t, params=np.zeros(16)))
        count = len(one.draw(t))
        assert np.linalg.norm(reply.value) <= count * 1e-3 * (1 + 1e-12)
        assert (np.linalg.norm(reply.value) == 0) == (count == 0)
        empty += count == 0
    assert empty > 30


@pytest.mark.parametrize("params", [np.zeros(15), np.full(16, math.nan)])
def test_a_site_refuses_params_that_do_not_fit(params: np.ndarray) -> None:
    with pytest.raises(ValueError, match="params"):
        site().work(Broadcast(round_index=0, params=params))
