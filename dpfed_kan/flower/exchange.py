"""Carry a broadcast to all sites and their replies back, over any Flower Grid."""

from __future__ import annotations

import logging
import re
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from flwr.app import ConfigRecord, Error, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from dpfed_kan.federated.server import RoundRefused
from dpfed_kan.federated.site import Broadcast, Reply
from dpfed_kan.flower._compat import addressed_to
from dpfed_kan.flower.client_app import SITE_FAILED
from dpfed_kan.flower.records import (
    Facts,
    WireError,
    decode_facts,
    decode_reply,
    encode_broadcast,
    with_count,
)

_LOG = logging.getLogger(__name__)
_POLL_SECONDS = 0.2
_MEETING_SECONDS = 60.0
_PROBLEMS_SHOWN = 5
_BEFORE = "before round 0"
_TOLD_BY_US = re.compile(r"\w+ at [\w.<>-]+:\d+ \((?:partition-id \w+|site [\w.-]+)\)")
_EXCEPTION = re.compile(r"<class '([\w.]+)'>")
_FLOWER_ERRORS = {
    0: "its worker process may have died, killed or out of memory",
    1: "its app could not be loaded",
    2: "its app broke down",
    3: "the message was lost",
    4: "the reply was lost",
    5: "its node is gone",
    8: "its process crashed",
}


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

    def __call__(self, broadcast: Broadcast) -> Iterator[Reply]:
        """Send a broadcast to every site and return what comes back, as `decode` does."""
        sent = self.messages(broadcast)
        replies = self.grid.send_and_receive(sent, timeout=self.timeout)
        return self.decode(replies, sent=sent, round_index=broadcast.round_index)

    def messages(self, broadcast: Broadcast) -> list[Message]:
        """Return one message a site around one encoded broadcast."""
        content = encode_broadcast(broadcast, settings=self.settings)
        group, counts = str(broadcast.round_index), broadcast.counts
        first = Message(content, next(iter(self.nodes.values())), MessageType.TRAIN, group_id=group)
        sent = [addressed_to(first, node) for node in self.nodes.values()]
        if counts is not None:
            for site, message in zip(self.nodes, sent, strict=True):
                message.content = with_count(content, site=site, count=counts[site])
        return sent

    def decode(
        self, messages: Iterable[Message], *, sent: Sequence[Message], round_index: int
    ) -> Iterator[Reply]:
        """Yield one reply a site, as they come, without keeping them; a copy is left out.

        Args:
            messages: What came back.
            sent: What `messages` returned for this round, after it was sent.
            round_index: Of this round.

        Raises:
            RoundRefused: At the end, if any is an error, malformed, of another round or for
                another site, if a site says two different things, or if one is missing; all are
                named. What was yielded before counts for nothing then.
        """
        site_of = dict(zip((m.metadata.message_id for m in sent), self.nodes, strict=True))
        answered: dict[str, weakref.ref[Message]] = {}
        problems: dict[str, str] = {}
        for message in messages:
            site = site_of.get(message.metadata.reply_to_message_id)
            if site is None:
                problems[self._sender(message)] = "the reply answers no message of this round"
                continue
            try:
                reply = self._reply(message, site=site, round_index=round_index)
                if site not in answered:
                    answered[site] = weakref.ref(message)
                    handed_on = [reply]
                    del message, reply  # what was added up is gone when the next site works
                    yield handed_on.pop()
                    continue
                first = answered[site]()
                if first is None:
                    raise WireError("a second reply, after the first was added up")
                kept = self._reply(first, site=site, round_index=round_index)
                if reply.value.tobytes() != kept.value.tobytes():
                    raise WireError("two different replies")
                _LOG.warning(
                    "round %d, %s: the reply came twice; it counts once", round_index, site
                )
            except WireError as error:
                problems[site] = str(error)
        missing = [site for site in self.nodes if site not in answered and site not in problems]
        for site in missing:
            problems[site] = f"no answer within {self.timeout:g} s"
        if problems:
            have = len(answered.keys() - problems.keys())
            raise _refused(f"round {round_index}", problems, have=have, need=self.nodes)

    def _reply(self, message: Message, *, site: str, round_index: int) -> Reply:
        if message.has_error():
            raise WireError(explain(message.error))
        reply = decode_reply(message.content)
        if reply.site != site or message.metadata.src_node_id != self.nodes[site]:
            raise WireError(f"the reply comes from {self._sender(message)} for {reply.site}")
        if reply.round_index != round_index:
            raise WireError(f"the reply answers round {reply.round_index}")
        return reply

    def _sender(self, message: Message) -> str:
        sender = message.metadata.src_node_id
        names = {node: site for site, node in self.nodes.items()}
        return names.get(sender, "an unknown node")


