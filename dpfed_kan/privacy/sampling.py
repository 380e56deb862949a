"""Who takes part in a round: the record samplers that an account exists for.

Fields are public facts; the number of records and the randomness are arguments. The drawn
count is private to the site: it is never logged and never sent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpfed_kan._validate import check_count, check_number

Indices = NDArray[np.intp]


@dataclass(frozen=True, kw_only=True)
class Poisson:
    """Every record joins every round independently with probability q.

    Args:
        sampling_prob: q in (0, 1], the same at every site.
    """

    sampling_prob: float

    def __post_init__(self) -> None:
        check_number("sampling_prob", self.sampling_prob, low=0.0, high=1.0, low_open=True)

    def draw(self, *, num_records: int, round_index: int, rng: np.random.Generator) -> Indices:
        """Return the indices of the records that join; an empty draw is an ordinary one."""
        return np.flatnonzero(rng.random(num_records) < self.sampling_prob)

    def expected_batch_size(self, num_records: int) -> float:
        """Return q·n, the public constant that a sum over n records is divided by."""
        return self.sampling_prob * num_records

    def describe(self) -> str:
        """Name the sampler for a guarantee."""
        return f"Poisson, q={self.sampling_prob:g}"


@dataclass(frozen=True, kw_only=True)
class PoissonBatch:
    """Poisson sampling at each site with its own probability q_k = min(1, B/n_k).

    Small sites include their records more often, and pay for it: the account takes q_k of each
    site, never the pooled rate, and the headline is the worst site.

    Args:
        site_batch_size: B, the records that each site expects in a round.
    """

    site_batch_size: int

    def __post_init__(self) -> None:
        check_count("site_batch_size", self.site_batch_size)

    def at_site(self, num_records: int) -> Poisson:
        """Return the sampler of a site with n_k records."""
        return Poisson(sampling_prob=min(1.0, self.site_batch_size / num_records))

    def expected_batch_size(self, num_records: int) -> float:
        """Return min(B, n_k), of one site."""
        return float(min(self.site_batch_size, num_records))

    def describe(self) -> str:
        """Name the sampler for a guarantee."""
        return f"Poisson, each site expecting {self.site_batch_size} records"


@dataclass(frozen=True, kw_only=True)
class FullBatch:
    """Every record joins every round; there is no amplification to report."""

    def draw(self, *, num_records: int, round_index: int, rng: np.random.Generator) -> Indices:
        """Return all indices."""
        return np.arange(num_records)

    def expected_batch_size(self, num_records: int) -> float:
        """Return n."""
        return float(num_records)

    def describe(self) -> str:
        """Name the sampler for a guarantee."""
        return "full batch"


@dataclass(frozen=True, kw_only=True)
class Cyclic:
    """A fixed public order: record i of a site joins round t if i ≡ t modulo b.

    Args:
        num_batches: b, the rounds between two participations of a record.
    """

    num_batches: int

    def __post_init__(self) -> None:
        check_count("num_batches", self.num_batches)

    def draw(self, *, num_records: int, round_index: int, rng: np.random.Generator) -> Indices:
        """Return the indices of this round's fixed batch."""
        return np.arange(round_index % self.num_batches, num_records, self.num_batches)

    def expected_batch_size(self, num_records: int) -> float:
        """Return n/b."""
        return num_records / self.num_batches

    def describe(self) -> str:
        """Name the sampler for a guarantee."""
        return f"cyclic in a fixed public order, every {self.num_batches} rounds"
