"""Frames: a JSON header and float64 arrays as bytes, checked on arrival; no pickle.

A frame is b"DPFK", a version byte, the header's length (4 bytes, big-endian), the header, and
the arrays one after the other, little-endian, in the order and lengths that the header states.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np

from dpfed_kan.federated.site import Broadcast, Reply
from dpfed_kan.privacy.clipping import Vector
from dpfed_kan.privacy.transform import ClipTransform

_MAGIC = b"DPFK\x01"
_HEAD = struct.Struct(">5sI")
_HEADER_LIMIT = 65_536
_MOST_ARRAYS = 3
_PARAMS, _CENTER, _SCALE, _SUM = "params", "clip_center", "clip_scale", "clipped_sum"


class FrameError(ValueError):
    """Bytes that are not a frame of the kind that is expected here."""


@dataclass(frozen=True, kw_only=True)
class Failed:
    """A site could not answer a round.

    Args:
        round_index: t.
        reason: Type and place, or a rule; to be checked before it is shown.
        refused: Whether the site said no, and did not break down.
    """

    round_index: int
    reason: str
    refused: bool


@dataclass(frozen=True, kw_only=True)
class End:
    """There will be no more rounds."""


def largest_frame(dimension: int) -> int:
    """Return the most bytes that a frame about D parameters can have."""
    return _HEAD.size + _HEADER_LIMIT + _MOST_ARRAYS * 8 * dimension


def encode_broadcast(broadcast: Broadcast, *, site: str, run_id: str) -> bytes:
    """Return a broadcast to one site, with its own count and no other's."""
    arrays = {_PARAMS: broadcast.params}
    if broadcast.transform is not None:
        arrays |= {_CENTER: broadcast.transform.center, _SCALE: broadcast.transform.scale}
    count = None if broadcast.counts is None else broadcast.counts[site]
    header = {"kind": "broadcast", "run_id": run_id, "round_index": broadcast.round_index}
    return _frame(header | {"site": site, "count": count}, arrays)


def decode_to_site(frame: bytes, *, site: str, run_id: str, dimension: int) -> Broadcast | End:
    """Return what the server says.

    Raises:
        FrameError: If it is not for this site, run and model.
    """
    header, arrays = _parse(frame)
    if header.get("kind") == "end" and not arrays:
        return End()
    if header.get("kind") != "broadcast" or header.get("run_id") != run_id:
        raise FrameError("expected a broadcast of this run")
    round_index, count = header.get("round_index"), header.get("count")
    if header.get("site") != site or not _is_index(round_index):
        raise FrameError("expected a broadcast to this site, of a round")
    if list(arrays) not in ([_PARAMS], [_PARAMS, _CENTER, _SCALE]):
        raise FrameError("expected params, and a transform or none")
    if any(len(array) != dimension for array in arrays.values()):
        raise FrameError(f"expected arrays of length {dimension}")
    if count is not None and not _is_index(count):
        raise FrameError("expected the number of records to draw, or none")
    transform = None
    if _SCALE in arrays:
        transform = ClipTransform(center=arrays[_CENTER], scale=arrays[_SCALE])
    return Broadcast(
        round_index=round_index,
        params=arrays[_PARAMS],
        transform=transform,
        counts=None if count is None else {site: count},
    )


def encode_reply(reply: Reply, *, run_id: str) -> bytes:
    """Return a reply: the clipped sum and nothing else that touches records."""
    header = {"kind": "reply", "run_id": run_id, "round_index": reply.round_index}
    return _frame(header | {"site": reply.site}, {_SUM: reply.value})


def encode_failed(failed: Failed, *, run_id: str) -> bytes:
    """Return why there is no reply."""
    header = {"kind": "failed", "run_id": run_id, "round_index": failed.round_index}
    return _frame(header | {"reason": failed.reason, "refused": failed.refused}, {})


def encode_end() -> bytes:
    """Return the last frame of a run."""
    return _frame({"kind": "end"}, {})


def decode_to_server(frame: bytes) -> tuple[Reply | Failed, str]:
    """Return what a site says, and the run that it says it belongs to.

    Raises:
        FrameError: If it is neither a reply nor a failure.
    """
    header, arrays = _parse(frame)
    run_id, round_index = header.get("run_id"), header.get("round_index")
    if not isinstance(run_id, str) or not _is_index(round_index):
        raise FrameError("expected run_id and round_index")
    if header.get("kind") == "failed" and not arrays:
        reason = header.get("reason")
        if not isinstance(reason, str):
            raise FrameError("expected a reason")
        refused = header.get("refused") is True
        return Failed(round_index=round_index, reason=reason, refused=refused), run_id
    site = header.get("site")
    if header.get("kind") != "reply" or list(arrays) != [_SUM] or not isinstance(site, str):
        raise FrameError("expected a reply with one array")
    return Reply(site=site, round_index=round_index, value=arrays[_SUM]), run_id


def _frame(header: Mapping[str, Any], arrays: Mapping[str, Vector]) -> bytes:
    for name, array in arrays.items():
        if array.dtype != np.float64 or array.ndim != 1:
            raise FrameError(f"expected {name} to be a float64 vector, got {array.dtype}")
    lengths = [[name, len(array)] for name, array in arrays.items()]
    text = json.dumps({**header, "arrays": lengths}).encode()
    if len(text) > _HEADER_LIMIT:
        raise FrameError("the header is too long")
    parts = [np.ascontiguousarray(array, dtype="<f8").tobytes() for array in arrays.values()]
    return b"".join((_HEAD.pack(_MAGIC, len(text)), text, *parts))


def _parse(frame: bytes) -> tuple[dict[str, Any], dict[str, Vector]]:
    if len(frame) < _HEAD.size:
        raise FrameError("the frame is cut short")
    magic, header_length = _HEAD.unpack_from(frame)
    if magic != _MAGIC or not 0 < header_length <= _HEADER_LIMIT:
        raise FrameError("not a frame of this version")
    start = _HEAD.size + header_length
    try:
        header = json.loads(frame[_HEAD.size : start])
    except (ValueError, RecursionError):
        raise FrameError("the header is not JSON") from None
    if not isinstance(header, dict) or not isinstance(header.get("arrays"), list):
        raise FrameError("expected a header that lists the arrays")
    arrays: dict[str, Vector] = {}
    for item in header.pop("arrays"):
        if not (isinstance(item, list) and len(item) == 2 and isinstance(item[0], str)):
            raise FrameError("expected each array with name and length")
        name, length = item
        if not _is_index(length) or name in arrays or len(arrays) == _MOST_ARRAYS:
            raise FrameError("expected each array once, with its length")
        if start + 8 * length > len(frame):
            raise FrameError("the frame is shorter than its header says")
        arrays[name] = np.frombuffer(frame, dtype="<f8", count=length, offset=start)
        start += 8 * length
    if start != len(frame):
        raise FrameError("the frame is longer than its header says")
    return header, arrays


def _is_index(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < 2**62
