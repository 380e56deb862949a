"""The algorithm on one screen: broadcast, add up, privatize, record, update."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from dpfed_kan._validate import check_positive
from dpfed_kan.federated.site import Broadcast, Reply
from dpfed_kan.privacy.clipping import ClippedSum, Vector
from dpfed_kan.privacy.joint_sampling import FixedSize
from dpfed_kan.privacy.ledger import Ledger
from dpfed_kan.privacy.mechanism import Mechanism
from dpfed_kan.privacy.noising import standard_normals
from dpfed_kan.streams import Streams
from dpfed_kan.update.rule import UpdateRule, UpdateState

Exchange = Callable[[Broadcast], Iterable[Reply]]
SumOverSites = Callable[[Broadcast], ClippedSum]
_NORM_SLACK = 1e-9
_WORTH_A_THREAD = 20_000  # normals: below, drawing them is cheaper than handing over


class RoundRefused(RuntimeError):
    """A round cannot be released; nothing was, and the site at fault is named."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """What stays the same over the rounds of a run.

    Args:
        mechanism: All that touches privacy.
        update_rule: From a release to new params.
        num_records: Site name to n_k, public; the sites that must answer every round.
        batch_size: B, the public constant that a release is divided by.
    """

    mechanism: Mechanism
    update_rule: UpdateRule
    num_records: Mapping[str, int]
    batch_size: float

    def __post_init__(self) -> None:
        check_positive("batch_size", self.batch_size)
        if not self.num_records:
            raise ValueError("expected at least one site")

    def counts(self, round_index: int, streams: Streams) -> Mapping[str, int] | None:
        """Draw how many records each site takes, where the sampler leaves it to the server."""
        sampling = self.mechanism.sampling
        if not isinstance(sampling, FixedSize):
            return None
        sites = sorted(self.num_records)
        rng = streams.generator("sampling", round_index=round_index)
        drawn = sampling.site_counts([self.num_records[site] for site in sites], rng=rng)
        return dict(zip(sites, drawn, strict=True))

    def finish_round(
        self,
        state: UpdateState,
        total: ClippedSum,
        *,
        round_index: int,
        streams: Streams,
        ledger: Ledger,
    ) -> UpdateState:
        """Privatize, record, update: the only way that params move.

        Args:
            state: Before the round.
            total: The sum over all sites.
            round_index: t, from 0.
            streams: The server's secret streams.
            ledger: Holds the event before the new params exist.

        Raises:
            ValueError: If the sum is not what the mechanism noises, or the ledger refuses it.
        """
        release = self.mechanism.privatize(total, round_index=round_index, streams=streams)
        ledger.record(release.event)
        return self.update_rule.step(state, release, batch_size=self.batch_size)

    def add_up(self, replies: Iterable[Reply], *, round_index: int, dimension: int) -> ClippedSum:
        """Return the sum over all sites, in the order of their names.

        Args:
            replies: One of each site; added up while they come, and not kept where they come in
                that order, so that memory holds a few vectors and not one of each site.
            round_index: t, from 0.
            dimension: D.

        Raises:
            RoundRefused: If a reply is missing, doubled, stale or not what a site may send.
        """
        total: Vector = np.zeros(dimension)
        order = sorted(self.num_records)
        early: dict[str, Reply] = {}
        heard: set[str] = set()
        num_replies = num_added = 0
        for reply in replies:
            num_replies += 1
            heard.add(reply.site)
            if reply.site not in self.num_records:
                continue
            problem = self.problem_of(reply, round_index=round_index, dimension=dimension)
            if problem is not None:
                raise RoundRefused(f"round {round_index}, {reply.site}: {problem}")
            early[reply.site] = reply
            del reply  # and its memory is the next one's, once it is added
            while num_added < len(order) and order[num_added] in early:
                total += early.pop(order[num_added]).value
                num_added += 1
        if heard != self.num_records.keys() or num_replies != len(heard):
            missing = sorted(self.num_records.keys() - heard)
            unknown = sorted(heard - self.num_records.keys())
            raise RoundRefused(
                f"round {round_index}: have {num_replies} replies, need one from each of "
                f"{len(order)} sites; missing {missing}, unknown {unknown}"
            )
        return ClippedSum(value=total, l2_sensitivity=self.mechanism.l2_clip_norm)

    def over(self, exchange: Exchange) -> SumOverSites:
        """Return the sum over sites that a broadcast is carried to and replies come back from."""

        def sum_over_sites(broadcast: Broadcast) -> ClippedSum:
            return self.add_up(
                exchange(broadcast),
                round_index=broadcast.round_index,
                dimension=len(broadcast.params),
            )

        return sum_over_sites

    def problem_of(self, reply: Reply, *, round_index: int, dimension: int) -> str | None:
        """Return why a reply may not be added up, without a number that it holds; None if it may.

        Args:
            reply: Of a site of the plan.
            round_index: t, from 0.
            dimension: D.
        """
        if reply.round_index != round_index:
            return f"the reply answers round {reply.round_index}"
        if reply.value.shape != (dimension,) or reply.value.dtype != np.float64:
            return (
                f"expected float64 of shape ({dimension},), "
                f"got {reply.value.dtype} of shape {reply.value.shape}"
            )
        largest = self.num_records[reply.site] * self.mechanism.l2_clip_norm
        norm_squared = _squared_norm(reply.value)
        if not math.isfinite(norm_squared):
            return "the sum is not finite"
        if math.sqrt(norm_squared) > largest * (1 + _NORM_SLACK):
            return (
                f"the sum is longer than {self.num_records[reply.site]} records clipped "
                f"to l2_clip_norm={self.mechanism.l2_clip_norm:g} can be"
            )
        return None


@np.errstate(over="ignore", invalid="ignore")
def _squared_norm(vector: Vector) -> float:
    return float(vector @ vector)


def rounds(
    server: Server,
    state: UpdateState,
    *,
    sum_over_sites: SumOverSites,
    streams: Streams,
    ledger: Ledger,
) -> Iterator[UpdateState]:
    """Run the rounds that are left, one an iteration.

    Args:
        server: What stays the same.
        state: Where to start; its `num_steps` rounds are over.
        sum_over_sites: From a broadcast to the sum of all sites' clipped sums.
        streams: The server's secret streams.
        ledger: Of this run.

    Yields:
        The state after each round.
    """
    dimension = len(state.params)
    with ThreadPoolExecutor(max_workers=1) as second_core:
        for round_index in range(state.num_steps, server.mechanism.num_rounds):
            drawn = None
            if dimension >= _WORTH_A_THREAD:  # Z_t, remembered until it is added to the sum
                drawn = second_core.submit(
                    standard_normals, streams, round_index=round_index, dimension=dimension
                )
            broadcast = Broadcast(
                round_index=round_index,
                params=state.params,
                transform=state.transform,
                counts=server.counts(round_index, streams),
            )
            total = sum_over_sites(broadcast)
            if drawn is not None:
                drawn.result()
            state = server.finish_round(
                state, total, round_index=round_index, streams=streams, ledger=ledger
            )
            yield state
