from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from dpfed_kan.federated.site import Broadcast
from dpfed_kan.flower.client_app import SITE_FAILED, client_app
from dpfed_kan.flower.grid import InProcessGrid
from dpfed_kan.flower.records import decode_reply, encode_broadcast

CANARY = "patient Doe, glucose 31415.9"


def ask(app, content, message_type=MessageType.TRAIN):
    grid = InProcessGrid(app, 1)
    (node,) = grid.get_node_ids()
    (reply,) = grid.send_and_receive([Message(content, node, message_type)])
    return reply


def broadcast(federation, params=None):
    params = np.zeros(federation.dimension) if params is None else params
    return encode_broadcast(Broadcast(round_index=0, params=params), settings="s")


def test_train_answers_with_the_sites_own_clipped_sum(federation):
    reply = decode_reply(ask(client_app(federation.build_site), broadcast(federation)).content)
    site = federation.build_site("s", 0)
    own = site.work(Broadcast(round_index=0, params=np.zeros(federation.dimension)))
    assert (reply.site, reply.value.tobytes()) == ("site-1", own.value.tobytes())


def test_a_local_answer_is_the_same_without_a_copy_and_cannot_be_changed(federation):
    values = []

    class Remembering:
        name, num_records = "site-1", 5

        def work(self, broadcast):
            answer = federation.build_site("s", 0).work(broadcast)
            values.append(answer.value)
            return answer

    content = broadcast(federation)
    local = ask(client_app(lambda *_: Remembering(), local=True), content)
    wire = ask(client_app(federation.build_site), content)
    ours, theirs = decode_reply(local.content), decode_reply(wire.content)
    assert (ours.site, ours.round_index) == (theirs.site, theirs.round_index)
    assert ours.value.tobytes() == theirs.value.tobytes()
    assert np.shares_memory(ours.value, values[0])
    with pytest.raises(ValueError, match="read-only"):
        ours.value[0] = 1.0
    changing = ("_created_at", "_ttl")
    assert {k: v for k, v in vars(local.metadata).items() if k not in changing} == {
        k: v for k, v in vars(wire.metadata).items() if k not in changing
    }


def test_a_local_answer_cannot_be_sent_anywhere(federation):
    reply = ask(client_app(federation.build_site, local=True), broadcast(federation))
    with pytest.raises(TypeError, match="has no bytes"):
        reply.content.deflate()
    assert dict(reply.content) == {}


@pytest.mark.parametrize("message_type", [MessageType.TRAIN, MessageType.QUERY])
def test_an_exception_travels_and_is_logged_as_its_type_and_place_only(
    federation, message_type, caplog, capfd
):
    def failing(settings, partition_id):
        raise ValueError(CANARY)

    content = broadcast(federation)
    reply = ask(client_app(failing), content, message_type)
    assert reply.error.code == SITE_FAILED
    assert reply.error.reason.startswith("ValueError at test_client_app.py:")
    assert "(partition-id 0)" in reply.error.reason
    captured = capfd.readouterr()
    for place in (reply.error.reason, caplog.text, captured.out, captured.err, str(reply)):
        assert "Doe" not in place
        assert "31415" not in place
    assert "ValueError at test_client_app.py:" in caplog.text


def test_an_exception_with_a_cause_does_not_tell_the_cause(federation, caplog):
    def failing(settings, partition_id):
        try:
            raise KeyError(CANARY)
        except KeyError as error:
            raise RuntimeError("while reading") from error

    reply = ask(client_app(failing), broadcast(federation))
    assert reply.error.reason.startswith("RuntimeError at ")
    assert "Doe" not in caplog.text


def test_a_broadcast_that_does_not_fit_the_model_is_answered_with_an_error(federation):
    reply = ask(client_app(federation.build_site), broadcast(federation, np.zeros(3)))
    assert reply.error.reason.startswith("ValueError at site.py:")


def test_a_message_of_other_names_is_answered_with_an_error(federation):
    for message_type in (MessageType.TRAIN, MessageType.QUERY):
        content = RecordDict({"config": ConfigRecord({"settings": 7})})
        reply = ask(client_app(federation.build_site), content, message_type)
        assert reply.error.reason.startswith("WireError at ")


def test_an_interrupt_is_not_taken_for_a_failure_of_the_site(federation):
    def interrupted(settings, partition_id):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ask(client_app(interrupted), broadcast(federation))


_WORKER = """
import sys
import torch, numpy as np
from threadpoolctl import threadpool_info, threadpool_limits
from flwr.app import Message, MessageType
from dpfed_kan.federated.site import Broadcast
from dpfed_kan.flower.client_app import client_app
from dpfed_kan.flower.grid import InProcessGrid
from dpfed_kan.flower.records import encode_broadcast

class Site:
    def work(self, broadcast):
        print(sorted({pool["num_threads"] for pool in threadpool_info()}), torch.get_num_threads())
        sys.exit()

threadpool_limits(2)
app = client_app(lambda settings, partition_id: Site(), num_threads=1)
grid = InProcessGrid(app, 1)
content = encode_broadcast(Broadcast(round_index=0, params=np.zeros(1)), settings="s")
grid.push_messages([Message(content, *grid.get_node_ids(), MessageType.TRAIN)])
"""


def test_a_worker_process_computes_with_the_threads_it_is_told():
    result = subprocess.run(
        [sys.executable, "-c", _WORKER], capture_output=True, text=True, check=True, timeout=120
    )
    assert result.stdout.split() == ["[1]", "1"]
