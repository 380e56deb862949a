import itertools
from collections import Counter

import numpy as np
import pytest
from scipy.stats import binom, chisquare, multivariate_hypergeom

from dpfed_kan.privacy.joint_sampling import BallsInBins, FixedSize
from dpfed_kan.streams import Streams

SIZES, BATCH = (2, 3, 1), 3
NUM_DRAWS = 12_000
TELLS = 1e-6  # a p-value below: rejected; a right law is rejected once in a million seeds


def rounds(seed: int = 1) -> list[np.random.Generator]:
    streams = Streams.from_seed(seed)
    return [streams.generator("sampling", round_index=t) for t in range(NUM_DRAWS)]


def global_subset(counts: tuple[int, ...], rngs: list[np.random.Generator]) -> tuple[int, ...]:
    """Return the records of all sites that one round takes, numbered through."""
    sampler, chosen, first = FixedSize(batch_size=BATCH), [], 0
    for size, count, rng in zip(SIZES, counts, rngs, strict=True):
        drawn = sampler.draw(num_records=size, round_index=0, rng=rng, count=count)
        chosen += [first + int(index) for index in drawn]
        first += size
    return tuple(chosen)


def p_value(subsets: list[tuple[int, ...]]) -> float:
    """Test subsets against a uniform draw of BATCH of all records."""
    every = list(itertools.combinations(range(sum(SIZES)), BATCH))
    seen = Counter(subsets)
    if any(subset not in every for subset in seen):
        return 0.0
    return float(chisquare([seen[subset] for subset in every]).pvalue)


def subsets_of(draw_counts) -> list[tuple[int, ...]]:
    server = np.random.default_rng(5)
    sites = [np.random.default_rng(seed) for seed in (11, 12, 13)]
    return [global_subset(draw_counts(server), sites) for _ in range(NUM_DRAWS)]


def test_fixed_size_over_sites_is_a_global_draw_without_replacement():
    sampler = FixedSize(batch_size=BATCH)
    assert p_value(subsets_of(lambda rng: sampler.site_counts(SIZES, rng=rng))) > TELLS


@pytest.mark.parametrize("law", ["binomial", "proportional", "multinomial"])
def test_wrong_laws_of_the_counts_are_told_from_a_global_draw(law):
    total = sum(SIZES)

    def counts(rng):
        if law == "binomial":
            return tuple(int(rng.binomial(n, BATCH / total)) for n in SIZES)
        if law == "proportional":
            return (1, 2, 0) if rng.random() < 0.5 else (1, 1, 1)
        drawn = rng.multinomial(BATCH, [n / total for n in SIZES])
        while (drawn > SIZES).any():
            drawn = rng.multinomial(BATCH, [n / total for n in SIZES])
        return tuple(int(count) for count in drawn)

    assert p_value(subsets_of(counts)) < TELLS


def test_the_counts_are_multivariate_hypergeometric():
    sampler = FixedSize(batch_size=BATCH)
    seen = Counter(sampler.site_counts(SIZES, rng=rng) for rng in rounds())
    cells = [c for c in itertools.product(*(range(n + 1) for n in SIZES)) if sum(c) == BATCH]
    expected = [NUM_DRAWS * multivariate_hypergeom.pmf(c, SIZES, BATCH) for c in cells]
    assert sum(seen[cell] for cell in cells) == NUM_DRAWS
    assert chisquare([seen[cell] for cell in cells], expected).pvalue > TELLS


def test_every_record_joins_a_fixed_size_round_with_probability_b_over_n():
    sampler, sizes, joined = FixedSize(batch_size=125), (3000, 1900, 100), 0
    site = np.random.default_rng(3)
    for rng in rounds()[:2000]:
        counts = sampler.site_counts(sizes, rng=rng)
        assert sum(counts) == 125
        drawn = sampler.draw(num_records=100, round_index=0, rng=site, count=counts[2])
        assert len(set(drawn.tolist())) == counts[2]
        joined += 7 in drawn
    assert min(binom.cdf(joined, 2000, 0.025), binom.sf(joined - 1, 2000, 0.025)) > TELLS


