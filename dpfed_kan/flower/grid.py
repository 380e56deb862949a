"""A Grid that calls the ClientApp in this process: the same messages, no start-up, no polling."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from dpfed_kan.flower._compat import SERVER_NODE_ID, assign_message_id, empty_run, identify_process

_RUN_ID = 1


class InProcessGrid(Grid):
    """All sites in one process, called one after the other in the order of the messages.

    Args:
        client_app: Answers for every site.
        num_sites: K; node k has partition id k.
    """

    def __init__(self, client_app: ClientApp, num_sites: int) -> None:
        identify_process(_RUN_ID)
        self._client_app = client_app
        self._run = empty_run(_RUN_ID)
        self._ids = (str(number) for number in itertools.count(1))
        self._replies: dict[str, Message] = {}
        self._contexts = {
            SERVER_NODE_ID + 1 + k: Context(
                run_id=_RUN_ID,
                node_id=SERVER_NODE_ID + 1 + k,
                node_config={"partition-id": k, "num-partitions": num_sites},
                state=RecordDict(),
                run_config={},
            )
            for k in range(num_sites)
        }

    def set_run(self, run: Run) -> None:
        """Take the run's facts."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run's facts."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Make a message, as Flower's deprecated method does."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """List the sites' node ids."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Deliver messages; each is answered before this returns."""
        return [self._deliver(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to `message_ids`, once."""
        return [
            self._replies.pop(message_id)
            for message_id in message_ids
            if message_id in self._replies
        ]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Deliver messages and return their replies in the same order."""
        return self.pull_messages(self.push_messages(messages))

    def _deliver(self, message: Message) -> str:
        message_id = next(self._ids)
        assign_message_id(message, message_id)
        reply = self._client_app(message, self._contexts[message.metadata.dst_node_id])
        assign_message_id(reply, f"re:{message_id}")
        self._replies[message_id] = reply
        return message_id
