"""The ClientApp of a real site: a site behind Flower messages, in a process of its own.

What goes wrong travels as type and place, or as the rule by which the site said no; the full
traceback goes to the site's own log and nowhere else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any, Protocol

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from threadpoolctl import threadpool_limits

from dpfed_kan.federated.failure import site_log, type_and_place
from dpfed_kan.federated.refusal import Refusal
from dpfed_kan.federated.site import Broadcast, Reply
from dpfed_kan.flower.client_app import SITE_FAILED
from dpfed_kan.flower.deployed_records import (
    ChannelOffer,
    SiteFacts,
    decode_model,
    decode_offer,
    encode_metrics,
    encode_run_reply,
    encode_site_facts,
    settings_of,
)
from dpfed_kan.flower.records import decode_broadcast
from dpfed_kan.privacy.clipping import Vector

SITE_REFUSED = 1001
CHANNEL = "channel"
NodeConfig = Mapping[str, object]
_Handler = Callable[[Message, Context], Message]


class SiteOfARun(Protocol):
    """One site that serves one run."""

    @property
    def run_id(self) -> str:
        """Of the run."""
        ...

    def work(self, broadcast: Broadcast) -> Reply:
        """Answer a broadcast."""
        ...

    def metrics(self, params: Vector) -> dict[str, Any] | None:
        """Return held-out metrics, or None where they may not leave."""
        ...

    def serve(self, offer: ChannelOffer) -> int:
        """Answer broadcasts over the data channel until it ends; return how many."""
        ...


class Sites(Protocol):
    """From the settings of a message and this node's configuration to its site."""

    def log_path(self, node: NodeConfig) -> Path:
        """Return where this site's log is."""
        ...

    def facts(self, settings: str, node: NodeConfig) -> SiteFacts:
        """Return the facts before round 0."""
        ...

    def open(self, settings: str, node: NodeConfig) -> SiteOfARun:
        """Return the site; expected to keep the last one."""
        ...


def deployed_client_app(sites: Sites, *, num_threads: int = 1) -> ClientApp:
    """Return an app that answers with facts, clipped sums, and metrics where both sides agree.

    Args:
        sites: Of this process: one site, whatever the message says.
        num_threads: Limit of the matrix products, so that sums are the same bit for bit.
    """
    app = ClientApp()

    def guarded(handler: _Handler) -> _Handler:
        return _scrubbed(handler, sites=sites, num_threads=num_threads)

    @app.query()
    @guarded
    def query(message: Message, context: Context) -> Message:
        facts = sites.facts(settings_of(message.content), context.node_config)
        return Message(encode_site_facts(facts), reply_to=message)

    @app.train()
    @guarded
    def train(message: Message, context: Context) -> Message:
        broadcast, settings = decode_broadcast(message.content)
        site = sites.open(settings, context.node_config)
        reply = site.work(broadcast)
        return Message(encode_run_reply(reply, run_id=site.run_id), reply_to=message)

    @app.train(CHANNEL)
    @guarded
    def channel(message: Message, context: Context) -> Message:
        site = sites.open(settings_of(message.content), context.node_config)
        site.serve(decode_offer(message.content))
        content = RecordDict({"config": ConfigRecord({"run_id": site.run_id})})
        return Message(content, reply_to=message)

    @app.evaluate()
    @guarded
    def evaluate(message: Message, context: Context) -> Message:
        params = decode_model(message.content)
        site = sites.open(settings_of(message.content), context.node_config)
        return Message(encode_metrics(site.metrics(params)), reply_to=message)

    return app


def by_node(*, simulated: ClientApp, deployed: ClientApp) -> ClientApp:
    """Return the app of both: a node whose configuration names its site is a real one."""
    app = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        return (deployed if "site" in context.node_config else simulated)(message, context)

    app.query()(answer)
    app.train()(answer)
    app.train(CHANNEL)(answer)
    app.evaluate()(answer)
    return app


def _scrubbed(handler: _Handler, *, sites: Sites, num_threads: int) -> _Handler:
    @wraps(handler)
    def safe(message: Message, context: Context) -> Message:
        name = context.node_config.get("site")
        with _site_log(sites, context.node_config):
            try:
                with threadpool_limits(num_threads):
                    return handler(message, context)
            except Refusal as refusal:
                site_log(name).warning("this site refuses: %s", refusal.rule, exc_info=True)
                return Message(
                    Error(SITE_REFUSED, f"{refusal.rule} (site {name})"), reply_to=message
                )
            except Exception as error:
                site_log(name).exception("this site could not answer")
                reason = f"{type_and_place(error)} (site {name})"
                return Message(Error(SITE_FAILED, reason), reply_to=message)

    return safe


@contextmanager
def _site_log(sites: Sites, node: NodeConfig) -> Iterator[None]:
    """Have tracebacks go to the site's own log; one that cannot be written hides no error."""
    log = site_log(node.get("site"))
    handler: logging.Handler = logging.NullHandler()
    with suppress(Exception):
        path = sites.log_path(node)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handler = logging.FileHandler(path, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        handler.close()
