"""Several runs, several sites, and ε so far."""

import itertools
import math
from dataclasses import replace

import pytest

from dpfed_kan.privacy.accounting import account
from dpfed_kan.privacy.accounting.composition import Run, compose
from dpfed_kan.privacy.accounting.running import RunningAccount
from dpfed_kan.privacy.accounting.sites import account_sites
from dpfed_kan.privacy.joint_sampling import BallsInBins, FixedSize
from dpfed_kan.privacy.mechanism import Mechanism
from dpfed_kan.privacy.noising import GaussianNoise, NoNoise
from dpfed_kan.privacy.sampling import Cyclic, FullBatch, Poisson


def mechanism(sampling, kappa, rounds, correlation=0.0, relation="zero_out", scaled=False):
    return Mechanism(
        sampling=sampling,
        noise=GaussianNoise(
            noise_multiplier=kappa, correlation=correlation, column_normalized=scaled
        ),
        l2_clip_norm=1.0,
        num_rounds=rounds,
        neighboring_relation=relation,
    )


TENTH = Poisson(sampling_prob=0.1)


def test_a_resumed_run_costs_what_an_unbroken_one_does():
    """CASES.md P06."""
    plan = mechanism(TENTH, 1.2, 20)
    first = compose([Run(mechanism=plan, num_rounds=10)], delta=1e-5).epsilon
    both = compose([Run(mechanism=plan, num_rounds=10)] * 2, delta=1e-5).epsilon
    assert first == pytest.approx(1.98, abs=0.005)
    assert both == pytest.approx(2.52, abs=0.005)
    assert both == pytest.approx(account(plan, delta=1e-5).epsilon, rel=1e-3)


def test_a_sweep_costs_the_composition_of_its_runs():
    """CASES.md P12: 12 runs of 50 rounds."""
    plan = mechanism(Poisson(sampling_prob=0.05), 1.5, 50)
    sweep = compose([Run(mechanism=plan, num_rounds=50, repetitions=12)], delta=1e-5)
    assert account(plan, delta=1e-5).epsilon == pytest.approx(1.22, abs=0.005)
    assert sweep.epsilon == pytest.approx(4.18, abs=0.01)


def test_fixed_schedules_compose_into_one_gaussian():
    cyclic = mechanism(Cyclic(num_batches=4), 6.3, 40)
    full = mechanism(FullBatch(), 12.6, 40)
    both = compose(
        [Run(mechanism=cyclic, num_rounds=40), Run(mechanism=full, num_rounds=40)], delta=1e-5
    )
    alone = mechanism(FullBatch(), 6.3, 20)  # 10 + 40/4 participations at κ = 6.3
    assert both.epsilon == pytest.approx(account(alone, delta=1e-5).epsilon, rel=1e-9)


def test_mixed_mechanisms_compose_below_the_sum_and_above_each():
    runs = [
        Run(mechanism=mechanism(TENTH, 3.0, 20), num_rounds=20),
        Run(mechanism=mechanism(TENTH, 6.0, 20, correlation=0.8), num_rounds=20),
        Run(mechanism=mechanism(Cyclic(num_batches=10), 6.0, 20), num_rounds=20),
    ]
    each = [account(run.mechanism, delta=1e-5).epsilon for run in runs]
    together = compose(runs, delta=1e-5).epsilon
    assert max(each) < together < sum(each)
    others = [
        Run(mechanism=mechanism(FixedSize(batch_size=20), 6.0, 20), num_rounds=20),
        Run(mechanism=mechanism(BallsInBins(num_bins=10), 6.0, 20), num_rounds=20),
    ]
    more = compose(runs + others, delta=1e-5, num_records=400).epsilon
    assert together < more < 20


def test_correlated_runs_compose_by_their_blocks():
    plan = mechanism(Poisson(sampling_prob=0.025), 12.0, 100, correlation=0.9)
    one = compose([Run(mechanism=plan, num_rounds=100)], delta=1e-5).epsilon
    two = compose([Run(mechanism=plan, num_rounds=100, repetitions=2)], delta=1e-5).epsilon
    assert one == pytest.approx(account(plan, delta=1e-5).epsilon, rel=5e-3)
    assert one < two < 2 * one


