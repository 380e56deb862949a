import itertools

import numpy as np
import pytest

from dpfed_kan.privacy.noising import GaussianNoise
from dpfed_kan.privacy.sensitivity import (
    cyclic_sensitivity,
    encoded_norm,
    full_batch_sensitivity,
    spectral_norm,
    strategy_matrix,
)

LAMBDAS = [0.0, 0.3, 0.9, 0.99]


@pytest.mark.parametrize("column_normalized", [False, True])
@pytest.mark.parametrize("correlation", LAMBDAS)
def test_every_norm_equals_the_one_from_the_written_out_matrix(
    correlation: float, column_normalized: bool
) -> None:
    noise = GaussianNoise(correlation=correlation, column_normalized=column_normalized)
    for num_rounds in (1, 2, 5, 12):
        matrix = strategy_matrix(noise, num_rounds=num_rounds, horizon=12)
        at = {"num_rounds": num_rounds, "horizon": 12}
        assert spectral_norm(noise, **at) == pytest.approx(np.linalg.norm(matrix, 2), rel=1e-9)
        assert spectral_norm(noise, **at) >= np.linalg.norm(matrix, 2) * (1 - 1e-13)
        assert full_batch_sensitivity(noise, **at) == pytest.approx(
            np.linalg.norm(matrix @ np.ones(num_rounds)), rel=1e-12
        )
        for num_batches in (1, 3, 5, 20):
            slots = [
                np.linalg.norm(matrix[:, j::num_batches].sum(axis=1))
                for j in range(min(num_batches, num_rounds))
            ]
            assert cyclic_sensitivity(noise, num_batches=num_batches, **at) == pytest.approx(
                max(slots), rel=1e-12
            )


@pytest.mark.parametrize("correlation", LAMBDAS)
def test_no_pattern_with_participations_b_apart_exceeds_the_cyclic_sensitivity(
    correlation: float,
) -> None:
    noise = GaussianNoise(correlation=correlation)
    limit = cyclic_sensitivity(noise, num_batches=3, num_rounds=9, horizon=9)
    for pattern in itertools.product([0.0, 1.0], repeat=9):
        steps = np.flatnonzero(pattern)
        if len(steps) < 2 or np.diff(steps).min() >= 3:
            norm = encoded_norm(noise, np.array(pattern), horizon=9)
            assert norm <= limit * (1 + 1e-12)


@pytest.mark.parametrize("correlation", LAMBDAS[1:])
def test_the_closed_forms_of_the_paper_hold(correlation: float) -> None:
    noise, lam, b, k = GaussianNoise(correlation=correlation), correlation, 4, 3
    closed = (1 - lam ** (2 * b)) / ((1 - lam**2) * (1 - lam**b) ** 2)
    closed *= sum((1 - lam ** (b * (j + 1))) ** 2 for j in range(k))
    at = {"num_rounds": b * k, "horizon": b * k}
    assert cyclic_sensitivity(noise, num_batches=b, **at) ** 2 == pytest.approx(closed, rel=1e-12)
    ones = sum(((1 - lam**t) / (1 - lam)) ** 2 for t in range(1, b * k + 1))
    assert full_batch_sensitivity(noise, **at) ** 2 == pytest.approx(ones, rel=1e-12)


def test_the_spectral_norm_of_a_long_run_stays_below_its_limit() -> None:
    for correlation in (0.5, 0.99, 0.999999):
        noise = GaussianNoise(correlation=correlation)
        norm = spectral_norm(noise, num_rounds=100_000, horizon=100_000)
        assert 1 < norm <= 1 / (1 - correlation) * (1 + 1e-9)
