"""Sites that sample at rates of their own: trials P05 and F05, and the joint samplers' accounts."""

from dataclasses import replace

import pytest

from dpfed_kan.privacy.accounting import account
from dpfed_kan.privacy.accounting.sites import account_run, account_sites
from dpfed_kan.privacy.joint_sampling import FixedSize
from dpfed_kan.privacy.mechanism import Mechanism
from dpfed_kan.privacy.noising import GaussianNoise
from dpfed_kan.privacy.sampling import Poisson, PoissonBatch

SIZES = {"small": 20, "middle": 200, "large": 2000}


def mechanism(sampling, num_rounds=50):
    return Mechanism(
        sampling=sampling,
        noise=GaussianNoise(noise_multiplier=1.5),
        l2_clip_norm=1.0,
        num_rounds=num_rounds,
    )


def test_every_site_pays_for_its_own_rate_and_the_headline_is_the_worst():
    found = account_run(mechanism(PoissonBatch(site_batch_size=10)), num_records=SIZES, delta=1e-5)
    assert found.sites["small"].epsilon == pytest.approx(14.07, rel=0.01)
    assert found.sites["middle"].epsilon == pytest.approx(1.22, rel=0.01)
    assert found.sites["large"].epsilon == pytest.approx(0.10, abs=0.005)
    assert found.worst_site == "small"
    assert found.epsilon == found.sites["small"].epsilon


def test_a_site_smaller_than_its_batch_takes_part_in_every_round_without_amplification():
    found = account_run(
        mechanism(PoissonBatch(site_batch_size=16), num_rounds=10),
        num_records={"five rows": 5},
        delta=1e-5,
    )
    assert found.epsilon == pytest.approx(10.67, rel=0.01)
    assert found.sites["five rows"].sampling == "Poisson, q=1"


def test_a_joint_draw_is_accounted_over_all_sites():
    fixed = mechanism(FixedSize(batch_size=111))
    found = account_run(fixed, num_records=SIZES, delta=1e-5)
    together = account(fixed, delta=1e-5, num_records=sum(SIZES.values()))
    assert {g.epsilon for g in found.sites.values()} == {together.epsilon}


def test_equal_sites_are_accounted_once_and_alike():
    found = account_run(
        mechanism(Poisson(sampling_prob=0.1)), num_records=dict.fromkeys("abc", 50), delta=1e-3
    )
    assert len({id(guarantee) for guarantee in found.sites.values()}) == 1


def test_a_rate_that_depends_on_the_site_has_no_account_without_one():
    with pytest.raises(ValueError, match="num_records"):
        account(mechanism(PoissonBatch(site_batch_size=10)), delta=1e-5)


def test_a_unit_at_several_sites_is_drawn_at_the_others_rates_too():
    """s · ε_k with a site's own rate said .14 where the patient's records elsewhere cost 20.8."""
    planned = Mechanism(
        sampling=PoissonBatch(site_batch_size=50),
        noise=GaussianNoise(noise_multiplier=3.0),
        l2_clip_norm=1.0,
        num_rounds=100,
        privacy_unit="patient",
        sites_per_unit=2,
    )
    found = account_run(planned, num_records={"big": 10_000, "small": 50}, delta=1e-6)
    at_small = account(
        replace(planned.at_site(50), sites_per_unit=1), delta=1e-6, num_records=50
    ).epsilon
    assert at_small == pytest.approx(20.78, abs=0.01)
    assert found.sites["big"].epsilon == found.sites["small"].epsilon > at_small
    with pytest.raises(ValueError, match="by account_run"):
        account_sites({"big": planned.at_site(10_000)}, delta=1e-6)