def test_runs_that_cannot_be_composed_are_refused_or_infinite():
    plan = mechanism(TENTH, 1.2, 20)
    other = mechanism(TENTH, 1.2, 20, relation="replace_one")
    with pytest.raises(ValueError, match="one neighbouring relation"):
        compose([Run(mechanism=m, num_rounds=1) for m in (plan, other)], delta=1e-5)
    with pytest.raises(ValueError, match="num_rounds=21"):
        Run(mechanism=plan, num_rounds=21)
    bare = Mechanism(sampling=TENTH, noise=NoNoise(), l2_clip_norm=1.0, num_rounds=5)
    runs = [Run(mechanism=plan, num_rounds=1), Run(mechanism=bare, num_rounds=1)]
    assert compose(runs, delta=1e-5).epsilon == math.inf
    assert compose([Run(mechanism=bare, num_rounds=0)], delta=1e-5).epsilon == 0
    assert compose([], delta=1e-5).epsilon == 0


def test_every_site_has_its_own_account_and_the_worst_is_the_headline():
    """CASES.md P05."""
    sites = {
        f"n{size}": mechanism(Poisson(sampling_prob=10 / size), 1.5, 50) for size in (20, 200, 2000)
    }
    found = account_sites(sites, delta=1e-5)
    epsilons = [found.sites[f"n{size}"].epsilon for size in (20, 200, 2000)]
    assert epsilons == pytest.approx([14.07, 1.22, 0.10], abs=0.006)
    assert found.worst_site == "n20"
    assert found.epsilon == epsilons[0]
    assert "site n20" in found.sentence


def test_a_delta_too_large_for_one_site_is_refused_and_the_site_named():
    """CASES.md P11."""
    sites = {"small": mechanism(TENTH, 1.5, 50), "large": mechanism(TENTH, 1.5, 50)}
    with pytest.raises(ValueError, match=r"site small: .*num_records=20"):
        account_sites(sites, delta=0.06, num_records={"large": 10, "small": 20})
    with pytest.raises(ValueError, match="at least one site"):
        account_sites({}, delta=1e-5)


SAMPLERS = (
    TENTH,
    FixedSize(batch_size=40),
    Cyclic(num_batches=10),
    FullBatch(),
    BallsInBins(num_bins=4),
)


@pytest.mark.parametrize("sampling", SAMPLERS, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize(("correlation", "scaled"), [(0.0, False), (0.8, False), (0.8, True)])
def test_epsilon_so_far_is_valid_and_monotone_and_ends_at_the_account(
    sampling, correlation, scaled
):
    plan = mechanism(sampling, 5.0, 12, correlation, scaled=scaled)
    running = RunningAccount(plan, delta=1e-5, num_records=400)
    found = [running.epsilon(t) for t in range(13)]
    assert found[0] == 0
    assert all(a <= b for a, b in itertools.pairwise(found))
    assert found[-1] == account(plan, delta=1e-5, num_records=400).epsilon
    for rounds in (1, 7):
        # no less than the least bound for those rounds, up to that bound's own grid
        now = account(plan, delta=1e-5, num_rounds=rounds, num_records=400).epsilon
        assert found[rounds] >= now * 0.999
    with pytest.raises(ValueError, match="num_rounds=13"):
        running.epsilon(13)


def test_epsilon_so_far_without_noise_is_infinite_after_the_first_round():
    bare = Mechanism(sampling=TENTH, noise=NoNoise(), l2_clip_norm=1.0, num_rounds=5)
    running = RunningAccount(bare, delta=1e-5)
    assert running.epsilon(0) == 0
    assert running.epsilon(1) == math.inf


def test_a_patients_run_and_a_records_run_are_not_composed():
    """One record less moves a patient's clipped sum by up to 2C: 2.94 was said, 4.98 is true."""
    runs = [
        Run(mechanism=replace(mechanism(FullBatch(), 20.0, 100), privacy_unit=unit), num_rounds=100)
        for unit in ("record", "patient")
    ]
    with pytest.raises(ValueError, match="expected one privacy unit"):
        compose(runs, delta=1e-5)
    assert compose(runs[1:] * 2, delta=1e-5).epsilon == pytest.approx(2.943, abs=0.002)
