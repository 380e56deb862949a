"""All simulated sites in one kernel call: their draws from their own streams, one sum.

A clipped sum over sites is the sum over the union of their batches: each record is clipped by
itself, so nothing depends on where it is. The release is that of the messages, up to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from dpfed_kan.federated.site import (
    Broadcast,
    PerExampleGradients,
    check_broadcast,
    clipped_sum,
    draw_block,
    records_of,
)
from dpfed_kan.privacy.clipping import ClippedSum
from dpfed_kan.privacy.joint_sampling import BallsInBins, FixedSize, SiteSampling
from dpfed_kan.privacy.sampling import Cyclic, DrawnRounds, FullBatch, Indices, Poisson
from dpfed_kan.streams import Streams


@dataclass(frozen=True, kw_only=True)
class UnionSite:
    """What is particular to one site of a union.

    Args:
        num_records: n_k, in units of privacy.
        sampling: Who takes part in a round.
        streams: The site's own.
        first: The number of its first unit in the union.
    """

    num_records: int
    sampling: SiteSampling
    streams: Streams
    first: int


@dataclass(frozen=True, kw_only=True)
class FusedSites:
    """All sites of a simulation: from a broadcast to the sum of their clipped sums.

    Guarantees:
        Who joins is, bit for bit, who joins message by message. One record (or patient at one
        site) changes the sum by at most C, in the broadcast's transform.

    Args:
        sites: Name to what is particular to it, in the order of the union.
        gradients: The model over the records of all sites, in that order.
        l2_clip_norm: C.
        patients: Whose each record is, numbered through the union, where patients are the unit.
        rows_at_once: As in `Site`.
    """

    sites: Mapping[str, UnionSite]
    gradients: PerExampleGradients = field(repr=False)
    l2_clip_norm: float
    patients: Indices | None = field(default=None, repr=False)
    rows_at_once: int | None = None
    _drawn: dict[int, tuple[int, DrawnRounds]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __call__(self, broadcast: Broadcast) -> ClippedSum:
        """Return the sum over all sites.

        Raises:
            ValueError: If the broadcast does not fit the model.
        """
        check_broadcast(broadcast, num_params=self.gradients.num_params)
        units = self.draw_units(broadcast)
        total = clipped_sum(
            self.gradients,
            broadcast,
            units if self.patients is None else records_of(units, self.patients),
            l2_clip_norm=self.l2_clip_norm,
            patients=self.patients,
            rows_at_once=self.rows_at_once,
        )
        return ClippedSum(value=total, l2_sensitivity=self.l2_clip_norm)

    def draw_units(self, broadcast: Broadcast) -> Indices:
        """Return the units of all sites that join a round, numbered through the union."""
        t = broadcast.round_index
        parts = [self._drawn_together(length, t) for length in self._in_blocks]
        for name in self._round_by_round:
            site, sampling = self.sites[name], self.sites[name].sampling
            if isinstance(sampling, FixedSize):
                count = None if broadcast.counts is None else broadcast.counts.get(name)
                if count == 0:
                    continue
                rng = site.streams.generator("sampling", round_index=t)
                drawn = sampling.draw(
                    num_records=site.num_records, round_index=t, rng=rng, count=count
                )
            elif isinstance(sampling, (FullBatch, Cyclic)):
                drawn = sampling.draw(num_records=site.num_records, round_index=t)
            else:
                raise TypeError(f"{type(sampling).__name__} draws rounds in blocks")
            parts.append(drawn + site.first)
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.intp)

    @cached_property
    def _in_blocks(self) -> dict[int, list[UnionSite]]:
        """Return the sites whose streams draw blocks of rounds, by the length of a block."""
        found: dict[int, list[UnionSite]] = {}
        for site in self.sites.values():
            if isinstance(site.sampling, Poisson):
                length = site.sampling.rounds_at_once(site.num_records)
                found.setdefault(length, []).append(site)
            elif isinstance(site.sampling, BallsInBins):
                found.setdefault(site.sampling.num_bins, []).append(site)
        return found

    @cached_property
    def _round_by_round(self) -> list[str]:
        in_blocks = (Poisson, BallsInBins)
        return [
            name for name, site in self.sites.items() if not isinstance(site.sampling, in_blocks)
        ]

    def _drawn_together(self, length: int, round_index: int) -> Indices:
        block, position = divmod(round_index, length)
        sites = self._in_blocks[length]
        if isinstance(sites[0].sampling, BallsInBins):
            block = 0
        if self._drawn.get(length, (-1,))[0] != block:
            self._drawn[length] = (block, _draw_together(sites, length, block))
        return self._drawn[length][1].of(position)


def _draw_together(sites: Sequence[UnionSite], length: int, block: int) -> DrawnRounds:
    """Return the draws of several sites in a block of rounds, round by round."""
    indices, rounds = [], []
    for site in sites:
        drawn = draw_block(
            site.sampling, num_records=site.num_records, index=block, streams=site.streams
        )
        indices.append(drawn.indices + site.first)
        rounds.append(np.repeat(np.arange(length), drawn.starts[1:] - drawn.starts[:-1]))
    of_round = np.concatenate(rounds)
    starts = np.concatenate([[0], np.cumsum(np.bincount(of_round, minlength=length))])
    order = np.argsort(of_round, kind="stable")
    return DrawnRounds(
        indices=np.concatenate(indices)[order], starts=starts.astype(np.intp, copy=False)
    )
