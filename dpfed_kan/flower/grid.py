"""Grids of our own: one that calls the ClientApp in this process, one that can be stopped."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable, Mapping, Sequence

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from dpfed_kan.flower._compat import (
    SERVER_NODE_ID,
    Run,
    assign_message_id,
    empty_run,
    identify_process,
)
from dpfed_kan.flower.client_app import SITE_FAILED, type_and_place

_RUN_ID = 1
_POLL_SECONDS = 0.02


class InProcessGrid(Grid):
    """All sites in one process, called one after the other in the order of the messages.

    The same messages as anywhere else, without start-up and polling.

    Args:
        client_app: Answers for every site.
        num_sites: K; node k has partition id k.
        node_configs: One a node, in place of partition ids: of sites that have files of their own.
    """

    def __init__(
        self,
        client_app: ClientApp,
        num_sites: int,
        *,
        node_configs: Sequence[Mapping[str, bool | float | int | str]] | None = None,
    ) -> None:
        identify_process(_RUN_ID)
        self._client_app = client_app
        self._run = empty_run(_RUN_ID)
        self._ids = (str(number) for number in itertools.count(1))
        self._replies: dict[str, Message] = {}
        self._contexts = {
            SERVER_NODE_ID + 1 + k: Context(
                run_id=_RUN_ID,
                node_id=SERVER_NODE_ID + 1 + k,
                node_config={"partition-id": k, "num-partitions": num_sites}
                if node_configs is None
                else dict(node_configs[k]),
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
        """Deliver messages; each is answered before this returns.

        Raises:
            ValueError: If a message is for a node that does not exist; none is delivered then.
        """
        sent = self._addressed(messages)
        for message in sent:
            self._replies[message.metadata.message_id] = self._answer(message)
        return [message.metadata.message_id for message in sent]

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
        """Return the replies in the order of the messages.

        A site works when its reply is asked for, so that one can be let go of before the next.

        Raises:
            ValueError: If a message is for a node that does not exist; none is delivered then.
        """
        return map(self._answer, self._addressed(messages))

    def _addressed(self, messages: Iterable[Message]) -> list[Message]:
        addressed = list(messages)
        for message in addressed:
            if message.metadata.dst_node_id not in self._contexts:
                raise ValueError(f"there is no node {message.metadata.dst_node_id}")
        for message in addressed:
            assign_message_id(message, next(self._ids))
        return addressed

    def _answer(self, message: Message) -> Message:
        try:
            reply = self._client_app(message, self._contexts[message.metadata.dst_node_id])
        except Exception as error:  # outside the app's own handlers: an error reply, as Flower's
            reply = Message(Error(SITE_FAILED, type_and_place(error)), reply_to=message)
        assign_message_id(reply, f"re:{message.metadata.message_id}")
        return reply


class StoppableGrid(Grid):
    """Another grid whose waiting ends when `stop` is set.

    Args:
        grid: Any; messages go through it.
        stop: Set, from another thread, to have the waiting one raise KeyboardInterrupt.
    """

    def __init__(self, grid: Grid, stop: threading.Event) -> None:
        self._grid = grid
        self._stop = stop

    def set_run(self, run: Run) -> None:
        """Take the run's facts."""
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        """The run's facts."""
        return self._grid.run

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
        self._check()
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages."""
        self._check()
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that have come."""
        self._check()
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and return the replies that came within `timeout` seconds.

        Raises:
            KeyboardInterrupt: If `stop` is set meanwhile.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        waiting = set(self.push_messages(messages))
        replies: list[Message] = []
        while waiting and (deadline is None or time.monotonic() < deadline):
            came = list(self.pull_messages(waiting))
            replies.extend(came)
            waiting -= {reply.metadata.reply_to_message_id for reply in came}
            if waiting:
                self._stop.wait(_POLL_SECONDS)
        return replies

    def _check(self) -> None:
        if self._stop.is_set():
            raise KeyboardInterrupt
