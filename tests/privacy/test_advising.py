"""The advice ranks by what a model sees of the noise, and keeps the target."""

import numpy as np
import pytest

from dpfed_kan.privacy.accounting import account
from dpfed_kan.privacy.advising import advise, prefix_error
from dpfed_kan.privacy.mechanism import Mechanism
from dpfed_kan.privacy.noising import GaussianNoise
from dpfed_kan.privacy.sampling import Cyclic, FullBatch, Poisson
from dpfed_kan.privacy.sensitivity import noising_matrix


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.95])
@pytest.mark.parametrize("scaled", [False, True])
def test_the_prefix_error_is_the_norm_of_the_matrix(correlation, scaled):
    noise = GaussianNoise(correlation=correlation, column_normalized=scaled)
    matrix = np.cumsum(noising_matrix(noise, num_rounds=30, horizon=30), axis=0)
    expected = np.linalg.norm(matrix) / np.sqrt(30)
    assert prefix_error(noise, num_rounds=30) == pytest.approx(expected)


def test_the_rows_are_ranked_and_keep_the_target():
    rows = advise(
        target_epsilon=2.0,
        target_delta=1e-5,
        num_records=400,
        batch_size=20,
        num_rounds=60,
        correlations=(0.0, 0.5, 0.9),
        samplings=(Poisson(sampling_prob=0.05), Cyclic(num_batches=20), FullBatch()),
    )
    errors = [row.error_per_record for row in rows]
    assert errors == sorted(errors)
    assert {type(row.sampling) for row in rows if row.refined} == {Poisson, Cyclic, FullBatch}
    for row in rows:
        subject = Mechanism(
            sampling=row.sampling,
            noise=GaussianNoise(
                noise_multiplier=row.noise_multiplier,
                correlation=row.correlation,
                column_normalized=row.column_normalized,
            ),
            l2_clip_norm=1.0,
            num_rounds=60,
        )
        assert account(subject, delta=1e-5, num_records=400).epsilon <= 2.0 * (1 + 1e-6)
        noise = subject.noise
        error = row.noise_multiplier * prefix_error(noise, num_rounds=60)
        assert row.prefix_error == pytest.approx(error)


@pytest.mark.slow
def test_correlation_pays_without_amplification_and_not_with_it():
    rows = advise(
        target_epsilon=1.0,
        target_delta=1e-5,
        num_records=5000,
        batch_size=125,
        num_rounds=400,
    )
    best = {}
    for row in rows:
        best.setdefault(type(row.sampling), row)
    assert best[Poisson].correlation == 0
    assert best[Poisson].noise_multiplier == pytest.approx(2.07, abs=0.01)
    assert best[Cyclic].correlation > 0.8
