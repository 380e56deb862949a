"""The server's end of the data channel: admits sites by token over TLS, carries the rounds."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from dpfed_kan.channel.frames import (
    Failed,
    FrameError,
    decode_to_server,
    encode_broadcast,
    encode_end,
    largest_frame,
)
from dpfed_kan.channel.tokens import Tokens
from dpfed_kan.channel.wire import METHOD, SERVICE, SESSION, TOKEN, options
from dpfed_kan.federated.failure import told_place
from dpfed_kan.federated.refusal import told_rule
from dpfed_kan.federated.replies import Inbox
from dpfed_kan.federated.site import Broadcast

_LOG = logging.getLogger(__name__)
_STRANGERS = 8  # connections beyond one a site that may wait to be refused
_CLOSE_SECONDS = 5.0


class ChannelServer:
    """Listens for the sites of one run.

    Guarantees:
        Only a connection over TLS that shows a token of this run gets a broadcast or is heard; a
        message larger than any of this run's is refused unread.

    Args:
        sites: Who takes part.
        run_id: Of the run.
        dimension: D.
        address: host:port to listen at; port 0 takes a free one.
        certificate: Chain, PEM.
        key: Private key of the certificate, PEM.

    Raises:
        ValueError: If the address cannot be listened at.
    """

    def __init__(
        self,
        *,
        sites: Iterable[str],
        run_id: str,
        dimension: int,
        address: str,
        certificate: bytes,
        key: bytes,
    ) -> None:
        self._sites = sorted(sites)
        self._run_id = run_id
        self.tokens = Tokens(run_id)
        self.refused: Counter[str] = Counter()
        self._change = threading.Condition()
        self._frames: dict[str, tuple[int, bytes]] = {}  # what each site is to answer, numbered
        self._connection: dict[str, int] = {}  # the latest of each site; an older one ends
        self._failed: set[str] = set()  # those of whom no connection is to be expected
        self._inbox: Inbox | None = None
        self._late: set[tuple[str, int]] = set()  # rounds that went on without a site
        self._ended = False
        os.environ["GRPC_VERBOSITY"] = "INFO"  # logs handshakes that fail, which flwr turns off
        workers = 2 * len(self._sites) + _STRANGERS
        self._server = grpc.server(
            ThreadPoolExecutor(max_workers=workers, thread_name_prefix="channel"),
            options=options(largest_frame(dimension)),
        )
        handler = grpc.stream_stream_rpc_method_handler(self._rounds)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),)
        )
        try:
            port = self._server.add_secure_port(
                address, grpc.ssl_server_credentials([(key, certificate)])
            )
        except RuntimeError:
            raise ValueError(
                f"channel_address={address} cannot be listened at: is the port taken?"
            ) from None
        self.address = f"{address.rpartition(':')[0]}:{port}"
        self._server.start()

    def meet(self, *, timeout: float) -> None:
        """Wait until every site has connected once or will not, so that no round pays for it.

        Args:
            timeout: Seconds; who is missing then is missing in the first round.
        """
        deadline = time.monotonic() + timeout
        with self._change:
            while (
                set(self._sites) - self._connection.keys() - self._failed
                and (left := deadline - time.monotonic()) > 0
            ):
                self._change.wait(left)

    def collect(self, broadcast: Broadcast, inbox: Inbox, *, timeout: float) -> None:
        """Send a broadcast to every site; put what comes back in time into the inbox."""
        deadline = time.monotonic() + timeout
        with self._change:
            self._inbox = inbox
            for site in self._sites:
                number = self._frames.get(site, (0, b""))[0] + 1
                frame = encode_broadcast(broadcast, site=site, run_id=self._run_id)
                self._frames[site] = (number, frame)
            self._change.notify_all()
            while inbox.waiting_for and (left := deadline - time.monotonic()) > 0:
                self._change.wait(left)
            self._late |= {(site, broadcast.round_index) for site in inbox.waiting_for}
            self._inbox = None

    def fail(self, site: str, problem: str) -> None:
        """Take note that a site will not connect."""
        with self._change:
            self._failed.add(site)
            if self._inbox is not None:
                self._inbox.refuse(site, problem)
            self._change.notify_all()

    def close(self) -> None:
        """Tell the sites that the run is over, and stop listening."""
        with self._change:
            self._ended = True
            self._change.notify_all()
        self._server.stop(_CLOSE_SECONDS).wait()

    def _rounds(self, frames: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Answer one connection: refuse it, or send what its site is to answer."""
        shown = {str(name): value for name, value in context.invocation_metadata()}
        site, problem = self.tokens.admit(_text(shown, TOKEN), _text(shown, SESSION))
        if site is None:
            with self._change:
                self.refused[problem] += 1
            _LOG.warning("a connection from %s is refused: %s", context.peer(), problem)
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "refused")
            return
        with self._change:
            self._connection[site] = mine = self._connection.get(site, 0) + 1
            inbox = self._inbox
            due = inbox is not None and site in inbox.waiting_for
            sent = self._frames.get(site, (0, b""))[0] - (1 if due else 0)
            self._change.notify_all()
        _LOG.info("%s is connected", site)
        threading.Thread(
            target=self._hear, args=(site, mine, frames), name=f"from-{site}", daemon=True
        ).start()
        context.add_callback(self._wake)
        while (frame := self._next(site, mine, sent, context)) is not None:
            sent += 1
            yield frame
            if frame == encode_end():
                return

    def _next(self, site: str, mine: int, sent: int, context: grpc.ServicerContext) -> bytes | None:
        """Wait for what this connection is to send next; None if it has ended."""
        with self._change:
            while context.is_active() and self._connection[site] == mine:
                number, frame = self._frames.get(site, (0, b""))
                if self._ended:
                    return encode_end()
                if number > sent:
                    return frame
                self._change.wait()
        return None

    def _hear(self, site: str, mine: int, frames: Iterator[bytes]) -> None:
        """Put what a connection says into the inbox of the round that is open."""
        try:
            for frame in frames:
                with self._change:
                    if self._connection[site] != mine:
                        return
                    self._take(site, frame)
                    self._change.notify_all()
        except Exception as error:  # the connection is gone; the site may come back
            _LOG.info("the connection of %s has ended (%s)", site, type(error).__name__)

    def _take(self, site: str, frame: bytes) -> None:
        inbox = self._inbox
        try:
            said, run_id = decode_to_server(frame)
        except FrameError as error:
            self._refuse(inbox, site, str(error))
            return
        if inbox is None:
            self._refuse(None, site, "a reply when no round is open")
        elif isinstance(said, Failed):
            if said.round_index == inbox.round_index:
                inbox.refuse(site, _reason(said))
        elif (site, said.round_index) in self._late:
            self._late.discard((site, said.round_index))
            self._refuse(None, site, "a reply that came too late for its round")
        else:
            inbox.take(said, sender=site, run_id=run_id)

    def _refuse(self, inbox: Inbox | None, site: str, problem: str) -> None:
        self.refused[f"{site}: {problem}"] += 1
        if inbox is None:
            _LOG.warning("%s: %s", site, problem)
        else:
            inbox.refuse(site, problem)

    def _wake(self) -> None:
        with self._change:
            self._change.notify_all()


def _reason(failed: Failed) -> str:
    if failed.refused:
        rule = told_rule(failed.reason)
        return f"the site refuses: {rule}" if rule else "the site refuses, its text is withheld"
    return told_place(failed.reason) or "an error whose text is withheld"


def _text(shown: dict[str, Any], name: str) -> str:
    value = shown.get(name, "")
    return value if isinstance(value, str) else ""
