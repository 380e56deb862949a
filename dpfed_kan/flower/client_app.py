"""The ClientApp: a site behind Flower messages.

An exception at a site travels as its type and place only: its text can hold a record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache, wraps

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from threadpoolctl import threadpool_limits

from dpfed_kan.federated.failure import type_and_place
from dpfed_kan.federated.site import Broadcast, Site
from dpfed_kan.flower._compat import local_answer
from dpfed_kan.flower.local_reply import LocalReply
from dpfed_kan.flower.records import (
    Facts,
    WireError,
    decode_broadcast,
    encode_facts,
    encode_reply,
)

SiteBuilder = Callable[[str, int], Site]
"""From the settings in a message and the node's partition id to its site; expected to cache."""

SITE_FAILED = 1000
_LOG = logging.getLogger(__name__)
_Handler = Callable[[Message, Context], Message]


def client_app(
    build_site: SiteBuilder, *, num_threads: int | None = None, local: bool = False
) -> ClientApp:
    """Return an app that answers `query` with public facts and `train` with a clipped sum.

    Args:
        build_site: Of this process.
        num_threads: Limit of the matrix products in a worker process, so that sums are the same
            bit for bit whatever the machine; None where whoever runs the app has set it.
        local: Whether the server is in this process, so that a reply needs no bytes.
    """
    app = ClientApp()
    last: list[tuple[RecordDict, Broadcast, str]] = []  # in one process all sites get one record

    @app.query()
    @_scrubbed
    def query(message: Message, context: Context) -> Message:
        config = message.content.config_records.get("config", ConfigRecord())
        settings = config.get("settings")
        if not isinstance(settings, str):
            raise WireError("expected a query with settings")
        site = build_site(settings, _partition_id(context))
        facts = Facts(
            site=site.name, num_records=site.num_records, num_params=site.gradients.num_params
        )
        return Message(encode_facts(facts), reply_to=message)

    @app.train()
    @_scrubbed
    def train(message: Message, context: Context) -> Message:
        if not last or last[0][0] is not message.content:
            last[:] = [(message.content, *decode_broadcast(message.content))]
        _, broadcast, settings = last[0]
        site = build_site(settings, _partition_id(context))
        if num_threads is not None:
            _limit_threads(num_threads)
        reply = site.work(broadcast)
        if local:
            return local_answer(message, LocalReply(reply))
        return Message(encode_reply(reply), reply_to=message)

    return app


@lru_cache(maxsize=1)
def _limit_threads(num_threads: int) -> None:
    """Limit this worker process for good; called once its libraries are loaded."""
    threadpool_limits(limits=num_threads)


def _partition_id(context: Context) -> int:
    value = context.node_config.get("partition-id")
    if not isinstance(value, int):
        raise WireError("expected this node's configuration to hold partition-id")
    return value


def _scrubbed(handler: _Handler) -> _Handler:
    @wraps(handler)
    def safe(message: Message, context: Context) -> Message:
        try:
            return handler(message, context)
        except Exception as error:
            where = context.node_config.get("partition-id")
            reason = f"{type_and_place(error)} (partition-id {where})"
            _LOG.error("this site could not answer: %s", reason)
            return Message(Error(SITE_FAILED, reason), reply_to=message)

    return safe


__all__ = ["SITE_FAILED", "SiteBuilder", "client_app", "type_and_place"]
