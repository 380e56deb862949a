"""A reply that stays in this process: it travels in a Flower message as it is, without bytes."""

from __future__ import annotations

from flwr.app import RecordDict

from dpfed_kan.federated.site import Reply
from dpfed_kan.flower._compat import like


class LocalReply(RecordDict):
    """The content of a message that is not for a wire: no records, but the reply itself.

    Args:
        reply: Its value cannot be written to afterwards, by anybody.
    """

    reply: Reply

    def __init__(self, reply: Reply) -> None:
        reply.value.flags.writeable = False
        like(_EMPTY, self)
        self.__dict__["reply"] = reply

    def deflate(self) -> bytes:
        """Refuse to be serialized.

        Raises:
            TypeError: Always; the bytes of a reply are made by `encode_reply`.
        """
        raise TypeError("a reply of this process has no bytes")


_EMPTY = RecordDict()
