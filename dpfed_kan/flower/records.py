"""What travels: names, shapes and dtypes, checked on arrival.

An array is the bytes of a `.npy` file, as Flower's own, written and read without extra copies.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeGuard

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from dpfed_kan.federated.site import Broadcast, Reply
from dpfed_kan.flower.local_reply import LocalReply
from dpfed_kan.privacy.clipping import Vector
from dpfed_kan.privacy.transform import ClipTransform

_PARAMS, _SUM = "params", "clipped_sum"
_CENTER, _SCALE = "clip_center", "clip_scale"
_ROUND, _SITE, _COUNT = "round_index", "site", "count"
_STYPE, _DTYPE = "numpy.ndarray", "float64"


class WireError(ValueError):
    """A message is not what it should be."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a site says of itself before round 0: all public.

    Args:
        site: Its name.
        num_records: n_k.
        num_params: D, of the model that it built.
    """

    site: str
    num_records: int
    num_params: int


def encode_vector(vector: Vector) -> Array:
    """Return a float64 vector as a Flower array.

    Raises:
        WireError: If it is anything else: nothing is converted on the way out.
    """
    if vector.dtype != np.float64 or vector.ndim != 1:
        raise WireError(f"expected a float64 vector, got {vector.dtype} of shape {vector.shape}")
    contiguous = np.ascontiguousarray(vector, dtype="<f8")
    return Array(
        _DTYPE, (len(vector),), _STYPE, b"".join((_npy_header(len(vector)), contiguous.data))
    )


def decode_vector(array: Array) -> Vector:
    """Return the vector, read-only and without a copy.

    Raises:
        WireError: If it is anything but one float64 vector.
    """
    if array.stype != _STYPE or array.dtype != _DTYPE or len(array.shape) != 1:
        raise WireError(
            f"expected a {_DTYPE} vector, got {array.dtype} of shape {tuple(array.shape)}"
        )
    header = _npy_header(int(array.shape[0]))
    if not array.data.startswith(header) or len(array.data) != len(header) + 8 * array.shape[0]:
        raise WireError(f"the bytes are not those of a {_DTYPE} vector of the stated shape")
    return np.frombuffer(array.data, dtype="<f8", offset=len(header))


def encode_broadcast(broadcast: Broadcast, *, settings: str) -> RecordDict:
    """Return a broadcast as a record; encoded once, it serves every site.

    Args:
        broadcast: Its public part; `with_count` adds what one site is told.
        settings: What the site is built from, the same in every message of a run.
    """
    arrays = {_PARAMS: encode_vector(broadcast.params)}
    if broadcast.transform is not None:
        arrays[_CENTER] = encode_vector(broadcast.transform.center)
        arrays[_SCALE] = encode_vector(broadcast.transform.scale)
    return RecordDict(
        {
            "arrays": ArrayRecord(arrays),
            "config": ConfigRecord({_ROUND: broadcast.round_index, "settings": settings}),
        }
    )


def with_count(content: RecordDict, *, site: str, count: int) -> RecordDict:
    """Return a broadcast's record, its arrays shared, with the draw size of one site."""
    config = dict(content.config_records["config"]) | {_SITE: site, _COUNT: count}
    return RecordDict({"arrays": content.array_records["arrays"], "config": ConfigRecord(config)})


def decode_broadcast(content: RecordDict) -> tuple[Broadcast, str]:
    """Return the broadcast and the settings.

    Raises:
        WireError: If names or types differ from `encode_broadcast`'s.
    """
    transformed = _SCALE in content.array_records.get("arrays", ArrayRecord())
    names = (_PARAMS, _CENTER, _SCALE) if transformed else (_PARAMS,)
    params, *rest = _only_arrays(content, *names)
    transform = ClipTransform(center=rest[0], scale=rest[1]) if transformed else None
    config = _config(content)
    round_index, settings = config.get(_ROUND), config.get("settings")
    if not _is_index(round_index) or not isinstance(settings, str):
        raise WireError("expected a broadcast with round_index and settings")
    counts = None
    if _COUNT in config:
        site, count = config.get(_SITE), config[_COUNT]
        if not isinstance(site, str) or not _is_index(count):
            raise WireError("expected the number of records to draw and the site it is for")
        counts = {site: count}
    broadcast = Broadcast(
        round_index=round_index, params=params, transform=transform, counts=counts
    )
    return broadcast, settings


def encode_reply(reply: Reply) -> RecordDict:
    """Return a reply as a record: the clipped sum and nothing else that touches records."""
    return RecordDict(
        {
            "arrays": ArrayRecord({_SUM: encode_vector(reply.value)}),
            "config": ConfigRecord({_ROUND: reply.round_index, _SITE: reply.site}),
        }
    )


def decode_reply(content: RecordDict) -> Reply:
    """Return the reply.

    Raises:
        WireError: If names or types differ from `encode_reply`'s.
    """
    if isinstance(content, LocalReply):
        return content.reply
    (value,) = _only_arrays(content, _SUM)
    config = _config(content)
    round_index, site = config.get(_ROUND), config.get(_SITE)
    if not _is_index(round_index) or not isinstance(site, str):
        raise WireError("expected a reply with round_index and site")
    return Reply(site=site, round_index=round_index, value=value)


def encode_facts(facts: Facts) -> RecordDict:
    """Return a site's facts as a record."""
    config = ConfigRecord()
    config[_SITE] = facts.site
    config["num_records"] = facts.num_records
    config["num_params"] = facts.num_params
    return RecordDict({"config": config})


def decode_facts(content: RecordDict) -> Facts:
    """Return the facts.

    Raises:
        WireError: If names or types differ from `encode_facts`'s.
    """
    config = _config(content)
    site, num_records, num_params = (
        config.get(name) for name in (_SITE, "num_records", "num_params")
    )
    if not isinstance(site, str) or not _is_index(num_records) or not _is_index(num_params):
        raise WireError("expected an answer with site, num_records and num_params")
    return Facts(site=site, num_records=num_records, num_params=num_params)


def _config(content: RecordDict) -> ConfigRecord:
    config = content["config"] if "config" in content else None
    return config if isinstance(config, ConfigRecord) else ConfigRecord()


def _is_index(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _only_arrays(content: RecordDict, *names: str) -> list[Vector]:
    known = len(content) == 2 and "arrays" in content and "config" in content
    arrays = content["arrays"] if known else None
    if not isinstance(arrays, ArrayRecord):
        raise WireError(f"expected the records arrays and config, got {sorted(content)}")
    if tuple(arrays) != names:
        raise WireError(f"expected the arrays {list(names)}, got {sorted(arrays)}")
    return [decode_vector(arrays[name]) for name in names]


@lru_cache(maxsize=16)
def _npy_header(length: int) -> bytes:
    buffer = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": (length,)}
    np.lib.format.write_array_header_1_0(buffer, header)
    return buffer.getvalue()
