"""The ClientApp: a site behind Flower messages.

An exception at a site travels as its type and place only: its text can hold a record.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from functools import wraps

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from dpfed_kan.federated.site import Site
from dpfed_kan.flower.records import WireError, decode_broadcast, encode_reply

SiteBuilder = Callable[[str, int], Site]
"""From the settings in a message and the node's partition id to its site; expected to cache."""

SITE_FAILED = 1000
_LOG = logging.getLogger(__name__)
_Handler = Callable[[Message, Context], Message]


def client_app(build_site: SiteBuilder) -> ClientApp:
    """Return an app that answers `query` with public facts and `train` with a clipped sum."""
    app = ClientApp()

    @app.query()
    @_scrubbed
    def query(message: Message, context: Context) -> Message:
        config = message.content.config_records.get("config", ConfigRecord())
        settings = config.get("settings")
        if not isinstance(settings, str):
            raise WireError("expected a query with settings")
        site = build_site(settings, _partition_id(context))
        facts = ConfigRecord(
            {
                "site": site.name,
                "num_records": site.num_records,
                "num_params": site.gradients.num_params,
            }
        )
        return Message(RecordDict({"config": facts}), reply_to=message)

    @app.train()
    @_scrubbed
    def train(message: Message, context: Context) -> Message:
        broadcast, settings = decode_broadcast(message.content)
        reply = build_site(settings, _partition_id(context)).work(broadcast)
        return Message(encode_reply(reply), reply_to=message)

    return app


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
            place = traceback.extract_tb(error.__traceback__)[-1]
            module = place.filename.replace("\\", "/").rsplit("/", 1)[-1]
            reason = f"{type(error).__name__} at {module}:{place.lineno}"
            _LOG.error("this site could not answer: %s", reason)
            return Message(Error(SITE_FAILED, reason), reply_to=message)

    return safe
