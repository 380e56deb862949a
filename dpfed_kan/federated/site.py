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
from dpfed_kan.privacy.transform import ClipTransform
from dpfed_kan.privacy.transformed_clipping import clip_and_sum_transformed
from dpfed_kan.streams import Streams


@dataclass(frozen=True, kw_only=True)
class Broadcast:
    """What the server says to every site: all public.

    Args:
        round_index: t, from 0.
        params: W_t, shape (D,).
        transform: What to clip in; None is the gradient itself.
        counts: Site name to the number of records that it draws, where the server decides it
            (fixed-size batches); on the wire each site is told its own and no other's.
    """

    round_index: int
    params: Vector
    transform: ClipTransform | None = None
    counts: Mapping[str, int] | None = None


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What a site answers: its clipped sum, for the server it trusts.

    Args:
        site: The site's name.
        round_index: The round it answers.
        value: Shape (D,), the sum of its clipped gradients, in the transform of the broadcast;
            not yet private.
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
        num_records: n_k, public: records, or patients where they are the unit of privacy.
        gradients: The model over the site's records.
        sampling: Who takes part in a round.
        l2_clip_norm: C.
        streams: The site's own secret streams.
        patients: Whose each record is, numbered from 0 to n_k − 1, where patients are the unit:
            a patient's records join a round together and are clipped together. None otherwise.
        rows_at_once: Records differentiated at a time where gradients are written out, so that
            memory stays bounded; None for a whole batch.
    """

    name: str
    num_records: int
    gradients: PerExampleGradients = field(repr=False)
    sampling: SiteSampling
    l2_clip_norm: float
    streams: Streams
    patients: Indices | None = field(default=None, repr=False)
    rows_at_once: int | None = None

    def __post_init__(self) -> None:
        if self.patients is not None and self.rows_at_once is not None:
            raise ValueError(
                "a patient's records are clipped together, but this model's gradients are written "
                "out a few records at a time: use model=kan with privacy_unit=patient"
            )

    def draw(self, round_index: int, *, count: int | None = None) -> Indices:
        """Return the records that join a round: the same whenever it is asked for.

        Args:
            round_index: t, from 0.
            count: How many, where the server decides it; None otherwise.
        """
        units = self._draw_units(round_index, count)
        return units if self.patients is None else np.flatnonzero(np.isin(self.patients, units))

    def _draw_units(self, round_index: int, count: int | None) -> Indices:
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
            One record (or patient) changes `value` by at most C, in the broadcast's transform;
            how many joined is not told.

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
        if broadcast.transform is not None and (
            broadcast.transform.center.shape != broadcast.params.shape
        ):
            raise ValueError("expected the clip transform to have the shape of the params")
        count = None if broadcast.counts is None else broadcast.counts.get(self.name)
        drawn = self.draw(broadcast.round_index, count=count)
        rows = self.rows_at_once or max(1, len(drawn))
        total = self._clipped_sum(broadcast, drawn[:rows])
        for first in range(rows, len(drawn), rows):
            total += self._clipped_sum(broadcast, drawn[first : first + rows])
        return Reply(site=self.name, round_index=broadcast.round_index, value=total)

    def _clipped_sum(self, broadcast: Broadcast, indices: Indices) -> Vector:
        blocks = self.gradients.blocks(broadcast.params, indices)
        groups = None if self.patients is None else self.patients[indices]
        if broadcast.transform is None:
            return clip_and_sum(blocks, l2_clip_norm=self.l2_clip_norm, groups=groups).value
        return clip_and_sum_transformed(
            blocks,
            transform=broadcast.transform,
            l2_clip_norm=self.l2_clip_norm,
            groups=groups,
        ).value
