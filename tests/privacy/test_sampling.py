import numpy as np
import pytest
from scipy.stats import binom, binomtest, chisquare

from dpfed_kan.privacy.sampling import Cyclic, FullBatch, Poisson
from dpfed_kan.streams import Streams


def joins(
    sampling: Poisson | Cyclic | FullBatch, *, num_records: int, num_rounds: int
) -> np.ndarray:
    taken = np.zeros((num_rounds, num_records), dtype=bool)
    together = None
    if isinstance(sampling, Poisson):
        rng = Streams.from_seed(1).generator("sampling")
        together = sampling.draw_rounds(num_records=num_records, num_rounds=num_rounds, rng=rng)
    for t in range(num_rounds):
        if together is not None:
            drawn = together.of(t)
        else:
            drawn = sampling.draw(num_records=num_records, round_index=t)
        assert (np.diff(drawn) > 0).all()
        taken[t, drawn] = True
    return taken


def batch_sizes_fit_binomial(taken: np.ndarray, prob: float) -> float:
    """p-value of the batch sizes under Binomial(n, prob), in ten classes."""
    num_records = taken.shape[1]
    edges = np.unique(binom.ppf(np.linspace(0.1, 0.9, 9), num_records, prob))
    expected = np.diff(np.concatenate([[0], binom.cdf(edges, num_records, prob), [1]]))
    observed = np.bincount(
        np.searchsorted(edges, taken.sum(axis=1), side="left"), minlength=len(edges) + 1
    )
    return float(chisquare(observed, expected * len(taken)).pvalue)


def test_poisson_batch_sizes_are_binomial_and_the_test_rejects_other_laws() -> None:
    taken = joins(Poisson(sampling_prob=0.2), num_records=60, num_rounds=3000)
    assert batch_sizes_fit_binomial(taken, 0.2) > 1e-3
    assert batch_sizes_fit_binomial(taken, 0.1) < 1e-9
    fixed = np.zeros_like(taken)
    fixed[:, :12] = True
    assert batch_sizes_fit_binomial(fixed, 0.2) < 1e-9


def test_poisson_records_join_independently_of_each_other_and_of_the_past() -> None:
    taken = joins(Poisson(sampling_prob=0.3), num_records=8, num_rounds=20_000).astype(float)
    assert np.abs(np.corrcoef(taken.T) - np.eye(8)).max() < 0.03
    assert abs(np.corrcoef(taken[1:, 0], taken[:-1, 0])[0, 1]) < 0.03
    assert np.abs(taken.mean(axis=0) - 0.3).max() < 0.015


@pytest.mark.parametrize("prob", [1.0, 0.97, 0.5, 0.01, 1e-15])
def test_a_poisson_record_joins_as_often_as_it_should(prob: float) -> None:
    taken = joins(Poisson(sampling_prob=prob), num_records=200, num_rounds=400)
    assert binomtest(int(taken.sum()), taken.size, prob).pvalue > 1e-3
    assert prob == 1.0 or taken.mean() < 1.0
    first_and_last = taken[:, [0, -1]]
    assert binomtest(int(first_and_last.sum()), first_and_last.size, prob).pvalue > 1e-3


def test_the_rounds_of_one_stream_are_bounded_and_nest() -> None:
    lengths = [Poisson.rounds_at_once(size) for size in (1, 20, 256, 257, 5000, 60_000, 10**7)]
    assert lengths == [1024, 1024, 1024, 512, 32, 4, 1]


def test_an_empty_poisson_batch_is_an_ordinary_one() -> None:
    taken = joins(Poisson(sampling_prob=0.05), num_records=4, num_rounds=2000)
    assert abs((taken.sum(axis=1) == 0).mean() - 0.95**4) < 0.04


def test_cyclic_takes_every_record_once_every_b_rounds_in_a_fixed_order() -> None:
    taken = joins(Cyclic(num_batches=7), num_records=53, num_rounds=21)
    assert (taken[:7].sum(axis=0) == 1).all()
    assert np.array_equal(taken[:7], taken[7:14])
    assert np.array_equal(taken[:7], taken[14:])


def test_a_cycle_longer_than_the_records_has_empty_batches() -> None:
    taken = joins(Cyclic(num_batches=5), num_records=3, num_rounds=5)
    assert taken.sum(axis=1).tolist() == [1, 1, 1, 0, 0]


def test_full_batch_takes_all() -> None:
    assert joins(FullBatch(), num_records=5, num_rounds=3).all()


def test_the_expected_batch_size_is_a_public_constant() -> None:
    assert Poisson(sampling_prob=0.25).expected_batch_size(40) == 10
    assert Cyclic(num_batches=16).expected_batch_size(53) == 53 / 16
    assert FullBatch().expected_batch_size(5) == 5


@pytest.mark.parametrize("prob", [0.0, -0.1, 1.4, float("nan"), "0.1", True])
def test_a_probability_is_in_0_1(prob: object) -> None:
    with pytest.raises(ValueError, match=r"expected sampling_prob=.* in \(0, 1\]"):
        Poisson(sampling_prob=prob)  # type: ignore[arg-type]


def test_a_cycle_has_at_least_one_batch() -> None:
    with pytest.raises(ValueError, match="num_batches=0"):
        Cyclic(num_batches=0)
