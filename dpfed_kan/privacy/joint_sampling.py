"""Samplers whose draw is joint: over sites (a fixed batch size) or over rounds (bins).

`FixedSize` needs a number from the server in every round, `BallsInBins` one random stream for
the whole run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpfed_kan._validate import check_count
from dpfed_kan.privacy.sampling import (
    Cyclic,
    DrawnRounds,
    FullBatch,
    Indices,
    Poisson,
    PoissonBatch,
)


@dataclass(frozen=True, kw_only=True)
class FixedSize:
    """Every round takes exactly B of the n records of all sites, every such set equally likely.

    The server draws how many come from each site, (B_1, ..., B_K) multivariate hypergeometric;
    site k draws B_k of its n_k without replacement. Together that is a global draw of B of n.
    The counts depend on public site sizes and on randomness only, never on a record; the server
    tells each site its own count and nobody else.

    Guarantees:
        The law of a global draw without replacement ([KAN-SGD] arXiv 2605.12648, Algorithm 1). It
        is **not** Poisson sampling: whether a record is in the batch moves the others, so the
        Poisson account does not hold for it (MATH.md section 3).

    Args:
        batch_size: B, over all sites together.
    """

    batch_size: int

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)

    def site_counts(
        self, num_records_per_site: Sequence[int], *, rng: np.random.Generator
    ) -> tuple[int, ...]:
        """Draw (B_1, ..., B_K): at the server, afresh in every round.

        Args:
            num_records_per_site: The public sizes n_1, ..., n_K.
            rng: The server's sampling stream of this round.

        Raises:
            ValueError: If the sites have fewer than B records together.
        """
        for size in num_records_per_site:
            check_count("num_records_per_site", size, low=0)
        self._check_enough(sum(num_records_per_site))
        counts = rng.multivariate_hypergeometric(
            list(num_records_per_site), self.batch_size, method="marginals"
        )
        return tuple(int(count) for count in counts)

    def draw(
        self,
        *,
        num_records: int,
        round_index: int,
        rng: np.random.Generator,
        count: int | None = None,
    ) -> Indices:
        """Return the sorted indices of `count` of a site's records, without replacement.

        Args:
            num_records: n_k, of this site.
            round_index: t; the draws of different rounds are independent through `rng`.
            rng: The site's sampling stream of this round.
            count: B_k, from the server's message of this round.

        Raises:
            ValueError: If the server sent no count, or more than the site has.
        """
        if count is None:
            raise ValueError(
                "fixed-size sampling needs the round's count from the server: draw it with "
                "site_counts and send every site its own; with one site it is batch_size"
            )
        check_count("count", count, low=0)
        if count > num_records:
            raise ValueError(
                f"expected count={count} of at most {num_records}, the site's records; the server "
                "must draw the counts from the sizes that the sites have announced"
            )
        return np.sort(rng.choice(num_records, size=count, replace=False, shuffle=False))

    def expected_batch_size(self, num_records: int) -> float:
        """Return B, which is not only expected: n is the number of all sites' records."""
        self._check_enough(num_records)
        return float(self.batch_size)

    def describe(self) -> str:
        """Name the sampler for a guarantee."""
        return f"fixed size without replacement, B={self.batch_size} over all sites"

    def _check_enough(self, num_records: int) -> None:
        if self.batch_size > num_records:
            raise ValueError(
                f"expected batch_size={self.batch_size} of at most {num_records}, the records of "
                "all sites; use a smaller batch_size or full-batch sampling"
            )


@dataclass(frozen=True, kw_only=True)
class BallsInBins:
    """Every record draws one of b bins, once for the whole run; round t takes bin t mod b.

    Nothing need be kept: the bins can be drawn again from the start of the same stream.

    Guarantees:
        If `rng` is one stream of the whole run, then every record joins exactly one of any b
        consecutive rounds, its bin is uniform, and the bins of different records are independent
        (arXiv 2410.06266). With a stream per round the law is that of Poisson sampling at 1/b
        instead, which this sampler's account does not describe.

    Args:
        num_bins: b, the rounds between two participations of a record.
    """

    num_bins: int

    def __post_init__(self) -> None:
        check_count("num_bins", self.num_bins)

    def bins(self, *, num_records: int, rng: np.random.Generator) -> Indices:
        """Return every record's bin, shape (num_records,).

        Args:
            num_records: n_k, of this site, the same in every round.
            rng: The site's sampling stream of the run, at its start.
        """
        return rng.integers(self.num_bins, size=num_records, dtype=np.intp)

    def draw_rounds(self, *, num_records: int, rng: np.random.Generator) -> DrawnRounds:
        """Return who joins rounds 0 to b − 1, and b rounds later again, and so on.

        Args:
            num_records: n_k, of this site, the same in every round.
            rng: The site's sampling stream of the **run**, at its start: `generator("sampling")`
                without a round.
        """
        bins = self.bins(num_records=num_records, rng=rng)
        starts = np.concatenate([[0], np.cumsum(np.bincount(bins, minlength=self.num_bins))])
        return DrawnRounds(
            indices=np.argsort(bins, kind="stable"), starts=starts.astype(np.intp, copy=False)
        )

    def expected_batch_size(self, num_records: int) -> float:
        """Return n/b."""
        return num_records / self.num_bins

    def describe(self) -> str:
        """Name the sampler for a guarantee."""
        return f"balls in bins, each record in one of {self.num_bins} bins for the whole run"


SiteSampling = Poisson | FullBatch | Cyclic | FixedSize | BallsInBins
Sampling = SiteSampling | PoissonBatch


def total_batch_size(sampling: Sampling, num_records_per_site: Sequence[int]) -> float:
    """Return B over all sites: the public constant that a release is divided by."""
    if isinstance(sampling, FixedSize):
        return sampling.expected_batch_size(sum(num_records_per_site))
    return sum(sampling.expected_batch_size(size) for size in num_records_per_site)


def expected_shares(sampling: Sampling, num_records: Mapping[str, int]) -> dict[str, float]:
    """Return q_k of every site: the expected share of its records that joins a round."""
    total = sum(num_records.values())
    drawn_from = {
        site: total if isinstance(sampling, FixedSize) else size
        for site, size in num_records.items()
    }
    return {site: sampling.expected_batch_size(n) / n for site, n in drawn_from.items()}


def at_site(sampling: Sampling, num_records: int) -> SiteSampling:
    """Return the sampler of a site with n_k records."""
    return sampling.at_site(num_records) if isinstance(sampling, PoissonBatch) else sampling
