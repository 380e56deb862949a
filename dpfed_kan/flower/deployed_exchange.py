"""Reach real sites by Flower's messages: their facts, one message a round, their metrics."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import Error, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from dpfed_kan.federated.refusal import told_rule
from dpfed_kan.federated.replies import Inbox, refused
from dpfed_kan.federated.site import Broadcast
from dpfed_kan.flower.deployed_client import CHANNEL, SITE_REFUSED
from dpfed_kan.flower.deployed_records import (
    ChannelOffer,
    SiteFacts,
    decode_metrics,
    decode_run_reply,
    decode_site_facts,
    encode_model,
    encode_offer,
    encode_query,
)
from dpfed_kan.flower.exchange import explain
from dpfed_kan.flower.records import WireError, encode_broadcast, with_count
from dpfed_kan.privacy.clipping import Vector

_LOG = logging.getLogger(__name__)
_POLL_SECONDS = 0.2
_BEFORE = "before round 0"
Nodes = Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class NativeExchange:
    """The sites of a run, one Flower message each a round.

    Args:
        grid: Flower's.
        nodes: Site name to node id.
        settings: Of the study; travels in every message.
        timeout: Seconds to wait for a round's replies.
    """

    grid: Grid
    nodes: Nodes
    settings: str
    timeout: float

    def __call__(self, broadcast: Broadcast, inbox: Inbox) -> None:
        """Send a broadcast to every site; put what comes back in time into the inbox."""
        content = encode_broadcast(broadcast, settings=self.settings)
        counts = broadcast.counts
        contents = {
            site: content if counts is None else with_count(content, site=site, count=counts[site])
            for site in self.nodes
        }
        for site, message in ask(
            self.grid, self.nodes, contents, MessageType.TRAIN, timeout=self.timeout
        ):
            if message.has_error():
                inbox.refuse(site, why(message.error))
                continue
            try:
                reply, run_id = decode_run_reply(message.content)
            except WireError as error:
                inbox.refuse(site, str(error))
            else:
                inbox.take(reply, sender=site, run_id=run_id)


def ask(
    grid: Grid,
    nodes: Nodes,
    contents: Mapping[str, RecordDict],
    message_type: str,
    *,
    timeout: float,
) -> Iterable[tuple[str, Message]]:
    """Send one message a site; yield each answer with the site that it really came from.

    Args:
        grid: Flower's.
        nodes: Site name to node id.
        contents: Site name to what it is sent.
        message_type: Of all.
        timeout: Seconds; what comes later is left.
    """
    sent = [Message(contents[site], nodes[site], message_type) for site in contents]
    waiting = dict(zip(grid.push_messages(sent), contents, strict=True))
    deadline = time.monotonic() + timeout
    while waiting:
        for message in grid.pull_messages(list(waiting)):
            site = waiting.pop(message.metadata.reply_to_message_id, None)
            if site is not None:
                yield site, message
        if not waiting or time.monotonic() > deadline:
            return
        time.sleep(_POLL_SECONDS)


def why(error: Error) -> str:
    """Return why a site failed or said no, without any text that could hold a record."""
    if error.code == SITE_REFUSED:
        rule = told_rule(error.reason or "")
        return f"the site refuses: {rule}" if rule else "the site refuses, its text is withheld"
    return explain(error)


def meet(
    grid: Grid,
    sites: Iterable[str],
    *,
    settings: str,
    timeout: float,
    problem_of: Callable[[SiteFacts], str | None],
) -> tuple[dict[str, int], dict[str, SiteFacts]]:
    """Wait until every site of the study has said who it is, and return nodes and facts.

    Args:
        grid: Flower's.
        sites: Names of those that must take part; any other node is left alone.
        settings: Of the study.
        timeout: Seconds to wait for all.
        problem_of: Why a site with such facts cannot take part.

    Raises:
        RoundRefused: If a site is missing, doubled, or cannot take part; each is named.
    """
    need = sorted(sites)
    nodes: dict[str, int] = {}
    facts: dict[str, SiteFacts] = {}
    problems: dict[str, str] = {}
    asked: set[int] = set()
    waiting: dict[str, int] = {}  # message id to node id; an answer is to be had once
    unnamed = 0
    deadline = time.monotonic() + timeout
    while set(nodes) != set(need) and not problems:
        fresh = [node for node in sorted(grid.get_node_ids()) if node not in asked]
        sent = [Message(encode_query(settings), node, MessageType.QUERY) for node in fresh]
        waiting |= dict(zip(grid.push_messages(sent), fresh, strict=True))
        asked |= set(fresh)
        for message in grid.pull_messages(list(waiting)):
            node = waiting.pop(message.metadata.reply_to_message_id, None)
            if node is None:
                continue
            try:
                if message.has_error():
                    raise WireError(why(message.error))
                said = decode_site_facts(message.content)
            except WireError as error:
                unnamed += 1
                problems[f"a site ({unnamed})"] = str(error)
                continue
            if said.site not in need:
                _LOG.warning("a node that is not in the study is left alone")
            elif nodes.setdefault(said.site, node) != node:
                problems[said.site] = "two nodes say that they are this site"
            elif (problem := problem_of(said)) is not None:
                problems[said.site] = problem
            else:
                facts[said.site] = said
        if time.monotonic() > deadline:
            break
        time.sleep(_POLL_SECONDS)
    absent = [site for site in need if site not in nodes]
    if not problems:
        problems = {site: f"not heard of within {timeout:g} s" for site in absent}
    if problems:
        raise refused(_BEFORE, problems, have=set(facts) - set(problems), need=need)
    return {site: nodes[site] for site in need}, {site: facts[site] for site in need}


def ask_approval(
    grid: Grid, nodes: Nodes, facts: Mapping[str, SiteFacts], *, settings: str, timeout: float
) -> None:
    """Have every site say yes or no to the plan, once the sizes of all are known.

    A yes sets nothing aside: a site looks again when it is asked to work.

    Args:
        grid: Flower's.
        nodes: Site name to node id.
        facts: Site name to what it has said when they met.
        settings: Of the study, planned.
        timeout: Seconds to wait for all.

    Raises:
        RoundRefused: If a site says no, nothing, or other facts than before; each is named.
    """
    problems = {site: f"no answer to the plan within {timeout:g} s" for site in nodes}
    contents = dict.fromkeys(nodes, encode_query(settings))
    for site, message in ask(grid, nodes, contents, MessageType.QUERY, timeout=timeout):
        try:
            if message.has_error():
                raise WireError(why(message.error))
            if decode_site_facts(message.content) != facts[site]:
                raise WireError("its facts are not those that it told before")
        except WireError as error:
            problems[site] = str(error)
        else:
            del problems[site]
    if problems:
        raise refused(_BEFORE, problems, have=set(nodes) - set(problems), need=nodes)


def offer_channel(
    grid: Grid, nodes: Nodes, *, settings: str, offers: Mapping[str, ChannelOffer]
) -> dict[str, str]:
    """Ask sites to connect; return message id to site, of answers that come when they are done."""
    sent = [
        Message(encode_offer(settings, offer), nodes[site], f"{MessageType.TRAIN}.{CHANNEL}")
        for site, offer in offers.items()
    ]
    return dict(zip(grid.push_messages(sent), offers, strict=True))


def gather_metrics(
    grid: Grid, nodes: Nodes, params: Vector, *, settings: str, timeout: float
) -> dict[str, dict[str, Any]]:
    """Return the held-out metrics of the sites that send any; what fails is logged, not fatal."""
    content = encode_model(params, settings=settings)
    found = {}
    contents = dict.fromkeys(nodes, content)
    for site, message in ask(grid, nodes, contents, MessageType.EVALUATE, timeout=timeout):
        try:
            if message.has_error():
                raise WireError(why(message.error))
            metrics = decode_metrics(message.content)
        except WireError as error:
            _LOG.warning("%s sends no metrics: %s", site, error)
            continue
        if metrics is not None:
            found[site] = metrics
    return found
