import math

import numpy as np
import pytest
from scipy.stats import kstest

from dpfed_kan.privacy.noising import GaussianNoise, NoNoise, correlate, draw_noise
from dpfed_kan.privacy.sensitivity import noising_matrix, strategy_matrix
from dpfed_kan.streams import Streams

ROUNDS, DIMENSION = 12, 20_000


def whole_run(noise: GaussianNoise, *, num_rounds: int = ROUNDS, dimension: int = DIMENSION):
    streams = Streams.from_seed(5)
    return np.array(
        [
            draw_noise(
                noise,
                streams=streams,
                round_index=t,
                num_rounds=num_rounds,
                dimension=dimension,
            )
            for t in range(num_rounds)
        ]
    )


def is_white(rows: np.ndarray, std: float) -> bool:
    """Whether rows are independent N(0, std²): no correlation beyond chance, normal in law."""
    covariance = np.cov(rows) / std**2
    chance = 5 / math.sqrt(rows.shape[1])
    uncorrelated = np.abs(covariance - np.eye(len(rows))).max() < chance * math.sqrt(2)
    return bool(uncorrelated and kstest(rows.ravel() / std, "norm").pvalue > 1e-4)


@pytest.mark.parametrize("column_normalized", [False, True])
@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_noise_whitened_by_the_strategy_matrix_is_white(
    correlation: float, column_normalized: bool
) -> None:
    noise = GaussianNoise(
        noise_multiplier=2.5, correlation=correlation, column_normalized=column_normalized
    )
    rows = whole_run(noise)
    assert is_white(strategy_matrix(noise, num_rounds=ROUNDS, horizon=ROUNDS) @ rows, 2.5)
    if correlation > 0:
        assert not is_white(rows, 2.5)
        wrong = GaussianNoise(noise_multiplier=2.5, correlation=correlation * 0.9)
        assert not is_white(strategy_matrix(wrong, num_rounds=ROUNDS, horizon=ROUNDS) @ rows, 2.5)


@pytest.mark.parametrize("correlation", [0.0, 0.7])
def test_the_std_is_kappa_at_first_and_kappa_sqrt_1_plus_lambda_squared_after(
    correlation: float,
) -> None:
    rows = whole_run(GaussianNoise(noise_multiplier=3.0, correlation=correlation))
    expected = np.full(ROUNDS, 3.0 * math.sqrt(1 + correlation**2))
    expected[0] = 3.0
    np.testing.assert_allclose(rows.std(axis=1), expected, rtol=0.03)


@pytest.mark.parametrize("correlation", [0.1, 0.5, 0.99])
def test_column_normalised_columns_have_norm_one(correlation: float) -> None:
    noise = GaussianNoise(noise_multiplier=1.0, correlation=correlation, column_normalized=True)
    columns = strategy_matrix(noise, num_rounds=30, horizon=30)
    np.testing.assert_allclose(np.linalg.norm(columns, axis=0), 1.0, rtol=1e-12)


@pytest.mark.parametrize("column_normalized", [False, True])
def test_the_two_matrices_are_inverses_also_of_a_run_cut_short(column_normalized: bool) -> None:
    noise = GaussianNoise(correlation=0.8, column_normalized=column_normalized)
    for num_rounds in (1, 7, 20):
        product = strategy_matrix(noise, num_rounds=num_rounds, horizon=20) @ noising_matrix(
            noise, num_rounds=num_rounds, horizon=20
        )
        np.testing.assert_allclose(product, np.eye(num_rounds), atol=1e-12)


def test_the_same_round_gives_the_same_noise_and_other_rounds_other_noise() -> None:
    noise = GaussianNoise(noise_multiplier=1.0)
    streams = Streams.from_seed(0)
    draws = [
        draw_noise(noise, streams=streams, round_index=t, num_rounds=4, dimension=10_000)
        for t in (0, 1, 1)
    ]
    assert np.array_equal(draws[1], draws[2])
    assert abs(np.corrcoef(draws[0], draws[1])[0, 1]) < 0.05


def test_nothing_precedes_the_first_round() -> None:
    current = np.array([1.0, 2.0])
    assert correlate(current, None, correlation=0.5) is current
    np.testing.assert_array_equal(correlate(current, current, correlation=0.5), current / 2)


@pytest.mark.parametrize("correlation", [-0.1, 1.0, 1.5, math.nan])
def test_a_correlation_is_in_0_1(correlation: float) -> None:
    with pytest.raises(ValueError, match=r"expected correlation=.* in \[0, 1\)"):
        GaussianNoise(noise_multiplier=1.0, correlation=correlation)


@pytest.mark.parametrize("multiplier", [-1.0, math.inf, math.nan])
def test_a_multiplier_is_a_finite_non_negative_number(multiplier: float) -> None:
    with pytest.raises(ValueError, match=r"expected noise_multiplier=.* in \[0, inf\)"):
        GaussianNoise(noise_multiplier=multiplier)


def test_noise_that_is_not_calibrated_cannot_be_drawn() -> None:
    with pytest.raises(ValueError, match="not set"):
        whole_run(GaussianNoise(), num_rounds=1, dimension=1)


def test_no_noise_takes_no_settings() -> None:
    with pytest.raises(ValueError, match="takes no settings"):
        NoNoise(noise_multiplier=1.0)
