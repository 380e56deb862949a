"""What travels: names, shapes and dtypes, checked on arrival.

An array is the bytes of a `.npy` file, as Flower's own, written and read without extra copies.
"""

from __future__ import annotations

import io
from functools import lru_cache

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from dpfed_kan.federated.site import Broadcast, Reply
from dpfed_kan.privacy.clipping import Vector

_PARAMS, _SUM = "params", "clipped_sum"
_ROUND, _SITE = "round_index", "site"
_STYPE, _DTYPE = "numpy.ndarray", "float64"


class WireError(ValueError):
    """A message is not what it should be."""


def encode_vector(vector: Vector) -> Array:
    """Return a float64 vector as a Flower array."""
    data = _npy_header(len(vector)) + np.ascontiguousarray(vector, dtype="<f8").tobytes()
    return Array(_DTYPE, (len(vector),), _STYPE, data)


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
        broadcast: Public.
        settings: What the site is built from, the same in every message of a run.
    """
    return RecordDict(
        {
            "arrays": ArrayRecord({_PARAMS: encode_vector(broadcast.params)}),
            "config": ConfigRecord({_ROUND: broadcast.round_index, "settings": settings}),
        }
    )


def decode_broadcast(content: RecordDict) -> tuple[Broadcast, str]:
    """Return the broadcast and the settings.

    Raises:
        WireError: If names or types differ from `encode_broadcast`'s.
    """
    params = _only_array(content, _PARAMS)
    config = content.config_records.get("config", ConfigRecord())
    round_index, settings = config.get(_ROUND), config.get("settings")
    if not isinstance(round_index, int) or not isinstance(settings, str):
        raise WireError("expected a broadcast with round_index and settings")
    return Broadcast(round_index=round_index, params=params), settings


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
    value = _only_array(content, _SUM)
    config = content.config_records.get("config", ConfigRecord())
    round_index, site = config.get(_ROUND), config.get(_SITE)
    if not isinstance(round_index, int) or not isinstance(site, str):
        raise WireError("expected a reply with round_index and site")
    return Reply(site=site, round_index=round_index, value=value)


def _only_array(content: RecordDict, name: str) -> Vector:
    arrays = content.array_records.get("arrays", ArrayRecord())
    if list(content.array_records) != ["arrays"] or list(arrays) != [name]:
        found = sorted(key for record in content.array_records.values() for key in record)
        raise WireError(f"expected one array named {name!r}, got {found}")
    return decode_vector(arrays[name])


@lru_cache(maxsize=16)
def _npy_header(length: int) -> bytes:
    buffer = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": (length,)}
    np.lib.format.write_array_header_1_0(buffer, header)
    return buffer.getvalue()
