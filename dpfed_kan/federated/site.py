"""One site's work in a round: draw, differentiate, clip, sum."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from dpfed_kan.privacy.clipping import GradientBlock, Vector, clip_and_sum
from dpfed_kan.privacy.joint_sampling import BallsInBins, FixedSize, SiteSampling
from dpfed_kan.privacy.sampling import DrawnRounds, Indices, Poisson
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

    @cached_property
    def finite(self) -> bool:
        """Whether all params are finite, and small enough to be squared."""
        with np.errstate(over="ignore", invalid="ignore"):
            return math.isfinite(float(self.params @ self.params))


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

    _drawn: dict[int, DrawnRounds] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

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
        return units if self.patients is None else records_of(units, self.patients)

    def _draw_units(self, round_index: int, count: int | None) -> Indices:
        sampling, size = self.sampling, self.num_records
        match sampling:
            case Poisson():
                block, position = divmod(round_index, sampling.rounds_at_once(size))
                return self._block(block).of(position)
            case BallsInBins():
                return self._block(0).of(round_index % sampling.num_bins)
            case FixedSize():
                rng = self.streams.generator("sampling", round_index=round_index)
                return sampling.draw(
                    num_records=size, round_index=round_index, rng=rng, count=count
                )
        return sampling.draw(num_records=size, round_index=round_index)

    def _block(self, index: int) -> DrawnRounds:
        """Return the draws of some successive rounds; the last that was asked for is kept."""
        if index not in self._drawn:
            self._drawn.clear()
            self._drawn[index] = draw_block(
                self.sampling, num_records=self.num_records, index=index, streams=self.streams
            )
        return self._drawn[index]

    def work(self, broadcast: Broadcast) -> Reply:
        """Answer a broadcast.

        Guarantees:
            One record (or patient) changes `value` by at most C, in the broadcast's transform;
            how many joined is not told.

        Raises:
            ValueError: If the broadcast does not fit the model.
        """
        check_broadcast(broadcast, num_params=self.gradients.num_params)
        count = None if broadcast.counts is None else broadcast.counts.get(self.name)
        drawn = self.draw(broadcast.round_index, count=count)
        total = clipped_sum(
            self.gradients,
            broadcast,
            drawn,
            l2_clip_norm=self.l2_clip_norm,
            patients=self.patients,
            rows_at_once=self.rows_at_once,
        )
        return Reply(site=self.name, round_index=broadcast.round_index, value=total)


def draw_block(
    sampling: SiteSampling, *, num_records: int, index: int, streams: Streams
) -> DrawnRounds:
    """Return who joins a block of successive rounds of a site, from a stream of the block alone.

    Args:
        sampling: Poisson, whose block is `rounds_at_once` rounds, or BallsInBins, with one block.
        num_records: n_k, of this site.
        index: Of the block, from 0; its stream has the name of its first round.
        streams: The site's.
    """
    if isinstance(sampling, BallsInBins):
        return sampling.draw_rounds(num_records=num_records, rng=streams.generator("sampling"))
    if not isinstance(sampling, Poisson):
        raise TypeError(f"{type(sampling).__name__} does not draw rounds in blocks")
    rounds = sampling.rounds_at_once(num_records)
    rng = streams.generator("sampling", round_index=index * rounds)
    return sampling.draw_rounds(num_records=num_records, num_rounds=rounds, rng=rng)


def records_of(units: Indices, patients: Indices) -> Indices:
    """Return the records of the patients that were drawn."""
    return np.flatnonzero(np.isin(patients, units))


def check_broadcast(broadcast: Broadcast, *, num_params: int) -> None:
    """Refuse a broadcast that does not fit the model.

    Raises:
        ValueError: If its shapes differ from the model's, or its params are not finite.
    """
    if broadcast.params.shape != (num_params,):
        raise ValueError(f"expected params of shape ({num_params},), got {broadcast.params.shape}")
    if not broadcast.finite:
        raise ValueError("expected finite params in the broadcast")
    if broadcast.transform is not None and (
        broadcast.transform.center.shape != broadcast.params.shape
    ):
        raise ValueError("expected the clip transform to have the shape of the params")


def clipped_sum(
    gradients: PerExampleGradients,
    broadcast: Broadcast,
    drawn: Indices,
    *,
    l2_clip_norm: float,
    patients: Indices | None,
    rows_at_once: int | None,
) -> Vector:
    """Return the sum of the clipped gradients of the records that were drawn, shape (D,).

    Args:
        gradients: The model over the records.
        broadcast: Params and transform.
        drawn: The records.
        l2_clip_norm: C.
        patients: Whose each record is, where patients are the unit.
        rows_at_once: As in `Site`.
    """

    def some(indices: Indices) -> Vector:
        blocks = gradients.blocks(broadcast.params, indices)
        groups = None if patients is None else patients[indices]
        if broadcast.transform is None:
            return clip_and_sum(blocks, l2_clip_norm=l2_clip_norm, groups=groups).value
        return clip_and_sum_transformed(
            blocks,
            transform=broadcast.transform,
            l2_clip_norm=l2_clip_norm,
            groups=groups,
        ).value

    rows = rows_at_once or max(1, len(drawn))
    total = some(drawn[:rows])
    for first in range(rows, len(drawn), rows):
        total += some(drawn[first : first + rows])
    return total
