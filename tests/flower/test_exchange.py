from __future__ import annotations

import gc
import logging
import time

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MessageType, RecordDict

from dpfed_kan.federated.server import RoundRefused, Server
from dpfed_kan.federated.site import Broadcast, Reply
from dpfed_kan.flower.client_app import SITE_FAILED
from dpfed_kan.flower.exchange import explain
from dpfed_kan.flower.records import Facts, encode_facts, encode_reply
from dpfed_kan.privacy.mechanism import Mechanism
from dpfed_kan.privacy.noising import NoNoise
from dpfed_kan.privacy.sampling import FullBatch
from dpfed_kan.update.sgd import ProjectedSGD

CANARY = "patient Doe, glucose 31415.9"


def broadcast(federation, round_index=0):
    return Broadcast(round_index=round_index, params=np.zeros(federation.dimension))


def replace_content(message, content):
    """The same reply with another content."""
    copy = Message(content, reply_to=message)
    copy.__dict__["_metadata"] = message.metadata
    return copy


def met(federation, tamper):
    """An exchange whose replies are tampered with once the sites have met."""
    grid = federation.grid()
    exchange = federation.meet(grid)
    grid.tamper = tamper
    return exchange


def as_bytes(replies):
    return [(reply.site, reply.round_index, reply.value.tobytes()) for reply in replies]


# Before round 0


def test_sites_that_are_as_planned_meet_in_the_order_of_their_names(federation):
    grid = federation.grid()
    grid.tamper = lambda replies: replies[::-1]
    exchange = federation.meet(grid)
    assert list(exchange.nodes.items()) == list(
        zip(sorted(federation.sizes), grid.get_node_ids(), strict=True)
    )
    assert sorted(as_bytes(exchange(broadcast(federation)))) == as_bytes(
        federation.build_site("", k).work(broadcast(federation)) for k in range(3)
    )


def test_one_site_is_a_legal_federation(federation):
    exchange = federation.meet(federation.grid(num_sites=1), num_records={"site-1": 5})
    assert [reply.site for reply in exchange(broadcast(federation))] == ["site-1"]


def test_a_site_with_another_number_of_records_is_refused_and_named(federation):
    planned = {**federation.sizes, "site-2": 60}
    with pytest.raises(RoundRefused, match=r"site-2: planned num_records=60.*it has num_records=6"):
        federation.meet(federation.grid(), num_records=planned)


def test_sites_with_another_model_are_refused_and_named(federation):
    with pytest.raises(RoundRefused) as refused:
        federation.meet(federation.grid(), num_params=5)
    for site in federation.sizes:
        assert f"{site}: planned num_records=" in str(refused.value)
    assert "num_params=5, it has" in str(refused.value)


def test_missing_sites_are_counted_within_the_wait(federation):
    start = time.monotonic()
    with pytest.raises(RoundRefused, match="have 2 sites, need 3"):
        federation.meet(federation.grid(num_sites=2))
    assert 0.4 < time.monotonic() - start < 10.0


def test_more_sites_than_planned_are_refused_at_once(federation):
    start = time.monotonic()
    with pytest.raises(RoundRefused, match="have 4 sites, need 3"):
        federation.meet(federation.grid(num_sites=4), timeout=30.0)
    assert time.monotonic() - start < 5.0


def test_a_site_that_is_not_in_the_plan_is_refused_and_named(federation):
    def build(settings, partition_id):
        site = federation.build_site(settings, partition_id)
        return federation.site("site-9", 7) if site.name == "site-3" else site

    with pytest.raises(RoundRefused, match=r"have 2 sound.*site-9: this site is not in the plan"):
        federation.meet(federation.grid(build))


def test_two_sites_of_one_name_are_refused_and_named(federation):
    def build(settings, partition_id):
        return federation.build_site(settings, min(partition_id, 1))

    with pytest.raises(RoundRefused, match="site-2: two sites say that they are this one"):
        federation.meet(federation.grid(build))


def test_a_site_that_does_not_answer_is_named(federation):
    grid = federation.grid()
    grid.tamper = lambda replies: replies[:2]
    with pytest.raises(RoundRefused, match="have 2 sound replies, need 3; site-3: no answer"):
        federation.meet(grid)


