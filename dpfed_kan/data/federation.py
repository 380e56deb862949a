"""Split records into a held-out set and the shards of the sites, by seeded streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpfed_kan._validate import check_count, check_number
from dpfed_kan.data.records import Records
from dpfed_kan.streams import Streams


class Source(Protocol):
    """Where records come from."""

    def load(self, streams: Streams) -> Records:
        """Return all records; `streams` serves sources that draw them."""
        ...


class Partition(Protocol):
    """Which site holds which training record."""

    def split(self, records: Records, rng: np.random.Generator) -> dict[str, NDArray[np.intp]]:
        """Return the indices of each site's records: every record once."""
        ...


@dataclass(frozen=True, kw_only=True)
class IID:
    """Deal the records out at random, as evenly as possible.

    Args:
        num_sites: K.
    """

    num_sites: int = 4

    def __post_init__(self) -> None:
        check_count("num_sites", self.num_sites)

    def split(self, records: Records, rng: np.random.Generator) -> dict[str, NDArray[np.intp]]:
        """Return the indices of each site's records.

        Raises:
            ValueError: If a site would get no record.
        """
        if self.num_sites > len(records):
            raise ValueError(
                f"expected num_sites={self.num_sites} of at most {len(records)}, the number of "
                "training records"
            )
        digits = len(str(self.num_sites))
        parts = np.array_split(rng.permutation(len(records)), self.num_sites)
        return {f"site-{k + 1:0{digits}d}": np.sort(part) for k, part in enumerate(parts)}


@dataclass(frozen=True, kw_only=True)
class Federation:
    """The sites' shards and the held-out records, which no site trains on.

    Args:
        shards: Site name to its training records, in the order of names.
        held_out: Records for evaluation.
    """

    shards: dict[str, Records]
    held_out: Records


@dataclass(frozen=True, kw_only=True)
class FederatedData:
    """A source, a held-out fraction and a partition: the data of a simulated federation.

    Args:
        source: Where the records come from.
        partition: Which site holds which.
        test_fraction: Share of records held out before the partition.
    """

    source: Source
    partition: Partition
    test_fraction: float = 0.2

    def __post_init__(self) -> None:
        check_number(
            "test_fraction", self.test_fraction, low=0.0, high=1.0, low_open=True, high_open=True
        )

    def load(self, streams: Streams) -> Federation:
        """Load, hold out, deal out: the same for the same streams.

        Raises:
            ValueError: If the fraction leaves no record on one of the two sides.
        """
        records = self.source.load(streams)
        num_held_out = round(self.test_fraction * len(records))
        if not 0 < num_held_out < len(records):
            raise ValueError(
                f"expected test_fraction={self.test_fraction:g} to leave records on both sides of "
                f"{len(records)}"
            )
        order = streams.generator("split").permutation(len(records))
        train = records.take(np.sort(order[num_held_out:]))
        parts = self.partition.split(train, streams.generator("partition"))
        return Federation(
            shards={site: train.take(parts[site]) for site in sorted(parts)},
            held_out=records.take(np.sort(order[:num_held_out])),
        )
