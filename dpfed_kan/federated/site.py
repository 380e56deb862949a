"""One site's work in a round: draw, differentiate, clip, sum."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from dpfed_kan.privacy.clipping import GradientBlock, Vector, clip_and_sum
from dpfed_kan.privacy.joint_sampling import FixedSize, SiteSampling, draws_every_round
from dpfed_kan.privacy.sampling import Indices
from dpfed_kan.streams import Streams


@dataclass(frozen=True, kw_only=True)
class Broadcast:
    """What the server says to every site: all public.

    Args:
        round_index: t, from 0.
        params: W_t, shape (D,).
        counts: Site name to the number of records that it draws, where the server decides it
            (fixed-size batches); on the wire each site is told its own and no other's.
    """

    round_index: int
    params: Vector
    counts: Mapping[str, int] | None = None


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What a site answers: its clipped sum, for the server it trusts.

    Args:
        site: The site's name.
        round_index: The round it answers.
        value: Shape (D,), the sum of its clipped gradients; not yet private.
    """

    site: str
    round_index: int
    value: Vector = field(repr=False)


class PerExampleGradients(Protocol):
    """A model together with one site's records."""

    @property
    def num_params(self) -> int:
        """D."""
        ...

    def blocks(self, params: Vector, indices: Indices) -> tuple[GradientBlock, ...]:
        """Return the per-example loss gradients of the records at `indices`, as factors."""
        ...


@dataclass(frozen=True, kw_only=True)
class Site:
    """One site: its records behind a gradient port, and what it has agreed to.

    Args:
        name: Public.
        num_records: n_k, public.
        gradients: The model over the site's records.
        sampling: Who takes part in a round.
        l2_clip_norm: C.
        streams: The site's own secret streams.
    """

    name: str
    num_records: int
    gradients: PerExampleGradients = field(repr=False)
    sampling: SiteSampling
    l2_clip_norm: float
    streams: Streams

    def draw(self, round_index: int, *, count: int | None = None) -> Indices:
        """Return the records that join a round: the same whenever it is asked for.

        Args:
            round_index: t, from 0.
            count: How many, where the server decides it; None otherwise.
        """
        stream_of = round_index if draws_every_round(self.sampling) else None
        rng = self.streams.generator("sampling", round_index=stream_of)
        if isinstance(self.sampling, FixedSize):
            return self.sampling.draw(
                num_records=self.num_records, round_index=round_index, rng=rng, count=count
            )
        return self.sampling.draw(num_records=self.num_records, round_index=round_index, rng=rng)

    def work(self, broadcast: Broadcast) -> Reply:
        """Answer a broadcast.

        Guarantees:
            One record changes `value` by at most C; how many records joined is not told.

        Raises:
            ValueError: If the broadcast does not fit the model.
        """
        if broadcast.params.shape != (self.gradients.num_params,):
            raise ValueError(
                f"expected params of shape ({self.gradients.num_params},), "
                f"got {broadcast.params.shape}"
            )
        with np.errstate(over="ignore", invalid="ignore"):
            square = float(broadcast.params @ broadcast.params)
        if not math.isfinite(square):
            raise ValueError("expected finite params in the broadcast")
        count = None if broadcast.counts is None else broadcast.counts.get(self.name)
        drawn = self.draw(broadcast.round_index, count=count)
        blocks = self.gradients.blocks(broadcast.params, drawn)
        total = clip_and_sum(blocks, l2_clip_norm=self.l2_clip_norm)
        return Reply(site=self.name, round_index=broadcast.round_index, value=total.value)