def test_a_site_that_fails_to_build_is_told_by_type_and_place(federation):
    def build(settings, partition_id):
        if partition_id == 1:
            raise ValueError(CANARY)
        return federation.build_site(settings, partition_id)

    with pytest.raises(RoundRefused) as refused:
        federation.meet(federation.grid(build))
    assert "ValueError at test_exchange.py:" in str(refused.value)
    assert "(partition-id 1)" in str(refused.value)
    assert "Doe" not in str(refused.value)


def test_an_answer_without_facts_is_refused(federation):
    grid = federation.grid()
    grid.tamper = lambda replies: [replace_content(replies[0], RecordDict()), *replies[1:]]
    with pytest.raises(RoundRefused, match="expected an answer with site, num_records"):
        federation.meet(grid)


def test_the_same_answer_twice_is_one_site(federation):
    grid = federation.grid()
    grid.tamper = lambda replies: [*replies, replies[0]]
    assert len(federation.meet(grid).nodes) == 3


def test_a_site_cannot_stand_in_for_another_that_is_silent(federation):
    grid = federation.grid()
    forged = encode_facts(Facts(site="site-3", num_records=7, num_params=federation.dimension))
    grid.tamper = lambda replies: [*replies[:2], replace_content(replies[0], forged)]
    with pytest.raises(RoundRefused, match="site-3: site-1 says that it is this one, too"):
        federation.meet(grid)


# In a round


def test_a_reply_that_comes_twice_counts_once_and_is_warned_about(federation, caplog):
    exchange = met(federation, lambda replies: [*replies, replies[1]])
    plain = federation.meet(federation.grid())
    with caplog.at_level(logging.WARNING):
        twice = list(exchange(broadcast(federation)))
    assert as_bytes(twice) == as_bytes(plain(broadcast(federation)))
    assert [record.message for record in caplog.records] == [
        "round 0, site-2: the reply came twice; it counts once"
    ]


def test_two_different_replies_of_one_site_are_refused_and_named(federation):
    def tamper(replies):
        other = Reply(site="site-2", round_index=0, value=np.ones(federation.dimension))
        return [*replies, replace_content(replies[1], encode_reply(other))]

    with pytest.raises(RoundRefused, match="site-2: two different replies"):
        list(met(federation, tamper)(broadcast(federation)))


def test_a_second_reply_of_a_site_whose_first_is_gone_is_refused(federation):
    def tamper(replies):
        while replies:
            yield replies.pop(0)
            gc.collect()
        again = Reply(site="site-2", round_index=0, value=np.zeros(federation.dimension))
        last = Message(encode_reply(again), reply_to=sent[1])
        yield last

    exchange = met(federation, tamper)
    sent = exchange.messages(broadcast(federation))
    replies = exchange.grid.send_and_receive(sent)
    with pytest.raises(RoundRefused, match="site-2: a second reply, after the first"):
        list(exchange.decode(replies, sent=sent, round_index=0))


def test_messages_are_flowers_own_but_for_the_node(federation):
    exchange = federation.meet(federation.grid())
    for site, message in zip(
        federation.sizes, exchange.messages(broadcast(federation, round_index=3)), strict=True
    ):
        theirs = Message(
            message.content, exchange.nodes[site], MessageType.TRAIN, group_id="3"
        ).metadata
        ours = message.metadata
        assert {**vars(ours), "_created_at": 0} == {**vars(theirs), "_created_at": 0}


def test_a_missing_reply_is_refused_and_the_site_named(federation):
    with pytest.raises(RoundRefused, match=r"round 0: have 2 .* need 3; site-1: no answer within"):
        list(met(federation, lambda replies: replies[1:])(broadcast(federation)))


def test_error_replies_are_refused_and_all_sites_named_wherever_the_error_was_made(federation):
    def tamper(replies):
        own = Message(
            Error(SITE_FAILED, "ValueError at x.py:1 (partition-id 0)"), reply_to=replies[0]
        )
        own.__dict__["_metadata"] = replies[0].metadata
        link = Message(Error(5, f"node: {CANARY}"), reply_to=replies[1])
        link.__dict__["_metadata"] = replies[1].metadata
        link.metadata.__dict__["_src_node_id"] = 1  # an error that the SuperLink made
        return [own, link, replies[2]]

    with pytest.raises(RoundRefused) as refused:
        list(met(federation, tamper)(broadcast(federation)))
    assert str(refused.value) == (
        "round 0: have 1 sound replies, need 3; "
        "site-1: ValueError at x.py:1 (partition-id 0); "
        "site-2: its node is gone (Flower's error 5)"
    )


