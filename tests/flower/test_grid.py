from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from dpfed_kan.federated.site import Broadcast
from dpfed_kan.flower.client_app import client_app
from dpfed_kan.flower.grid import InProcessGrid, StoppableGrid
from dpfed_kan.flower.records import decode_reply, encode_broadcast


def train_messages(federation, nodes):
    params = np.zeros(federation.dimension)
    content = encode_broadcast(Broadcast(round_index=0, params=params), settings="s")
    return [Message(content, node, MessageType.TRAIN) for node in nodes]


def test_both_grids_are_flowers_grid_in_every_abstract_method(federation):
    grid = federation.grid()
    assert isinstance(grid, Grid)
    assert isinstance(StoppableGrid(grid, threading.Event()), Grid)
    assert not InProcessGrid.__abstractmethods__ | StoppableGrid.__abstractmethods__


@pytest.mark.parametrize("stoppable", [False, True])
def test_replies_come_in_the_order_of_the_messages_and_name_the_message(federation, stoppable):
    grid = federation.grid()
    if stoppable:
        grid = StoppableGrid(grid, threading.Event())
    nodes = list(grid.get_node_ids())[::-1]
    sent = train_messages(federation, nodes)
    replies = list(grid.send_and_receive(sent, timeout=1.0))
    by_message = {reply.metadata.reply_to_message_id: reply for reply in replies}
    names = [decode_reply(by_message[m.metadata.message_id].content).site for m in sent]
    assert names == ["site-3", "site-2", "site-1"]
    assert sorted(reply.metadata.src_node_id for reply in replies) == sorted(nodes)
    if not stoppable:
        assert [decode_reply(reply.content).site for reply in replies] == names


def test_a_reply_is_pulled_once_and_only_when_asked_for(federation):
    grid = federation.grid()
    nodes = list(grid.get_node_ids())
    first, second, third = grid.push_messages(train_messages(federation, nodes))
    assert len({first, second, third}) == 3
    (reply,) = grid.pull_messages([second, "no such message"])
    assert decode_reply(reply.content).site == "site-2"
    assert not list(grid.pull_messages([second]))
    assert len(list(grid.pull_messages([first, third]))) == 2


def test_a_message_for_an_unknown_node_is_refused_before_any_is_delivered(federation):
    calls = []

    def counting(settings, partition_id):
        calls.append(partition_id)
        return federation.build_site(settings, partition_id)

    grid = federation.grid(counting)
    messages = train_messages(federation, [*grid.get_node_ids(), 99])
    with pytest.raises(ValueError, match="there is no node 99"):
        grid.push_messages(messages)
    assert not calls


def test_a_site_works_when_its_reply_is_asked_for(federation):
    calls = []

    def counting(settings, partition_id):
        calls.append(partition_id)
        return federation.build_site(settings, partition_id)

    grid = InProcessGrid(client_app(counting), 3)
    replies = iter(grid.send_and_receive(train_messages(federation, grid.get_node_ids())))
    for k in range(3):
        assert calls == list(range(k))
        next(replies)


def test_a_message_that_the_app_has_no_answer_for_gets_an_error_reply(federation):
    grid = federation.grid()
    node, *_ = grid.get_node_ids()
    (reply,) = grid.send_and_receive([Message(RecordDict(), node, MessageType.EVALUATE)])
    assert reply.has_error()
    assert reply.error.reason.startswith("ValueError at client_app.py:")


def test_the_run_can_be_set_as_flower_does(federation):
    grid = federation.grid()
    run = grid.run
    StoppableGrid(grid, threading.Event()).set_run(run)
    assert StoppableGrid(grid, threading.Event()).run is run
    (node, *_) = grid.get_node_ids()
    message = grid.create_message(RecordDict(), MessageType.QUERY, node, "group")
    assert (message.metadata.dst_node_id, message.metadata.group_id) == (node, "group")


class SilentGrid(InProcessGrid):
    """Never answers the last message."""

    def pull_messages(self, message_ids):
        return super().pull_messages(sorted(message_ids)[:-1])


def silent(federation):
    return SilentGrid(client_app(federation.build_site), len(federation.sizes))


def test_waiting_ends_at_the_timeout_with_the_replies_that_came(federation):
    grid = StoppableGrid(silent(federation), threading.Event())
    start = time.monotonic()
    replies = grid.send_and_receive(train_messages(federation, grid.get_node_ids()), timeout=0.1)
    assert len(replies) == 2
    assert time.monotonic() - start < 5.0


def test_a_stop_ends_the_waiting_of_another_thread(federation):
    stop = threading.Event()
    grid = StoppableGrid(silent(federation), stop)
    messages = train_messages(federation, grid.get_node_ids())
    threading.Timer(0.1, stop.set).start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        grid.send_and_receive(messages, timeout=60.0)
    assert time.monotonic() - start < 10.0
    with pytest.raises(KeyboardInterrupt):
        grid.push_messages(messages)