def explain(error: Error) -> str:
    """Return why a site failed, without any text that a stranger wrote: it can hold a record."""
    reason = error.reason or ""
    if error.code == SITE_FAILED:
        return reason if _TOLD_BY_US.fullmatch(reason) else "an error whose text is withheld"
    told = _FLOWER_ERRORS.get(error.code, "an error whose text is withheld")
    exception = _EXCEPTION.match(reason)
    name = f", {exception[1].rpartition('.')[2]}" if exception else ""
    return f"{told} (Flower's error {error.code}{name})"


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
        timeout: Seconds to wait for the replies, here and in every round; the sites must be
            connected within this time and within one minute.

    Raises:
        RoundRefused: If a site is missing, unknown, fails, or holds another number of records
            or parameters than planned.
    """
    wait = min(timeout, _MEETING_SECONDS)
    node_ids = _wait_for_nodes(grid, needed=len(num_records), timeout=wait)
    content = RecordDict({"config": ConfigRecord({"settings": settings})})
    sent = [Message(content, node, MessageType.QUERY) for node in node_ids]
    nodes: dict[str, int] = {}
    names: dict[int, str] = {}
    problems: dict[str, str] = {}
    answered: set[str] = set()
    for message in grid.send_and_receive(sent, timeout=timeout):
        answered.add(message.metadata.reply_to_message_id)
        node = message.metadata.src_node_id
        try:
            facts = _facts(message)
        except WireError as error:
            problems[f"a site ({len(answered)})"] = str(error)
            continue
        planned = Facts(
            site=facts.site, num_records=num_records.get(facts.site, -1), num_params=num_params
        )
        if nodes.setdefault(facts.site, node) != node:
            problems[facts.site] = "two sites say that they are this one"
        elif names.setdefault(node, facts.site) != facts.site:
            problems[facts.site] = f"{names[node]} says that it is this one, too"
        elif facts.site not in num_records:
            problems[facts.site] = "this site is not in the plan"
        elif facts != planned:
            problems[facts.site] = f"planned {_numbers(planned)}, it has {_numbers(facts)}"
    if len(answered) < len(sent):
        absent = sorted(set(num_records) - set(nodes))
        problems |= {site: f"no answer within {timeout:g} s" for site in absent}
    if problems or set(nodes) != set(num_records):
        sound = len(set(nodes) - set(problems))
        raise _refused(_BEFORE, problems, have=sound, need=num_records)
    return GridExchange(
        grid=grid,
        nodes={site: nodes[site] for site in sorted(nodes)},
        settings=settings,
        timeout=timeout,
    )


def _facts(message: Message) -> Facts:
    if message.has_error():
        raise WireError(explain(message.error))
    return decode_facts(message.content)


def _numbers(facts: Facts) -> str:
    return f"num_records={facts.num_records}, num_params={facts.num_params}"


def _refused(
    where: str, problems: Mapping[str, str], *, have: int, need: Mapping[str, int]
) -> RoundRefused:
    shown = [f"{site}: {problem}" for site, problem in sorted(problems.items())]
    rest = len(shown) - _PROBLEMS_SHOWN
    if rest > 0:
        shown = [*shown[:_PROBLEMS_SHOWN], f"and {rest} more"]
    return RoundRefused(
        f"{where}: have {have} sound replies, need {len(need)}; " + "; ".join(shown)
    )


def _wait_for_nodes(grid: Grid, *, needed: int, timeout: float) -> list[int]:
    deadline = time.monotonic() + timeout
    while True:
        node_ids = sorted(grid.get_node_ids())
        if len(node_ids) == needed:
            return node_ids
        if len(node_ids) > needed or time.monotonic() > deadline:
            raise RoundRefused(
                f"{_BEFORE}: have {len(node_ids)} sites, need {needed}, after at most "
                f"{timeout:g} s; with `flwr run`, --federation-config num-supernodes={needed} "
                "starts as many as the plan has"
            )
        time.sleep(_POLL_SECONDS)