def test_fixed_size_fails_closed():
    sampler, rng = FixedSize(batch_size=5), np.random.default_rng(0)
    with pytest.raises(ValueError, match="needs the round's count from the server"):
        sampler.draw(num_records=10, round_index=0, rng=rng)
    with pytest.raises(ValueError, match="count=11 of at most 10"):
        sampler.draw(num_records=10, round_index=0, rng=rng, count=11)
    with pytest.raises(ValueError, match="batch_size=5 of at most 4"):
        sampler.site_counts((3, 1), rng=rng)
    with pytest.raises(ValueError, match="batch_size=5 of at most 4"):
        sampler.expected_batch_size(4)
    with pytest.raises(ValueError, match="batch_size"):
        FixedSize(batch_size=0)
    assert sampler.expected_batch_size(4000) == 5.0
    assert sampler.site_counts((5, 0), rng=rng) == (5, 0)
    assert sampler.draw(num_records=0, round_index=0, rng=rng, count=0).size == 0


def run_of_bins(num_bins: int, num_records: int, num_rounds: int, seed: int) -> list[set[int]]:
    rng = Streams.from_seed(seed).generator("sampling")
    drawn = BallsInBins(num_bins=num_bins).draw_rounds(num_records=num_records, rng=rng)
    return [set(drawn.of(t % num_bins).tolist()) for t in range(num_rounds)]


def test_every_record_joins_exactly_one_of_any_b_consecutive_rounds():
    drawn = run_of_bins(7, 300, 30, seed=2)
    for start in range(30 - 7):
        window = drawn[start : start + 7]
        assert sum(len(part) for part in window) == 300
        assert set().union(*window) == set(range(300))
    assert drawn[0] == drawn[7] == drawn[28]


def test_bins_are_uniform_and_independent():
    sampler, num_bins = BallsInBins(num_bins=4), 4
    pairs: Counter[tuple[int, int]] = Counter()
    for seed in range(6000):
        bins = sampler.bins(num_records=2, rng=Streams.from_seed(seed).generator("sampling"))
        pairs[int(bins[0]), int(bins[1])] += 1
    cells = itertools.product(range(num_bins), repeat=2)
    assert chisquare([pairs[cell] for cell in cells]).pvalue > TELLS


def test_a_stream_per_round_would_not_be_balls_in_bins():
    sampler, streams = BallsInBins(num_bins=7), Streams.from_seed(2)
    joined = np.zeros(300, dtype=int)
    for t in range(7):
        rng = streams.generator("sampling", round_index=t)
        joined[sampler.draw_rounds(num_records=300, rng=rng).of(t)] += 1
    assert (joined != 1).any()


def test_the_rounds_hold_the_records_of_their_bins():
    sampler, streams = BallsInBins(num_bins=5), Streams.from_seed(4)
    bins = sampler.bins(num_records=40, rng=streams.generator("sampling"))
    drawn = sampler.draw_rounds(num_records=40, rng=streams.generator("sampling"))
    for t in range(5):
        assert drawn.of(t).tolist() == np.flatnonzero(bins == t).tolist()


def test_sites_draw_different_bins():
    streams, sampler = Streams.from_seed(0), BallsInBins(num_bins=10)
    a, b = (
        sampler.bins(num_records=200, rng=streams.for_site(site).generator("sampling"))
        for site in ("a", "b")
    )
    assert (a == b).mean() < 0.5


def test_descriptions_and_expected_batch_sizes():
    assert BallsInBins(num_bins=40).expected_batch_size(5000) == 125.0
    assert BallsInBins(num_bins=40).describe() == (
        "balls in bins, each record in one of 40 bins for the whole run"
    )
    assert FixedSize(batch_size=125).describe() == (
        "fixed size without replacement, B=125 over all sites"
    )
    with pytest.raises(ValueError, match="num_bins"):
        BallsInBins(num_bins=0)
