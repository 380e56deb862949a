"""What travels between a server and real sites, beside broadcasts and replies; all is checked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from dpfed_kan.federated.site import Reply
from dpfed_kan.flower.records import WireError, decode_reply, decode_vector, encode_vector
from dpfed_kan.flower.records import encode_reply as encode_bare_reply
from dpfed_kan.privacy.clipping import Vector

_COLUMNS_LIMIT = 1_000_000


@dataclass(frozen=True, kw_only=True)
class SiteFacts:
    """What a real site says of itself before round 0: all public.

    Args:
        site: Its name.
        columns: The declaration of each column and of the label, as text.
        num_records: n_k; 0 where the columns are not the study's.
        num_params: D, of the model that it built; 0 where it built none.
        num_classes: Of its labels; 0 for numbers.
    """

    site: str
    columns: tuple[str, ...]
    num_records: int = 0
    num_params: int = 0
    num_classes: int = 0


@dataclass(frozen=True, kw_only=True)
class ChannelOffer:
    """Where and as whom a site connects.

    Args:
        address: host:port of the server's data channel.
        token: Of this site and run, hexadecimal; a secret.
    """

    address: str
    token: str


def encode_query(settings: str) -> RecordDict:
    """Return a message that asks for facts."""
    return RecordDict({"config": ConfigRecord({"settings": settings})})


def encode_offer(settings: str, offer: ChannelOffer) -> RecordDict:
    """Return a message that asks a site to connect."""
    config = ConfigRecord({"settings": settings, "address": offer.address, "token": offer.token})
    return RecordDict({"config": config})


def decode_offer(content: RecordDict) -> ChannelOffer:
    """Return where to connect.

    Raises:
        WireError: If the message is no offer.
    """
    config = _config(content)
    address, token = config.get("address"), config.get("token")
    if not isinstance(address, str) or not isinstance(token, str):
        raise WireError("expected an offer with address and token")
    return ChannelOffer(address=address, token=token)


def settings_of(content: RecordDict) -> str:
    """Return the settings that a message carries.

    Raises:
        WireError: If it carries none.
    """
    settings = _config(content).get("settings")
    if not isinstance(settings, str):
        raise WireError("expected a message with settings")
    return settings


def encode_site_facts(facts: SiteFacts) -> RecordDict:
    """Return a site's facts as a record."""
    config = ConfigRecord({"site": facts.site, "columns": list(facts.columns)})
    for name in ("num_records", "num_params", "num_classes"):
        config[name] = getattr(facts, name)
    return RecordDict({"config": config})


def decode_site_facts(content: RecordDict) -> SiteFacts:
    """Return the facts.

    Raises:
        WireError: If names or types differ from `encode_site_facts`'s.
    """
    config = _config(content)
    site, columns = config.get("site"), config.get("columns")
    counts = {name: config.get(name) for name in ("num_records", "num_params", "num_classes")}
    whole: dict[str, int] = {
        name: value for name, value in counts.items() if type(value) is int and value >= 0
    }
    if not isinstance(site, str) or not isinstance(columns, list) or len(whole) != len(counts):
        raise WireError("expected an answer with site, columns, num_records, num_params")
    named = [column for column in columns if isinstance(column, str) and _names_a_column(column)]
    if len(named) != len(columns):
        raise WireError("expected every column to be declared as JSON with a name")
    return SiteFacts(site=site, columns=tuple(named), **whole)


def encode_run_reply(reply: Reply, *, run_id: str) -> RecordDict:
    """Return a reply as a record that is bound to its run."""
    content = encode_bare_reply(reply)
    content.config_records["config"]["run_id"] = run_id
    return content


def decode_run_reply(content: RecordDict) -> tuple[Reply, str]:
    """Return the reply and the run that it belongs to.

    Raises:
        WireError: If it is no reply, or says no run.
    """
    reply = decode_reply(content)
    run_id = _config(content).get("run_id")
    if not isinstance(run_id, str):
        raise WireError("expected a reply with run_id")
    return reply, run_id


def encode_model(params: Vector, *, settings: str) -> RecordDict:
    """Return a message that asks what a model is worth."""
    return RecordDict(
        {
            "arrays": ArrayRecord({"params": encode_vector(params)}),
            "config": ConfigRecord({"settings": settings}),
        }
    )


def decode_model(content: RecordDict) -> Vector:
    """Return the params.

    Raises:
        WireError: If there are none.
    """
    arrays = content.array_records.get("arrays")
    if arrays is None or list(arrays) != ["params"]:
        raise WireError("expected the array params")
    return decode_vector(arrays["params"])


def encode_metrics(metrics: dict[str, Any] | None) -> RecordDict:
    """Return held-out metrics, or that none are sent."""
    return RecordDict({"config": ConfigRecord({"metrics": json.dumps(metrics)})})


def decode_metrics(content: RecordDict) -> dict[str, Any] | None:
    """Return the metrics, numbers and words by name; None where the site sends none.

    Raises:
        WireError: If they are anything else.
    """
    text = _config(content).get("metrics")
    if not isinstance(text, str) or len(text) > _COLUMNS_LIMIT:
        raise WireError("expected an answer with metrics")
    try:
        metrics = json.loads(text, parse_constant=_not_finite)
    except ValueError:
        raise WireError("expected metrics in JSON") from None
    if metrics is not None and not isinstance(metrics, dict):
        raise WireError("expected metrics by name, or none")
    return metrics


def _not_finite(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _names_a_column(text: str) -> bool:
    try:
        declared = json.loads(text)
    except ValueError:
        return False
    return isinstance(declared, dict) and isinstance(declared.get("name"), str)


def _config(content: RecordDict) -> ConfigRecord:
    config = content.get("config")
    return config if isinstance(config, ConfigRecord) else ConfigRecord()
