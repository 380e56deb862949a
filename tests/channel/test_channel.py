"""The data channel over TLS: who is let in, what gets through, what happens when it breaks."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import ssl
import subprocess
import sys
import textwrap
import threading
import time

import grpc
import numpy as np
import pytest

from dpfed_kan.channel.client import ChannelError
from dpfed_kan.channel.frames import encode_reply, largest_frame
from dpfed_kan.channel.server import ChannelServer
from dpfed_kan.channel.wire import PATH, SESSION, TOKEN
from dpfed_kan.federated.refusal import Refusal
from dpfed_kan.federated.site import Reply
from dpfed_kan.pilot.certificates import make_certificates
from tests.channel.conftest import DIMENSION, RUN, SIZES, answer
from tests.conftest import ROOT


class Relay:
    """Listens between a site and the server; its connections can be cut."""

    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self._far = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open = []
        self._threads = []
        self.said = bytearray()  # by the site
        self.count = 0
        self._start(self._accept)

    def _start(self, target, *ends):
        self._threads.append(threading.Thread(target=target, args=ends, daemon=True))
        self._threads[-1].start()

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._far)
            self._open += [near, far]
            self.count += 1
            self._start(self._pipe, near, far, self.said)
            self._start(self._pipe, far, near, bytearray())

    def _pipe(self, source, sink, seen):
        with contextlib.suppress(OSError):
            while chunk := source.recv(65536):
                seen.extend(chunk)
                sink.sendall(chunk)
        self._shut(source, sink)

    @staticmethod
    def _shut(*ends):
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self):
        self._shut(*self._open)

    def close(self):
        self._shut(self._listener)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(5)
        for end in self._open:
            end.close()


@pytest.fixture
def relay(link):
    relay = Relay(link.server.address)
    yield relay
    link.server.close()
    relay.close()


def call(link, *, token=None, session=None, authority=None, frames=()):
    """Connect as a stranger; return (what was said, the status)."""
    metadata = [(TOKEN, token)] if token is not None else []
    metadata += [(SESSION, session or secrets.token_hex(32))]
    credentials = grpc.ssl_channel_credentials(authority or link.authority)
    with grpc.secure_channel(link.server.address, credentials) as channel:
        rounds = channel.stream_stream(PATH, None, None)
        calls = rounds(iter(frames), metadata=metadata, timeout=2)
        said = []
        try:
            said.extend(calls)
        except grpc.RpcError as error:
            return said, error.code()
        return said, None


def test_rounds_get_through_unchanged_and_the_end_is_told(link):
    threads = [link.join(site) for site in SIZES]
    params = np.linspace(-1, 1, DIMENSION)
    for round_index in range(20):
        inbox = link.round(round_index)
        assert inbox.problems == {}
        for site in SIZES:
            expected = params / 10 + SIZES[site] / 100
            assert inbox.replies[site].value.tobytes() == expected.tobytes()
    link.server.close()
    for thread in threads:
        thread.join(5)
    assert link.outcomes == {"a": 20, "b": 20}


@pytest.mark.parametrize("token", [None, "", "ff" * 32, "no hex", "ff" * 2000])
def test_an_intruder_without_a_token_or_with_a_wrong_one_is_refused_and_logged(link, token, caplog):
    link.join("a")
    with caplog.at_level(logging.WARNING):
        said, code = call(link, token=token)
    assert said == []
    assert code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.RESOURCE_EXHAUSTED)
    if code == grpc.StatusCode.UNAUTHENTICATED:
        assert sum(link.server.refused.values()) == 1
        assert "is refused: " in caplog.text
    assert link.round(0, timeout=1.0).waiting_for == ["b"]


def test_a_replayed_token_is_refused_logged_and_does_no_harm_to_its_owner(link, caplog):
    for site in SIZES:
        link.join(site)
    assert link.round(0).problems == {}
    with caplog.at_level(logging.WARNING):
        said, code = call(link, token=link.tokens["a"])
    assert (said, code) == ([], grpc.StatusCode.UNAUTHENTICATED)
    assert link.server.refused["a replayed token of a"] == 1
    assert "a replayed token of a" in caplog.text
    assert link.tokens["a"] not in caplog.text
    assert link.round(1).problems == {}


def test_a_token_of_another_run_is_worthless(link):
    other = type(link.server.tokens)("cd" * 16)
    foreign = other.issue(["a"])["a"]
    assert call(link, token=foreign)[1] == grpc.StatusCode.UNAUTHENTICATED
    assert other.admit(foreign, "00" * 32) == ("a", "")


def test_a_token_that_was_issued_anew_voids_the_old_one(link):
    old = link.tokens["a"]
    new = link.server.tokens.issue(["a"])["a"]
    assert link.server.tokens.admit(old, "00" * 32)[0] is None
    assert link.server.tokens.admit(new, "00" * 32)[0] == "a"


def test_without_tls_nothing_is_said_and_it_is_logged(tmp_path):
    make_certificates(tmp_path, host="127.0.0.1")
    script = f"""
        import flwr.serverapp  # as in a ServerApp
        import grpc, sys, time
        from pathlib import Path
        from dpfed_kan.channel.server import ChannelServer
        from dpfed_kan.channel.wire import PATH, SESSION, TOKEN
        directory = Path({str(tmp_path)!r})
        server = ChannelServer(
            sites=["a"], run_id="{RUN}", dimension=4, address="127.0.0.1:0",
            certificate=(directory / "server.pem").read_bytes(),
            key=(directory / "server.key").read_bytes(),
        )
        token = server.tokens.issue(["a"])["a"]
        with grpc.insecure_channel(server.address) as channel:
            call = channel.stream_stream(PATH, None, None)(
                iter(()), metadata=[(TOKEN, token), (SESSION, "00" * 32)], timeout=5)
            try:
                print("said", list(call))
            except grpc.RpcError as error:
                print("refused", error.code().name)
        print("bound", dict(server.tokens._sessions))
        server.close()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=ROOT,
        env={key: value for key, value in os.environ.items() if key != "GRPC_VERBOSITY"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "refused UNAVAILABLE" in done.stdout, done.stderr
    assert "bound {}" in done.stdout
    assert "Handshake failed" in done.stderr or "WRONG_VERSION_NUMBER" in done.stderr


def test_the_token_never_crosses_the_wire_in_the_clear(link, relay):
    link.join("b")
    link.join("a", address=relay.address)
    assert link.round(0).problems == {}
    assert len(relay.said) > 500
    assert relay.said[0] == 0x16  # a TLS handshake record
    for secret in (link.tokens["a"], TOKEN, RUN):
        assert secret.encode() not in bytes(relay.said)


def test_a_site_does_not_speak_to_a_server_of_another_authority(link, tmp_path):
    (tmp_path / "other").mkdir()
    make_certificates(tmp_path / "other", host="127.0.0.1")
    other = (tmp_path / "other" / "ca.crt").read_bytes()
    link.join("a", certificate_authority=other, patience=1.0).join(10)
    assert isinstance(link.outcomes["a"], ChannelError)
    assert link.server.tokens.admit(link.tokens["a"], "00" * 32)[0] == "a"  # never shown


def test_the_certificate_names_the_address(link):
    host, port = link.server.address.rsplit(":", 1)
    context = ssl.create_default_context(cadata=link.authority.decode())
    with (
        socket.create_connection((host, int(port)), timeout=5) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
    ):
        assert secure.version() in ("TLSv1.2", "TLSv1.3")
    with (
        socket.create_connection((host, int(port)), timeout=5) as plain,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        context.wrap_socket(plain, server_hostname="127.0.0.2")


def test_a_message_larger_than_any_of_the_run_is_refused_unread(link):
    huge = b"x" * (largest_frame(DIMENSION) + 1)
    assert call(link, token=link.tokens["a"], frames=[huge])[1] is not None
    assert link.round(0, timeout=0.5).waiting_for == ["a", "b"]


def test_bytes_that_are_no_frame_are_named_and_counted(link):
    link.join("b")
    box = {}
    thread = threading.Thread(target=lambda: box.update(inbox=link.round(0, timeout=5)))
    thread.start()
    time.sleep(0.3)
    call(link, token=link.tokens["a"], frames=[b"garbage garbage"])
    thread.join(10)
    assert box["inbox"].problems == {"a": "not a frame of this version"}
    assert link.server.refused["a: not a frame of this version"] == 1


def test_a_site_that_speaks_for_another_is_refused(link):
    link.join("b")
    box = {}
    thread = threading.Thread(target=lambda: box.update(inbox=link.round(0, timeout=5)))
    thread.start()
    time.sleep(0.3)
    forged = Reply(site="b", round_index=0, value=np.zeros(DIMENSION))
    call(link, token=link.tokens["a"], frames=[encode_reply(forged, run_id=RUN)])
    thread.join(10)
    assert set(box["inbox"].replies) == {"b"}
    assert "another site" in box["inbox"].problems["a"]


def test_a_connection_that_breaks_comes_back_as_the_same_site_within_the_round(link, relay):
    worked = []

    def work(broadcast):
        worked.append(broadcast.round_index)
        if worked.count(1) == 1 and broadcast.round_index == 1:
            relay.cut()  # the reply to round 1 is lost
            time.sleep(0.1)
        return answer("a")(broadcast)

    link.join("b")
    link.join("a", work, address=relay.address, patience=20.0)
    for round_index in range(4):
        assert link.round(round_index).problems == {}
    assert relay.count >= 2
    assert worked.count(1) == 2  # asked again, answered again, counted once
    assert sum(link.server.refused.values()) == 0


def test_a_failure_is_told_by_type_and_place_and_a_refusal_by_its_rule(link):
    def fail(broadcast):
        raise KeyError("secret-record-77")

    def refuse(broadcast):
        raise Refusal("the budget is spent")

    link.join("a", fail)
    link.join("b", refuse)
    problems = link.round(0).problems
    assert problems["a"].startswith("KeyError at test_channel.py:")
    assert problems["b"] == "the site refuses: the budget is spent"
    assert "secret" not in str(problems)


def test_a_reply_that_comes_too_late_is_dropped_and_hurts_no_later_round(link):
    link.join("b")

    def slow(broadcast):
        time.sleep(0.6 if broadcast.round_index == 0 else 0)
        return answer("a")(broadcast)

    link.join("a", slow)
    assert link.round(0, timeout=0.3).waiting_for == ["a"]
    inbox = link.round(1)
    assert inbox.problems == {}
    assert set(inbox.replies) == {"a", "b"}
    assert link.server.refused["a: a reply that came too late for its round"] == 1


def test_a_site_gives_up_when_the_server_stays_away(link):
    thread = link.join("a", patience=1.0)
    time.sleep(0.5)
    link.server._server.stop(None).wait()
    begun = time.monotonic()
    thread.join(15)
    assert not thread.is_alive()
    assert time.monotonic() - begun < 10
    assert isinstance(link.outcomes["a"], ChannelError)


def test_a_port_that_is_taken_is_named(link):
    with pytest.raises(ValueError, match="is the port taken"):
        ChannelServer(
            sites=SIZES,
            run_id=RUN,
            dimension=DIMENSION,
            address=link.server.address,
            certificate=(link.directory / "server.pem").read_bytes(),
            key=(link.directory / "server.key").read_bytes(),
        )
