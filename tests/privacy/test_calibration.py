"""Calibration ends at the conservative side, for every mechanism."""

import pytest

from dpfed_kan.privacy.accounting import account
from dpfed_kan.privacy.calibration import calibrate, calibrate_sites
from dpfed_kan.privacy.joint_sampling import BallsInBins, FixedSize
from dpfed_kan.privacy.mechanism import Mechanism
from dpfed_kan.privacy.noising import GaussianNoise
from dpfed_kan.privacy.sampling import Cyclic, FullBatch, Poisson

SAMPLERS = (
    Poisson(sampling_prob=0.05),
    FixedSize(batch_size=20),
    BallsInBins(num_bins=4),
    Cyclic(num_batches=20),
    FullBatch(),
)


def mechanism(sampling, correlation=0.0, rounds=20, relation="zero_out", scaled=False):
    return Mechanism(
        sampling=sampling,
        noise=GaussianNoise(correlation=correlation, column_normalized=scaled),
        l2_clip_norm=1.0,
        num_rounds=rounds,
        neighboring_relation=relation,
    )


@pytest.mark.parametrize("sampling", SAMPLERS, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("correlation", [0.0, 0.8])
def test_the_target_is_kept_and_used_up(sampling, correlation):
    target = 1.5
    found = calibrate(
        mechanism(sampling, correlation),
        target_epsilon=target,
        target_delta=1e-5,
        num_records=400,
    )
    spent = account(found, delta=1e-5, num_records=400).epsilon
    assert 0.995 * target <= spent <= target


@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
def test_every_relation_is_kept(relation):
    subject = mechanism(SAMPLERS[0], 0.7, relation=relation, scaled=True)
    found = calibrate(subject, target_epsilon=2.0, target_delta=1e-5)
    assert 1.99 <= account(found, delta=1e-5).epsilon <= 2.0


def test_the_slow_bounds_save_noise_where_correlation_is_strong():
    subject = mechanism(Poisson(sampling_prob=0.025), 0.9, 100)
    quick = calibrate(subject, target_epsilon=4.0, target_delta=1e-5, quick=True)
    full = calibrate(subject, target_epsilon=4.0, target_delta=1e-5)
    assert full.noise_multiplier < 0.9 * quick.noise_multiplier
    assert account(quick, delta=1e-5, quick=True).epsilon <= 4.0


def test_a_larger_target_takes_less_noise():
    subject = mechanism(SAMPLERS[0])
    kappas = [
        calibrate(subject, target_epsilon=target, target_delta=1e-5).noise_multiplier
        for target in (0.5, 2.0, 8.0)
    ]
    assert kappas == sorted(kappas, reverse=True)
    assert len(set(kappas)) == 3


def test_one_noise_meets_the_target_of_every_site():
    sites = {
        name: mechanism(Poisson(sampling_prob=q), 0.5)
        for name, q in (("large", 0.01), ("small", 0.2), ("middle", 0.05))
    }
    found = calibrate_sites(sites, target_epsilon=2.0, target_delta=1e-5)
    spent = {n: account(m, delta=1e-5).epsilon for n, m in found.mechanisms.items()}
    assert found.binding_site == "small"
    assert len({m.noise_multiplier for m in found.mechanisms.values()}) == 1
    assert max(spent.values()) == spent["small"] <= 2.0


def test_targets_out_of_range_are_refused():
    subject = mechanism(SAMPLERS[0])
    for settings in ({"target_epsilon": 0.0}, {"target_delta": 1.0}, {"target_delta": 0.0}):
        with pytest.raises(ValueError, match="target_"):
            calibrate(subject, **{"target_epsilon": 1.0, "target_delta": 1e-5} | settings)
    with pytest.raises(ValueError, match="num_records=20"):
        calibrate(subject, target_epsilon=1.0, target_delta=0.06, num_records=20)
    with pytest.raises(ValueError, match="at least one site"):
        calibrate_sites({}, target_epsilon=1.0, target_delta=1e-5)