def test_a_reply_for_another_site_is_refused_and_the_sender_named(federation):
    def tamper(replies):
        other = Reply(site="site-2", round_index=0, value=np.zeros(federation.dimension))
        return [replace_content(replies[0], encode_reply(other)), *replies[1:]]

    with pytest.raises(RoundRefused, match="site-1: the reply comes from site-1 for site-2"):
        list(met(federation, tamper)(broadcast(federation)))


def test_a_reply_of_another_round_is_refused_and_the_site_named(federation):
    def tamper(replies):
        stale = Reply(site="site-3", round_index=0, value=np.zeros(federation.dimension))
        return [*replies[:2], replace_content(replies[2], encode_reply(stale))]

    with pytest.raises(RoundRefused, match=r"round 1.*site-3: the reply answers round 0"):
        list(met(federation, tamper)(broadcast(federation, round_index=1)))


def test_a_message_of_an_earlier_round_is_refused_and_the_site_named(federation):
    kept = []

    def tamper(replies):
        kept.append(replies)
        return [*replies, kept[0][1]]

    exchange = met(federation, tamper)
    list(exchange(broadcast(federation)))
    with pytest.raises(RoundRefused, match="site-2: the reply answers no message of this round"):
        list(exchange(broadcast(federation, round_index=1)))


def test_a_malformed_reply_is_refused_and_the_site_named(federation):
    def tamper(replies):
        arrays = RecordDict({"arrays": ArrayRecord(), "config": ConfigRecord()})
        return [replies[0], replace_content(replies[1], arrays), replies[2]]

    with pytest.raises(RoundRefused, match=r"site-2: expected the arrays \['clipped_sum'\]"):
        list(met(federation, tamper)(broadcast(federation)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_reply_that_is_not_finite_is_refused_by_the_server_and_the_site_named(federation, bad):
    def tamper(replies):
        value = np.zeros(federation.dimension)
        value[2] = bad
        reply = Reply(site="site-2", round_index=0, value=value)
        return [replies[0], replace_content(replies[1], encode_reply(reply)), replies[2]]

    replies = list(met(federation, tamper)(broadcast(federation)))
    mechanism = Mechanism(sampling=FullBatch(), noise=NoNoise(), l2_clip_norm=1.0, num_rounds=1)
    server = Server(
        mechanism=mechanism,
        update_rule=ProjectedSGD(learning_rate=1.0),
        num_records=federation.sizes,
        batch_size=18,
    )
    with pytest.raises(RoundRefused, match="round 0, site-2: the sum is not finite"):
        server.add_up(replies, round_index=0, dimension=federation.dimension)


# What a failure tells


@pytest.mark.parametrize("code", [0, 1, 2, 8, 17, SITE_FAILED])
def test_text_that_a_stranger_wrote_is_not_shown(code):
    for reason in (CANARY, f"<class 'builtins.ValueError'>:<'{CANARY}'>", None):
        assert "Doe" not in explain(Error(code, reason))
        assert "31415" not in explain(Error(code, reason))


def test_a_dead_worker_is_told_by_the_name_of_its_exception():
    told = explain(Error(0, "<class 'ray.exceptions.ActorDiedError'>:<'The actor died'>"))
    assert told == (
        "its worker process may have died, killed or out of memory "
        "(Flower's error 0, ActorDiedError)"
    )


def test_of_many_failures_a_few_are_shown_and_the_rest_counted(federation):
    sizes = {f"site-{k:02d}": 5 for k in range(40)}

    def build(settings, partition_id):
        return federation.site(f"site-{partition_id:02d}", 6)

    with pytest.raises(RoundRefused, match=r"site-04: .*; and 35 more$"):
        federation.meet(federation.grid(build, num_sites=40), num_records=sizes)
