"""Which site holds which record: the partitions that people expect, by seeded stream.

Each returns every record's index once. A site may come out empty; `FederatedData` refuses it,
or leaves it out by name.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpfed_kan._validate import check_count, check_positive
from dpfed_kan.data.records import Records

Parts = dict[str, NDArray[np.intp]]


@dataclass(frozen=True, kw_only=True)
class Dirichlet:
    """Label skew: each class is dealt in proportions drawn from Dirichlet(α, ..., α).

    Args:
        num_sites: K.
        concentration: α > 0; the smaller, the more unlike the sites.
    """

    num_sites: int = 4
    concentration: float = 0.5

    def __post_init__(self) -> None:
        check_count("num_sites", self.num_sites)
        check_positive("concentration", self.concentration)

    def split(self, records: Records, rng: np.random.Generator) -> Parts:
        """Return the indices of each site's records."""
        parts: list[list[NDArray[np.intp]]] = [[] for _ in range(self.num_sites)]
        for label in np.unique(records.labels):
            members = rng.permutation(np.flatnonzero(records.labels == label))
            shares = rng.dirichlet(np.full(self.num_sites, self.concentration))
            for part, dealt in zip(parts, _cut(members, shares), strict=True):
                part.append(dealt)
        return _named([_joined(part) for part in parts])


@dataclass(frozen=True, kw_only=True)
class Pathological:
    """Each site sees k classes only; a class is shared evenly by the sites that see it.

    Args:
        num_sites: K.
        classes_per_site: k.
    """

    num_sites: int = 4
    classes_per_site: int = 1

    def __post_init__(self) -> None:
        check_count("num_sites", self.num_sites)
        check_count("classes_per_site", self.classes_per_site)

    def split(self, records: Records, rng: np.random.Generator) -> Parts:
        """Return the indices of each site's records.

        Raises:
            ValueError: If some class would be at no site, or there are fewer than k.
        """
        classes = rng.permutation(np.unique(records.labels))
        places = self.num_sites * self.classes_per_site
        if not self.classes_per_site <= len(classes) <= places:
            raise ValueError(
                f"expected classes_per_site={self.classes_per_site} of at most {len(classes)}, the "
                f"number of classes, and num_sites·classes_per_site={places} of at least that"
            )
        parts: list[list[NDArray[np.intp]]] = [[] for _ in range(self.num_sites)]
        for place, label in enumerate(classes):
            slots = range(place, places, len(classes))
            members = rng.permutation(np.flatnonzero(records.labels == label))
            for slot, dealt in zip(slots, np.array_split(members, len(slots)), strict=True):
                parts[slot // self.classes_per_site].append(dealt)
        return _named([_joined(part) for part in parts])


@dataclass(frozen=True, kw_only=True)
class Shards:
    """Records sorted by label, cut into equal shards, dealt at random (McMahan et al., 2017).

    Args:
        num_sites: K.
        shards_per_site: Shards that each site gets.
    """

    num_sites: int = 4
    shards_per_site: int = 2

    def __post_init__(self) -> None:
        check_count("num_sites", self.num_sites)
        check_count("shards_per_site", self.shards_per_site)

    def split(self, records: Records, rng: np.random.Generator) -> Parts:
        """Return the indices of each site's records."""
        shuffled = rng.permutation(len(records))
        ordered = shuffled[np.argsort(records.labels[shuffled], kind="stable")]
        shards = np.array_split(ordered, self.num_sites * self.shards_per_site)
        dealt = rng.permutation(len(shards)).reshape(self.num_sites, self.shards_per_site)
        return _named([_joined([shards[shard] for shard in hand]) for hand in dealt])


@dataclass(frozen=True, kw_only=True)
class QuantitySkew:
    """Sites of unequal size, drawn from Dirichlet(α, ..., α); otherwise at random.

    Args:
        num_sites: K.
        concentration: α > 0; the smaller, the more unequal.
    """

    num_sites: int = 4
    concentration: float = 1.0

    def __post_init__(self) -> None:
        check_count("num_sites", self.num_sites)
        check_positive("concentration", self.concentration)

    def split(self, records: Records, rng: np.random.Generator) -> Parts:
        """Return the indices of each site's records."""
        shares = rng.dirichlet(np.full(self.num_sites, self.concentration))
        return _named(_cut(rng.permutation(len(records)), shares))


@dataclass(frozen=True, kw_only=True)
class FeatureSkew:
    """Each site has its own band of one feature, the lowest values at the first.

    Args:
        num_sites: K.
        feature: Its name.
    """

    num_sites: int = 4
    feature: str

    def __post_init__(self) -> None:
        check_count("num_sites", self.num_sites)

    def split(self, records: Records, rng: np.random.Generator) -> Parts:
        """Return the indices of each site's records; ties are dealt at random.

        Raises:
            ValueError: If there is no such feature.
        """
        if self.feature not in records.feature_names:
            raise ValueError(
                f"expected feature={self.feature!r} in {{{', '.join(records.feature_names)}}}"
            )
        column = records.features[:, records.feature_names.index(self.feature)]
        shuffled = rng.permutation(len(records))
        ordered = shuffled[np.argsort(column[shuffled], kind="stable")]
        return _named(np.array_split(ordered, self.num_sites))


@dataclass(frozen=True, kw_only=True)
class Natural:
    """The sites that the records come from."""

    def split(self, records: Records, rng: np.random.Generator) -> Parts:
        """Return the indices of each site's records.

        Raises:
            ValueError: If the source does not say where its records come from.
        """
        if records.sites is None:
            raise ValueError(
                "the natural partition needs records that say which site they come from: declare a "
                "file for each site or a site_column, or choose another partition"
            )
        names = sorted({*records.site_names, *(str(name) for name in records.sites)})
        return {name: np.flatnonzero(records.sites == name) for name in names}


@dataclass(frozen=True, kw_only=True)
class PatientGroups:
    """Patients dealt at random as evenly as possible, each with all of their records.

    Args:
        num_sites: K.
    """

    num_sites: int = 4

    def __post_init__(self) -> None:
        check_count("num_sites", self.num_sites)

    def split(self, records: Records, rng: np.random.Generator) -> Parts:
        """Return the indices of each site's records.

        Raises:
            ValueError: If the source does not say whose its records are.
        """
        if records.patients is None:
            raise ValueError(
                "a partition by patients needs records that say whose they are: declare patient_id"
            )
        patients, whose = np.unique(records.patients, return_inverse=True)
        groups = np.array_split(rng.permutation(len(patients)), self.num_sites)
        return _named([np.flatnonzero(np.isin(whose, group)) for group in groups])


def site_names(num_sites: int) -> list[str]:
    """Return site-1, site-2, ..., with as many digits as the last needs."""
    digits = len(str(num_sites))
    return [f"site-{k + 1:0{digits}d}" for k in range(num_sites)]


def _named(parts: list[NDArray[np.intp]]) -> Parts:
    names = site_names(len(parts))
    return {name: np.sort(part) for name, part in zip(names, parts, strict=True)}


def _joined(parts: list[NDArray[np.intp]]) -> NDArray[np.intp]:
    return np.concatenate([np.empty(0, dtype=np.intp), *parts])


def _cut(members: NDArray[np.intp], shares: NDArray[np.float64]) -> list[NDArray[np.intp]]:
    """Cut into parts of about these shares: every member once."""
    ends = np.rint(np.cumsum(shares)[:-1] * len(members)).astype(np.intp)
    return np.split(members, np.minimum(ends, len(members)))
