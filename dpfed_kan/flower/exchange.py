"""Carry a broadcast to all sites and their replies back, over any Flower Grid."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from dpfed_kan.federated.server import RoundRefused
from dpfed_kan.federated.site import Broadcast, Reply
from dpfed_kan.flower.records import WireError, decode_reply, encode_broadcast

_POLL_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class GridExchange:
    """The sites of a run and how to reach them.

    Args:
        grid: Flower's.
        nodes: Site name to node id; messages go out in this order.
        settings: What a site is built from; travels in every message, so that a stateless
            worker can answer for any site.
        timeout: Seconds to wait for a round's replies.
    """

    grid: Grid
    nodes: Mapping[str, int]
    settings: str
    timeout: float

    def __call__(self, broadcast: Broadcast) -> Sequence[Reply]:
        """Send a broadcast to every site and return what came back.

        Raises:
            RoundRefused: If a site failed or did not answer in time; it is named.
        """
        replies = self.grid.send_and_receive(self.messages(broadcast), timeout=self.timeout)
        return self.decode(replies, where=f"round {broadcast.round_index}")

    def messages(self, broadcast: Broadcast) -> list[Message]:
        """Return one message a site around one encoded broadcast."""
        content = encode_broadcast(broadcast, settings=self.settings)
        group = str(broadcast.round_index)
        return [
            Message(content, node, MessageType.TRAIN, group_id=group)
            for node in self.nodes.values()
        ]

    def decode(self, messages: Iterable[Message], *, where: str) -> list[Reply]:
        """Return the replies, sorted by site.

        Raises:
            RoundRefused: If any is an error or malformed, or a site's is missing.
        """
        site_of = {node: site for site, node in self.nodes.items()}
        replies = []
        for message in messages:
            site = site_of.get(message.metadata.src_node_id, "an unknown node")
            if message.has_error():
                raise RoundRefused(f"{where}, {site}: {message.error.reason}")
            try:
                reply = decode_reply(message.content)
            except WireError as error:
                raise RoundRefused(f"{where}, {site}: {error}") from None
            if reply.site != site:
                raise RoundRefused(f"{where}, {site}: the reply speaks for {reply.site}")
            replies.append(reply)
        if len(replies) != len(self.nodes):
            missing = sorted(set(self.nodes) - {reply.site for reply in replies})
            raise RoundRefused(
                f"{where}: have {len(replies)} replies, need {len(self.nodes)}; no answer within "
                f"{self.timeout:g} s from {missing}"
            )
        return sorted(replies, key=lambda reply: reply.site)


def meet_sites(
    grid: Grid,
    *,
    num_records: Mapping[str, int],
    num_params: int,
    settings: str,
    timeout: float,
) -> GridExchange:
    """Wait for the sites, and check before round 0 that each is the one that was planned.

    Args:
        grid: Flower's.
        num_records: Site name to n_k, as planned.
        num_params: D, as planned.
        settings: What a site is built from.
        timeout: Seconds to wait, here and in every round.

    Raises:
        RoundRefused: If a site is missing, unknown, fails, or holds another number of records
            or parameters than planned.
    """
    node_ids = _wait_for_nodes(grid, needed=len(num_records), timeout=timeout)
    content = RecordDict({"config": ConfigRecord({"settings": settings})})
    messages = [Message(content, node, MessageType.QUERY) for node in node_ids]
    nodes: dict[str, int] = {}
    for message in grid.send_and_receive(messages, timeout=timeout):
        if message.has_error():
            raise RoundRefused(f"before round 0, a site failed: {message.error.reason}")
        facts = dict(message.content.config_records["config"])
        site = str(facts.get("site"))
        planned = {"site": site, "num_records": num_records.get(site), "num_params": num_params}
        if facts != planned:
            raise RoundRefused(f"before round 0, {site}: planned {planned}, the site says {facts}")
        nodes[site] = message.metadata.src_node_id
    if set(nodes) != set(num_records):
        missing = sorted(set(num_records) - set(nodes))
        raise RoundRefused(
            f"before round 0: have {len(nodes)} sites, need {len(num_records)}; missing {missing}"
        )
    return GridExchange(
        grid=grid,
        nodes={site: nodes[site] for site in sorted(nodes)},
        settings=settings,
        timeout=timeout,
    )


def _wait_for_nodes(grid: Grid, *, needed: int, timeout: float) -> list[int]:
    deadline = time.monotonic() + timeout
    while True:
        node_ids = sorted(grid.get_node_ids())
        if len(node_ids) == needed:
            return node_ids
        if time.monotonic() > deadline:
            raise RoundRefused(
                f"before round 0: have {len(node_ids)} sites, need {needed}, after {timeout:g} s"
            )
        time.sleep(_POLL_SECONDS)
