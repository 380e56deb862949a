"""A round takes one reply a site, of this run and round; a thousand others move nothing."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpfed_kan.channel.frames import FrameError, decode_to_server, encode_reply
from dpfed_kan.federated.replies import Inbox, exchange_over
from dpfed_kan.federated.server import RoundRefused, Server, rounds
from dpfed_kan.federated.site import Reply
from dpfed_kan.privacy.ledger import Ledger
from dpfed_kan.privacy.mechanism import Mechanism
from dpfed_kan.privacy.noising import GaussianNoise
from dpfed_kan.privacy.sampling import FullBatch
from dpfed_kan.streams import Streams
from dpfed_kan.update.sgd import ProjectedSGD

SIZES = {"a": 3, "b": 4, "c": 5}
DIMENSION = 4
RUN = "0" * 32
STREAMS = Streams.from_seed(1)


def server() -> Server:
    mechanism = Mechanism(
        sampling=FullBatch(),
        noise=GaussianNoise(noise_multiplier=1.0, correlation=0.5),
        l2_clip_norm=1.0,
        num_rounds=3,
    )
    return Server(
        mechanism=mechanism,
        update_rule=ProjectedSGD(learning_rate=0.1, projection_radius=10.0),
        num_records=SIZES,
        batch_size=12.0,
    )


def sound(site, round_index):
    rng = np.random.default_rng([round_index, SIZES[site]])
    return Reply(site=site, round_index=round_index, value=rng.uniform(-0.5, 0.5, DIMENSION))


def collect_with(bad, *, at=1, sites=("a", "b", "c")):
    """The way to sites of which `bad(inbox)` stands for what is said at round `at`."""

    def collect(broadcast, inbox):
        for site in sites:
            if broadcast.round_index != at:
                inbox.take(sound(site, broadcast.round_index), sender=site, run_id=RUN)
        if broadcast.round_index == at:
            bad(inbox)

    return collect


def states(collect, *, policy="stop", path=None):
    ours = server()
    ledger = Ledger(mechanism=ours.mechanism, num_records=SIZES, path=path)
    exchange = exchange_over(
        collect, ours, run_id=RUN, timeout=1, on_bad_reply=policy, ledger=ledger
    )
    start = ours.update_rule.start(np.zeros(DIMENSION), num_rounds=3)
    seen = []
    try:
        for state in rounds(
            ours, start, sum_over_sites=ours.over(exchange), streams=STREAMS, ledger=ledger
        ):
            seen.append(state.params)
    except RoundRefused as error:
        return seen, ledger, str(error)
    return seen, ledger, None


def good(inbox):
    for site in SIZES:
        inbox.take(sound(site, inbox.round_index), sender=site, run_id=RUN)


def without_b(inbox):
    for site in ("a", "c"):
        inbox.take(sound(site, inbox.round_index), sender=site, run_id=RUN)


arrays = st.one_of(
    st.lists(
        st.one_of(
            st.just(float("nan")), st.just(float("inf")), st.just(-float("inf")), st.just(1e308)
        ),
        min_size=1,
        max_size=DIMENSION,
    ).map(lambda odd: np.array(odd + [0.0] * (DIMENSION - len(odd)))),
    st.integers(0, 9).filter(lambda n: n != DIMENSION).map(lambda n: np.zeros(n)),
    st.just(np.zeros((DIMENSION, 1))),
    st.just(np.zeros((1, DIMENSION))),
    st.sampled_from([np.float32, np.int64, np.complex128, np.bool_, object]).map(
        lambda dtype: np.zeros(DIMENSION, dtype=dtype)
    ),
    st.floats(4.1, 1e300).map(lambda norm: np.array([norm, 0.0, 0.0, 0.0])),
    st.just(np.full(DIMENSION, 2.1)),
)
small = st.just(np.full(DIMENSION, 0.25))
fuzzed = st.one_of(
    st.builds(lambda value: (Reply(site="b", round_index=1, value=value), RUN), arrays),
    st.builds(
        lambda value, t: (Reply(site="b", round_index=t, value=value), RUN),
        small,
        st.integers(-3, 9).filter(lambda t: t != 1),
    ),
    st.builds(
        lambda value, name: (Reply(site=name, round_index=1, value=value), RUN),
        small,
        st.text(max_size=8).filter(lambda name: name != "b"),
    ),
    st.builds(
        lambda value, run: (Reply(site="b", round_index=1, value=value), run),
        small,
        st.text("0123456789abcdef", max_size=32).filter(lambda run: run != RUN),
    ),
)
REFERENCE = states(collect_with(good))[0]
WITHOUT_B = states(collect_with(without_b), policy="zero")[0]


@settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(said=fuzzed, again=st.booleans())
def test_a_thousand_fuzzed_replies_move_no_parameter_and_all_are_named(said, again):
    reply, run_id = said

    def bad(inbox):
        without_b(inbox)
        inbox.take(reply, sender="b", run_id=run_id)
        if again:  # a sound reply after a bad one does not make it good
            inbox.take(sound("b", 1), sender="b", run_id=RUN)

    seen, ledger, told = states(collect_with(bad))
    assert len(seen) == len(ledger.events) == 1
    assert seen[0].tobytes() == REFERENCE[0].tobytes()
    assert told.startswith("round 1: have 2, need 3: missing b (b: ")
    seen, ledger, told = states(collect_with(bad), policy="zero")
    assert told is None
    assert [params.tobytes() for params in seen] == [params.tobytes() for params in WITHOUT_B]
    assert [(zeroed.round_index, zeroed.site) for zeroed in ledger.zeroed] == [(1, "b")]


@settings(max_examples=1000, deadline=None)
@given(st.data())
def test_bytes_that_were_changed_on_the_way_are_refused_or_are_a_reply_that_is_checked(data):
    frame = bytearray(encode_reply(sound("b", 1), run_id=RUN))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(frame) - 1))
        frame[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(frame)))
    for content in (bytes(frame[:cut]), bytes(frame), bytes(frame) + b"x"):
        try:
            reply, run_id = decode_to_server(content)
        except FrameError:
            continue
        inbox = Inbox(server(), run_id=RUN, round_index=1, dimension=DIMENSION)
        inbox.take(reply, sender="b", run_id=run_id)
        for taken in inbox.replies.values():
            assert (taken.site, taken.round_index, taken.value.shape) == ("b", 1, (DIMENSION,))
            assert np.linalg.norm(taken.value) <= SIZES["b"] * (1 + 1e-8)


def test_a_copy_of_a_reply_counts_once_and_is_told(caplog):
    def twice(inbox):
        good(inbox)
        inbox.take(sound("b", 1), sender="b", run_id=RUN)

    with caplog.at_level(logging.WARNING):
        seen, _, told = states(collect_with(twice))
    assert told is None
    assert [params.tobytes() for params in seen] == [params.tobytes() for params in REFERENCE]
    assert "round 1, b: the reply came twice" in caplog.text


def test_two_different_replies_are_both_refused():
    def differing(inbox):
        good(inbox)
        other = Reply(site="b", round_index=1, value=np.zeros(DIMENSION))
        inbox.take(other, sender="b", run_id=RUN)

    assert "b: two different replies" in states(collect_with(differing))[2]


def test_a_stranger_is_heard_by_nobody():
    def stranger(inbox):
        good(inbox)
        inbox.take(sound("a", 1), sender="d", run_id=RUN)

    seen, _, told = states(collect_with(stranger))
    assert told is None
    assert [params.tobytes() for params in seen] == [params.tobytes() for params in REFERENCE]


def test_zero_leaves_noise_and_divisor_and_the_number_of_events_as_they_were(tmp_path):
    path = tmp_path / "ledger.jsonl"
    seen, ledger, _ = states(collect_with(without_b), policy="zero", path=path)
    missing = sound("b", 1).value
    step = 0.1 * missing / 12.0  # learning rate times the site's share of the mean
    np.testing.assert_allclose(seen[1] - REFERENCE[1], step, atol=1e-15)
    assert len(ledger.events) == 3
    kinds = [next(iter(json.loads(line))) for line in path.read_text().splitlines()]
    assert kinds == ["plan", "release", "zero", "release", "release"]
    again = Ledger(mechanism=server().mechanism, num_records=SIZES, path=path)
    assert again.zeroed == ledger.zeroed
    assert again.events == ledger.events
    assert (
        again.spent(delta=1e-3).epsilon == states(collect_with(good))[1].spent(delta=1e-3).epsilon
    )


def test_a_round_without_any_sound_reply_stops_whatever_the_policy():
    told = states(collect_with(lambda inbox: None), policy="zero")[2]
    assert told.startswith("round 1: have 0, need 3: missing a, b, c (a: no answer within 1 s")


@pytest.mark.parametrize("policy", ["stop", "zero"])
def test_no_message_holds_a_number_of_the_reply(policy, caplog):
    secret = 123456.789

    def bad(inbox):
        without_b(inbox)
        value = np.full(DIMENSION, secret)
        inbox.take(Reply(site="b", round_index=1, value=value), sender="b", run_id=RUN)

    _, ledger, told = states(collect_with(bad), policy=policy)
    said = f"{told} {ledger.zeroed} {caplog.text}"
    assert "123456" not in said
    assert "longer than" in said


def only(*sites):
    def bad(inbox):
        for site in sites:
            inbox.take(sound(site, inbox.round_index), sender=site, run_id=RUN)

    return bad


def broken_off(tmp_path, *, released):
    """A ledger as a crash leaves it in round 1, to which b was to contribute zero."""
    path = tmp_path / "ledger.jsonl"
    _, ledger, _ = states(collect_with(only("a", "c")), policy="zero", path=path)
    ledger.settle()
    whole = path.read_text().splitlines(keepends=True)
    path.write_text("".join(whole[: 4 if released else 3]))  # plan, round 0, zero, round 1
    return path, "".join(whole)


@pytest.mark.parametrize("policy", ["zero", "stop"])
@pytest.mark.parametrize("released", [False, True])
@pytest.mark.parametrize("now", [("a", "b", "c"), ("a", "c")])
def test_who_was_to_contribute_zero_before_a_crash_does_so_after_it(
    tmp_path, policy, released, now
):
    path, whole = broken_off(tmp_path, released=released)
    seen, ledger, problem = states(collect_with(only(*now)), policy=policy, path=path)
    assert problem is None
    assert [params.tobytes() for params in seen] == [params.tobytes() for params in WITHOUT_B]
    assert path.read_text() == whole
    assert len(ledger.zeroed) == 1


@pytest.mark.parametrize("policy", ["zero", "stop"])
@pytest.mark.parametrize("zeroed", [False, True])
def test_a_round_that_was_released_waits_for_all_that_it_was_made_of(tmp_path, policy, zeroed):
    path, whole = broken_off(tmp_path, released=True)
    if not zeroed:
        states(collect_with(good), path=tmp_path / "all.jsonl")
        whole = (tmp_path / "all.jsonl").read_text()
        path.write_text("".join(whole.splitlines(keepends=True)[:3]))
    before = path.read_text()
    asked = only("a", "b") if zeroed else only("a", "c")
    _, ledger, problem = states(collect_with(asked), policy=policy, path=path)
    assert problem is not None and "round 1" in problem
    assert path.read_text() == before
    ledger.settle()
    _, _, problem = states(collect_with(good), policy=policy, path=path)
    assert problem is None
    assert path.read_text() == whole
