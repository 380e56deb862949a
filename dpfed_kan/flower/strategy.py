"""`PrivateStrategy`: the round as a Flower Strategy, for whoever plugs strategies together."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from dpfed_kan.federated.server import Server
from dpfed_kan.federated.site import Broadcast
from dpfed_kan.flower.exchange import GridExchange
from dpfed_kan.flower.records import decode_vector, encode_vector
from dpfed_kan.privacy.ledger import Ledger
from dpfed_kan.streams import Streams
from dpfed_kan.update.rule import UpdateState

_LOG = logging.getLogger(__name__)
_ARRAY = "params"


class PrivateStrategy(Strategy):
    """Runs the rounds of `federated.server` from Flower's hooks.

    Guarantees:
        The params move only by a release that the ledger holds. A missing or bad reply stops
        the run; evaluation messages are not sent, since what they return is not private.

    Args:
        server: Mechanism, update rule, site sizes.
        state: Where to start.
        exchange: Of `meet_sites`.
        streams: The server's secret streams.
        ledger: Of this run.
    """

    def __init__(
        self,
        *,
        server: Server,
        state: UpdateState,
        exchange: GridExchange,
        streams: Streams,
        ledger: Ledger,
    ) -> None:
        self.server = server
        self.state = state
        self._exchange = exchange
        self._streams = streams
        self._ledger = ledger
        self._sent: Sequence[Message] = ()

    @property
    def initial_arrays(self) -> ArrayRecord:
        """What `start` asks for: the present params."""
        return ArrayRecord({_ARRAY: encode_vector(self.state.params)})

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the broadcast messages of a round.

        Raises:
            ValueError: If `arrays` are not the params of the last release, or all planned rounds
                are over.
        """
        round_index = self.state.num_steps
        if round_index >= self.server.mechanism.num_rounds:
            raise ValueError(
                f"all {round_index} rounds that were planned and accounted for are over"
            )
        ours = list(arrays) == [_ARRAY]
        if not ours or decode_vector(arrays[_ARRAY]).tobytes() != self.state.params.tobytes():
            raise ValueError("expected the params of the last release; only a release moves them")
        self._sent = self._exchange.messages(
            Broadcast(
                round_index=round_index,
                params=self.state.params,
                counts=self.server.counts(round_index, self._streams),
                transform=self.state.transform,
            )
        )
        return self._sent

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Finish the round: add up, privatize, record, update."""
        round_index = self.state.num_steps
        total = self.server.add_up(
            self._exchange.decode(replies, sent=self._sent, round_index=round_index),
            round_index=round_index,
            dimension=len(self.state.params),
        )
        self.state = self.server.finish_round(
            self.state,
            total,
            round_index=round_index,
            streams=self._streams,
            ledger=self._ledger,
        )
        metrics = MetricRecord({"num_projected": self.state.num_projected})
        return self.initial_arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send nothing."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return nothing."""
        return None

    def summary(self) -> None:
        """Log the plan."""
        mechanism = self.server.mechanism
        _LOG.info(
            "%d sites, %s, %s, %d rounds",
            len(self.server.num_records),
            mechanism.sampling.describe(),
            mechanism.noise.describe(),
            mechanism.num_rounds,
        )
