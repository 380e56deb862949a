"""A site's end of the data channel: connect out, answer broadcasts, reconnect as the same site."""

from __future__ import annotations

import queue
import secrets
import time
from collections.abc import Callable, Iterator

import grpc

from dpfed_kan.channel.frames import (
    End,
    Failed,
    decode_to_site,
    encode_failed,
    encode_reply,
    largest_frame,
)
from dpfed_kan.channel.wire import PATH, SESSION, TOKEN, options
from dpfed_kan.federated.failure import site_log, type_and_place
from dpfed_kan.federated.refusal import Refusal
from dpfed_kan.federated.site import Broadcast, Reply

_FINAL = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNIMPLEMENTED,
)
_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 2.0


class ChannelError(RuntimeError):
    """The server refused this site, or stayed away."""


def serve(
    work: Callable[[Broadcast], Reply],
    *,
    site: str,
    run_id: str,
    address: str,
    token: str,
    certificate_authority: bytes,
    dimension: int,
    patience: float = 12.0,
) -> int:
    """Answer broadcasts until the server ends the run.

    Args:
        work: Answers a broadcast; expected to answer a repeated one alike.
        site: This site's name.
        run_id: Of the run.
        address: host:port of the server, whose certificate must be of the authority.
        token: Of this site and run.
        certificate_authority: PEM.
        dimension: D.
        patience: Seconds without a connection after which the site gives up.

    Returns:
        How many broadcasts were answered.

    Raises:
        ChannelError: If the server refuses, or stays away for longer than `patience`.
        FrameError: If the server says what it may not.
    """
    session = secrets.token_hex(32)
    metadata = ((TOKEN, token), (SESSION, session))
    credentials = grpc.ssl_channel_credentials(root_certificates=certificate_authority)
    answered, pause = 0, _PAUSE_SECONDS
    last_heard = time.monotonic()
    with grpc.secure_channel(address, credentials, options(largest_frame(dimension))) as channel:
        while True:
            outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
            call = channel.stream_stream(PATH, None, None)(_until_none(outbox), metadata=metadata)
            try:
                for frame in call:
                    last_heard, pause = time.monotonic(), _PAUSE_SECONDS
                    said = decode_to_site(frame, site=site, run_id=run_id, dimension=dimension)
                    if isinstance(said, End):
                        return answered
                    answered += 1
                    outbox.put(_answer(work, said, site=site, run_id=run_id))
                    last_heard = time.monotonic()
            except grpc.RpcError as error:
                code = error.code()
                if code in _FINAL:
                    raise ChannelError(f"the server refused this site: {code.name}") from None
                site_log(site).warning("the data channel is down (%s); connecting again", code.name)
            finally:
                outbox.put(None)
                call.cancel()
            if time.monotonic() - last_heard > patience:
                raise ChannelError(f"no data channel to the server for {patience:g} s")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _answer(
    work: Callable[[Broadcast], Reply], broadcast: Broadcast, *, site: str, run_id: str
) -> bytes:
    try:
        return encode_reply(work(broadcast), run_id=run_id)
    except Refusal as refusal:
        site_log(site).warning("this site refuses: %s", refusal.rule, exc_info=True)
        reason, refused = refusal.rule, True
    except Exception as error:
        site_log(site).exception("round %d could not be answered", broadcast.round_index)
        reason, refused = type_and_place(error), False
    failed = Failed(round_index=broadcast.round_index, reason=reason, refused=refused)
    return encode_failed(failed, run_id=run_id)


def _until_none(outbox: queue.SimpleQueue[bytes | None]) -> Iterator[bytes]:
    while (frame := outbox.get()) is not None:
        yield frame
