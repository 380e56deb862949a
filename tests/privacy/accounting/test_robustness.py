"""The inputs on which other accountants hang, crash or mislead: a right answer or a refusal."""

import math
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from dpfed_kan.privacy.accounting import NonPrivate, account
from dpfed_kan.privacy.calibration import calibrate
from dpfed_kan.privacy.joint_sampling import FixedSize
from dpfed_kan.privacy.mechanism import Mechanism
from dpfed_kan.privacy.noising import GaussianNoise
from dpfed_kan.privacy.sampling import Poisson

ROOT = Path(__file__).parents[3]


def mechanism(kappa, prob=0.1, rounds=10, correlation=0.0, relation="zero_out"):
    return Mechanism(
        sampling=Poisson(sampling_prob=prob),
        noise=GaussianNoise(noise_multiplier=kappa, correlation=correlation),
        l2_clip_norm=1.0,
        num_rounds=rounds,
        neighboring_relation=relation,
    )


@pytest.fixture(autouse=True)
def within_twenty_seconds_and_four_gib():
    start = time.process_time()
    yield
    assert time.process_time() - start < 20
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert peak_kib < 4 * 2**20


@pytest.mark.parametrize(
    ("sigma", "low", "high"),
    [
        (0.05, 1100, 1310),  # the norm mixture is below the PLD's 1300
        (0.1, 290, 331),
        (0.3, 35.6, 36.1),
        (1e3, 0.0, 0.004),
        (1e6, 0.0, 1e-6),
    ],
)
@pytest.mark.parametrize("relation", ["zero_out", "add_remove"])
def test_little_and_much_noise(sigma, low, high, relation):
    guarantee = account(mechanism(sigma, relation=relation), delta=1e-5, cross_check=True)
    assert low <= guarantee.epsilon <= high
    assert guarantee.check


def test_no_noise_is_infinite_and_says_so():
    guarantee = account(mechanism(0.0), delta=1e-5, cross_check=True)
    assert isinstance(guarantee, NonPrivate)
    assert guarantee.epsilon == math.inf


@pytest.mark.parametrize("sigma", [math.nan, math.inf, -1.0])
def test_a_noise_that_is_no_number_is_refused(sigma):
    with pytest.raises(ValueError, match="noise_multiplier="):
        mechanism(sigma)


@pytest.mark.parametrize(
    ("sigma", "prob", "rounds", "low", "high"),
    [
        (0.01, 0.1, 10, 3e4, 6e4),
        (0.5, 0.1, 100, 31.37, 31.4),
        (0.8, 0.1, 400, 22.7415, 22.76),
        (0.5, 1.0, 10_000, 20851, 20852),
    ],
)
def test_what_prv_cannot_do(sigma, prob, rounds, low, high):
    guarantee = account(mechanism(sigma, prob, rounds), delta=1e-5, cross_check=True)
    assert low <= guarantee.epsilon <= high


@pytest.mark.parametrize("correlation", [0.0, 0.9])
@pytest.mark.parametrize("delta", [1e-15, 1e-12, 1e-9])
def test_a_tiny_delta_is_answered_from_above(delta, correlation):
    subject = mechanism(2.0, correlation=correlation)
    guarantee = account(subject, delta=delta, cross_check=True)
    assert account(subject, delta=10 * delta).epsilon <= guarantee.epsilon < math.inf


def test_numpy_compositions_do_not_confuse_prv():
    guarantee = account(
        mechanism(np.float64(1.2), np.float64(0.1), np.int64(20)), delta=1e-5, cross_check=True
    )
    assert "agrees" in guarantee.check
    assert guarantee.epsilon == pytest.approx(2.52, abs=0.01)


def test_the_independent_check_agrees_at_every_ordinary_setting():
    for sigma, prob, rounds in [
        (0.8, 0.1, 400),
        (1.5, 0.05, 50),
        (6.3, 0.025, 400),
        (1.0, 0.5, 20),
    ]:
        assert (
            "agrees" in account(mechanism(sigma, prob, rounds), delta=1e-5, cross_check=True).check
        )


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("sigma", [0.05, 0.3, 1e4])
def test_correlated_extremes_end_in_numbers(sigma, correlation):
    for relation in ("zero_out", "replace_one"):
        guarantee = account(mechanism(sigma, 0.1, 30, correlation, relation), delta=1e-5)
        assert all(bound.epsilon >= 0 for bound in guarantee.tried)
        assert math.isfinite(guarantee.epsilon)


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_very_long_runs_are_accounted_for(correlation):
    guarantee = account(mechanism(30.0, 0.025, 100_000, correlation), delta=1e-5)
    assert math.isfinite(guarantee.epsilon)
    assert guarantee.epsilon > 0.5


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_a_very_small_target_is_met(correlation):
    subject = mechanism(None, 0.025, 400, correlation)
    found = calibrate(subject, target_epsilon=0.01, target_delta=1e-5)
    assert 0.0099 <= account(found, delta=1e-5).epsilon <= 0.01


def test_every_sampler_calibrates_at_a_small_target_and_a_long_run():
    fixed = Mechanism(
        sampling=FixedSize(batch_size=125),
        noise=GaussianNoise(),
        l2_clip_norm=1.0,
        num_rounds=100_000,
    )
    found = calibrate(fixed, target_epsilon=1.0, target_delta=1e-5, num_records=5000)
    assert account(found, delta=1e-5, num_records=5000).epsilon <= 1.0


def test_a_tiny_target_at_full_batches_fits_into_eight_gib():
    """CASES.md N02, in a process of its own under `ulimit -v`."""
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (8 * 2**30, 8 * 2**30))\n"
        "from dpfed_kan.privacy.accounting import account\n"
        "from dpfed_kan.privacy.calibration import calibrate\n"
        "from dpfed_kan.privacy.mechanism import Mechanism\n"
        "from dpfed_kan.privacy.noising import GaussianNoise\n"
        "from dpfed_kan.privacy.sampling import Poisson\n"
        "for prob in (1.0, 0.1):\n"
        "    m = Mechanism(sampling=Poisson(sampling_prob=prob), noise=GaussianNoise(),\n"
        "                  l2_clip_norm=1.0, num_rounds=10)\n"
        "    m = calibrate(m, target_epsilon=0.01, target_delta=1e-5)\n"
        "    print(account(m, delta=1e-5).epsilon)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert all(0.0099 <= float(line) <= 0.01 for line in ended.stdout.split())
