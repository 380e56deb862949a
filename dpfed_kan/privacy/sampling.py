"""Who takes part in a round: the record samplers that an account exists for.

Fields are public facts; the number of records and the randomness are arguments. The drawn
count is private to the site: it is never logged and never sent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dpfed_kan._validate import check_count, check_number

Indices = NDArray[np.intp]
_TRIALS_AT_ONCE, _MAX_ROUNDS = 2**18, 1024


@dataclass(frozen=True, kw_only=True)
class DrawnRounds:
    """Who joins some successive rounds; private to the site, like every draw.

    Args:
        indices: The records of all the rounds, one round after the other, sorted within each.
        starts: Shape (rounds + 1,): round r took `indices[starts[r]:starts[r + 1]]`.
    """

    indices: Indices = field(repr=False)
    starts: Indices = field(repr=False)

    def of(self, position: int) -> Indices:
        """Return the records of the round at a position, from 0."""
        return self.indices[self.starts[position] : self.starts[position + 1]]


@dataclass(frozen=True, kw_only=True)
class Poisson:
    """Every record joins every round independently with probability q.

    Args:
        sampling_prob: q in (0, 1], the same at every site.
    """

    sampling_prob: float

    def __post_init__(self) -> None:
        check_number("sampling_prob", self.sampling_prob, low=0.0, high=1.0, low_open=True)

    @staticmethod
    def rounds_at_once(num_records: int) -> int:
        """Return how many rounds of a site one stream draws: a power of two in [1, 1024]."""
        most = max(1, min(_MAX_ROUNDS, _TRIALS_AT_ONCE // num_records))
        return 1 << (most.bit_length() - 1)

    def draw_rounds(
        self, *, num_records: int, num_rounds: int, rng: np.random.Generator
    ) -> DrawnRounds:
        """Return who joins some successive rounds; an empty draw is an ordinary one.

        The num_rounds · n trials are laid end to end, and the gaps between successes drawn:
        geometric with parameter q, which is the law of independent trials, in time q · n.

        Args:
            num_records: n_k, of this site.
            num_rounds: How many.
            rng: A stream for these rounds alone.
        """
        trials = num_records * num_rounds
        expected = trials * self.sampling_prob
        size = math.ceil(expected + 6 * math.sqrt(expected)) + 8
        last, parts = -1, []
        while last < trials:
            gaps = np.minimum(rng.geometric(self.sampling_prob, size=size), trials + 1)
            parts.append(last + np.cumsum(gaps, dtype=np.intp))
            last = int(parts[-1][-1])
        successes = parts[0] if len(parts) == 1 else np.concatenate(parts)
        successes = successes[: np.searchsorted(successes, trials)]
        ends = np.searchsorted(successes, np.arange(num_rounds + 1) * num_records)
        return DrawnRounds(indices=successes % num_records, starts=ends.astype(np.intp))

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

    def draw(self, *, num_records: int, round_index: int) -> Indices:
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

    def draw(self, *, num_records: int, round_index: int) -> Indices:
        """Return the indices of this round's fixed batch."""
        return np.arange(round_index % self.num_batches, num_records, self.num_batches)

    def expected_batch_size(self, num_records: int) -> float:
        """Return n/b."""
        return num_records / self.num_batches

    def describe(self) -> str:
        """Name the sampler for a guarantee."""
        return f"cyclic in a fixed public order, every {self.num_batches} rounds"
