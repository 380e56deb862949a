"""The two ways to real sites behind one name: Flower's messages, or the data channel."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from dpfed_kan.channel.server import ChannelServer
from dpfed_kan.deployment.study import Study
from dpfed_kan.federated.replies import Collect, Inbox
from dpfed_kan.federated.site import Broadcast
from dpfed_kan.flower.deployed_client import SITE_REFUSED
from dpfed_kan.flower.deployed_exchange import NativeExchange, Nodes, offer_channel, why
from dpfed_kan.flower.deployed_records import ChannelOffer
from dpfed_kan.flower.runtimes import Grid

_WATCH_SECONDS = 0.5
_MOST_OFFERS = 5
_END_SECONDS = 30.0


@contextlib.contextmanager
def collecting(grid: Grid, nodes: Nodes, study: Study, *, dimension: int) -> Iterator[Collect]:
    """Return the way to the sites that the study's runtime asks for, and close it at the end.

    Raises:
        ValueError: If the channel lacks an address, certificate or key.
    """
    runtime, settings = study.runtime, study.settings()
    if runtime.transport == "native":
        yield NativeExchange(grid=grid, nodes=nodes, settings=settings, timeout=runtime.timeout)
        return
    server = ChannelServer(
        sites=nodes,
        run_id=study.run_id,
        dimension=dimension,
        address=_required("channel_address", runtime.channel_address),
        certificate=_read("channel_certificate", runtime.channel_certificate),
        key=_read("channel_key", runtime.channel_key),
    )
    watch = _Watch(grid, nodes, server, settings=settings)

    def collect(broadcast: Broadcast, inbox: Inbox) -> None:
        server.collect(broadcast, inbox, timeout=runtime.timeout)

    try:
        watch.offer(nodes)
        watch.start()
        server.meet(timeout=runtime.meeting_timeout)
        yield collect
    finally:
        server.close()
        watch.stop()


class _Watch:
    """Asks a site to connect again when its process has broken down, a few times.

    Args:
        grid: Flower's.
        nodes: Site name to node id.
        server: Where sites connect.
        settings: Of the study.
    """

    def __init__(self, grid: Grid, nodes: Nodes, server: ChannelServer, *, settings: str) -> None:
        self._grid = grid
        self._nodes = nodes
        self._server = server
        self._settings = settings
        self._waiting: dict[str, str] = {}  # message id to site
        self._offers = dict.fromkeys(nodes, 0)
        self._broken: dict[str, str] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="channel-watch", daemon=True)

    def offer(self, sites: Mapping[str, int]) -> None:
        """Send each site an address and a fresh token."""
        tokens = self._server.tokens.issue(sites)
        offers = {
            site: ChannelOffer(address=self._server.address, token=token)
            for site, token in tokens.items()
        }
        for site in sites:
            self._offers[site] += 1
        self._waiting |= offer_channel(
            self._grid, self._nodes, settings=self._settings, offers=offers
        )

    def start(self) -> None:
        """Begin to look for sites that have given up."""
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(_WATCH_SECONDS):
            for message in self._grid.pull_messages(list(self._waiting)):
                site = self._waiting.pop(message.metadata.reply_to_message_id, None)
                if site is None or self._over.is_set():
                    continue
                told = why(message.error) if message.has_error() else "its connection has ended"
                refuses = message.has_error() and message.error.code == SITE_REFUSED
                if self._offers[site] < _MOST_OFFERS and not refuses:
                    self.offer({site: self._nodes[site]})
                else:
                    self._broken[site] = told
            for site, told in self._broken.items():
                self._server.fail(site, told)

    def stop(self) -> None:
        """End."""
        self._over.set()
        self._thread.join(_END_SECONDS)


def _required(name: str, value: str | None) -> str:
    if value is None:
        raise ValueError(
            f"runtime.transport=channel needs runtime.{name}; runtime.transport=native does not"
        )
    return value


def _read(name: str, path: str | None) -> bytes:
    try:
        return Path(_required(name, path)).read_bytes()
    except OSError as error:
        raise ValueError(f"runtime.{name}={path} cannot be read: {error.strerror}") from None
