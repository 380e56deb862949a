"""Split records into a held-out set and the shards of the sites, by seeded streams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from dpfed_kan._validate import check_choice, check_count, check_number
from dpfed_kan.data.findings import DataError
from dpfed_kan.data.partition import site_names
from dpfed_kan.data.records import Records
from dpfed_kan.streams import Streams

_SITES_SHOWN = 5


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
        parts = np.array_split(rng.permutation(len(records)), self.num_sites)
        names = site_names(self.num_sites)
        return {name: np.sort(part) for name, part in zip(names, parts, strict=True)}


@dataclass(frozen=True, kw_only=True)
class Federation:
    """The sites' shards and the held-out records, which no site trains on.

    Args:
        shards: Site name to its training records, in the order of names.
        held_out: Records for evaluation.
        left_out: Site name to the reason why it takes no part.
    """

    shards: dict[str, Records]
    held_out: Records
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def sites_per_patient(self) -> int:
        """The most sites that hold records of one patient; 1 where patients are not known."""
        seen: dict[str, int] = {}
        for shard in self.shards.values():
            for patient in set() if shard.patients is None else set(shard.patients.tolist()):
                seen[patient] = seen.get(patient, 0) + 1
        return max(seen.values(), default=1)


@dataclass(frozen=True, kw_only=True)
class FederatedData:
    """A source, held-out records and a partition: the data of a simulated federation.

    Records of one patient, where the source names patients, are held out together.

    Args:
        source: Where the records come from.
        partition: Which site holds which.
        test_fraction: Share of records held out before the partition; null to hold out those
            that the source itself does.
        min_records: Fewest records (and patients, where they are named) that a site may bring;
            an explicit smaller number admits smaller sites.
        small_sites: A site with fewer stops the run, or is left out by name.
        held_out_by: The share is drawn from the pool of all records, or by each site from its own
            records and its own stream, as hospitals that share nothing do.
    """

    source: Source
    partition: Partition
    test_fraction: float | None = 0.2
    min_records: int = 20
    small_sites: Literal["refuse", "leave_out"] = "refuse"
    held_out_by: Literal["pool", "site"] = "pool"

    def __post_init__(self) -> None:
        if self.test_fraction is not None:
            check_number(
                "test_fraction",
                self.test_fraction,
                low=0.0,
                high=1.0,
                low_open=True,
                high_open=True,
            )
        check_count("min_records", self.min_records)
        check_choice("small_sites", self.small_sites, ("refuse", "leave_out"))
        check_choice("held_out_by", self.held_out_by, ("pool", "site"))

    def load(self, streams: Streams) -> Federation:
        """Load, hold out, deal out: the same for the same streams.

        Raises:
            ValueError: If one of the two sides would be empty, or a site is too small.
        """
        records = self.source.load(streams)
        if not len(records):
            raise DataError("no usable rows at any site")
        held_out = self._held_out(records, streams)
        train = records.take(np.flatnonzero(~held_out))
        apart = records.take(np.flatnonzero(held_out))
        parts = self.partition.split(train, streams.generator("partition"))
        shards = {site: train.take(parts[site]) for site in sorted(parts)}
        natural = apart.sites is not None and set(np.unique(apart.sites)) <= set(shards)
        left_out = self._too_small(shards, apart if natural else None)
        if left_out and (self.small_sites == "refuse" or len(left_out) == len(shards)):
            shown = list(left_out.values())[:_SITES_SHOWN]
            if len(shown) < len(left_out):
                shown.append(f"and {len(left_out) - len(shown)} more sites")
            raise DataError(
                f"{'; '.join(shown)}. Few records are hard to hide and teach little: "
                "set data.small_sites=leave_out to train without such sites, or a smaller "
                "data.min_records to admit them"
            )
        if natural and left_out and apart.sites is not None:
            apart = apart.take(np.flatnonzero(~np.isin(apart.sites, list(left_out))))
        if not len(apart):
            raise DataError("no held-out record is left at the sites that take part")
        return Federation(
            shards={site: shard for site, shard in shards.items() if site not in left_out},
            held_out=apart,
            left_out=left_out,
        )

    def _held_out(self, records: Records, streams: Streams) -> NDArray[np.bool_]:
        if self.test_fraction is None:
            if records.held_out is None or records.held_out.all() or not records.held_out.any():
                raise ValueError(
                    "test_fraction=null needs a source that holds records out itself; give a "
                    "fraction in (0, 1)"
                )
            return records.held_out
        if self.held_out_by == "pool":
            return hold_out(records, self.test_fraction, streams.generator("split"))
        if records.sites is None:
            raise ValueError("held_out_by=site needs a source that says whose each record is")
        held_out = np.zeros(len(records), dtype=bool)
        for site in np.unique(records.sites):
            rows = np.flatnonzero(records.sites == site)
            rng = streams.for_site(str(site)).generator("split")
            held_out[rows] = hold_out(records.take(rows), self.test_fraction, rng)
        return held_out

    def _too_small(self, shards: Mapping[str, Records], apart: Records | None) -> dict[str, str]:
        """Return why each site is too small that is: it trains on too few, or brings too few."""
        reasons = {}
        for site, shard in shards.items():
            brings, patients = len(shard), _num_patients(shard)
            if apart is not None and apart.sites is not None:
                here = apart.take(np.flatnonzero(apart.sites == site))
                brings += len(here)
                patients = None if patients is None else patients + (_num_patients(here) or 0)
            if brings < self.min_records or not len(shard):
                reasons[site] = (
                    f"{site} has {brings} records ({len(shard)} to train on), fewer than "
                    f"min_records={self.min_records}"
                )
            elif patients is not None and patients < self.min_records:
                reasons[site] = (
                    f"{site} has {patients} patients, fewer than min_records={self.min_records}"
                )
        return reasons


def hold_out(records: Records, test_fraction: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Draw which records to hold out; those of one patient together.

    Raises:
        ValueError: If no record would be left on one of the two sides.
    """
    held_out = np.zeros(len(records), dtype=bool)
    num_held_out = round(test_fraction * len(records))
    if records.patients is None:
        held_out[rng.permutation(len(records))[:num_held_out]] = True
    else:
        patients, whose = np.unique(records.patients, return_inverse=True)
        chosen = round(test_fraction * len(patients))
        held_out = np.isin(whose, rng.permutation(len(patients))[:chosen])
    if held_out.all() or not held_out.any():
        raise ValueError(
            f"expected test_fraction={test_fraction:g} to leave records on both sides of "
            f"{len(records)}"
        )
    return held_out


def _num_patients(records: Records) -> int | None:
    return None if records.patients is None else len(set(records.patients.tolist()))
