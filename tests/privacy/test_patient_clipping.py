"""A patient's records are one: clipped together, sampled together, and said so."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfed_kan.federated.site import Broadcast, Site
from dpfed_kan.privacy.accounting import account
from dpfed_kan.privacy.accounting.account import account as account_at_one_site
from dpfed_kan.privacy.clipping import GradientBlock, clip_and_sum
from dpfed_kan.privacy.mechanism import Mechanism
from dpfed_kan.privacy.noising import GaussianNoise
from dpfed_kan.privacy.sampling import FullBatch, Poisson
from dpfed_kan.streams import Streams


def random_blocks(rng: np.random.Generator, num: int, scale: float) -> list[GradientBlock]:
    return [
        GradientBlock(left=rng.normal(size=(num, r)) * scale, right=rng.normal(size=(num, s)))
        for r, s in ((3, 4), (1, 5))
    ]


def materialized(blocks: list[GradientBlock]) -> np.ndarray:
    parts = [np.einsum("ij,ik->ijk", block.left, block.right) for block in blocks]
    sizes = [part.shape[1] * part.shape[2] for part in parts]
    flat = [part.reshape(len(part), size) for part, size in zip(parts, sizes, strict=True)]
    return np.concatenate(flat, axis=1)


@given(
    num=st.integers(0, 25),
    num_patients=st.integers(1, 8),
    seed=st.integers(0, 99),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
)
def test_the_sum_of_a_patients_gradients_is_clipped_as_one_vector(
    num: int, num_patients: int, seed: int, scale: float
) -> None:
    rng = np.random.default_rng(seed)
    blocks = random_blocks(rng, num, scale)
    groups = rng.integers(num_patients, size=num)
    found = clip_and_sum(blocks, l2_clip_norm=0.7, groups=groups)
    expected = np.zeros(17)
    gradients = materialized(blocks)
    for patient in np.unique(groups):
        whole = gradients[groups == patient].sum(axis=0)
        expected += whole * min(1.0, 0.7 / np.linalg.norm(whole))
    np.testing.assert_allclose(found.value, expected, rtol=1e-9, atol=1e-9)
    assert np.linalg.norm(found.value) <= 0.7 * max(1, len(np.unique(groups))) * (1 + 1e-9)


@given(num=st.integers(1, 12), seed=st.integers(0, 50))
def test_patients_of_one_record_are_clipped_as_records_bit_for_bit(num: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    blocks = random_blocks(rng, num, 1.0)
    alone = clip_and_sum(blocks, l2_clip_norm=0.7)
    grouped = clip_and_sum(blocks, l2_clip_norm=0.7, groups=rng.permutation(num))
    np.testing.assert_array_equal(alone.value, grouped.value)


@pytest.mark.parametrize("scale", [1e3, 1e8, 1e16, 1e20])
def test_gradients_that_nearly_cancel_never_exceed_the_clip(scale: float) -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        left, right = rng.normal(size=(1, 4)) * scale, rng.normal(size=(1, 6))
        lefts = np.concatenate([left, -left * (1 + 1e-15 * rng.normal(size=(1, 4)))])
        rights = np.concatenate([right, right * (1 + 1e-15 * rng.normal(size=(1, 6)))])
        total = clip_and_sum(
            [GradientBlock(left=lefts, right=rights)],
            l2_clip_norm=1.0,
            groups=np.zeros(2, dtype=np.intp),
        )
        assert np.linalg.norm(total.value) <= 1.0 + 1e-6


def test_one_bad_record_takes_out_its_patient_and_nobody_else() -> None:
    rng = np.random.default_rng(1)
    (block, _) = random_blocks(rng, 6, 1.0)
    left = block.left.copy()
    left[1] = np.inf
    groups = np.array([0, 0, 1, 1, 2, 2])
    found = clip_and_sum(
        [GradientBlock(left=left, right=block.right)], l2_clip_norm=0.5, groups=groups
    )
    sound = GradientBlock(left=block.left[2:], right=block.right[2:])
    expected = clip_and_sum([sound], l2_clip_norm=0.5, groups=groups[2:])
    np.testing.assert_allclose(found.value, expected.value, rtol=1e-12)
    assert found.num_nonfinite == 2


def test_groups_must_be_one_an_example() -> None:
    block = GradientBlock(left=np.ones((3, 1)), right=np.ones((3, 1)))
    with pytest.raises(ValueError, match="expected 3 groups"):
        clip_and_sum([block], l2_clip_norm=1.0, groups=np.zeros(2, dtype=np.intp))


class Ones:
    """Record i has the gradient 5·e_i."""

    num_params = 12

    def blocks(self, params: np.ndarray, indices: np.ndarray) -> tuple[GradientBlock, ...]:
        right = np.zeros((len(indices), 12))
        right[np.arange(len(indices)), indices] = 5.0
        return (GradientBlock(left=np.ones((len(indices), 1)), right=right),)


def test_a_patients_records_join_a_round_together_and_count_once() -> None:
    patients = np.array([0, 1, 2, 3] * 3)
    site = Site(
        name="a",
        num_records=4,
        gradients=Ones(),
        sampling=Poisson(sampling_prob=0.5),
        l2_clip_norm=1.0,
        streams=Streams.from_seed(0),
        patients=patients,
    )
    counts = []
    for round_index in range(200):
        drawn = site.draw(round_index)
        whole = {p: (patients[drawn] == p).sum() for p in range(4)}
        assert set(whole.values()) <= {0, 3}
        counts.append(sum(size == 3 for size in whole.values()))
        reply = site.work(Broadcast(round_index=round_index, params=np.zeros(12)))
        per_patient = np.linalg.norm(reply.value.reshape(3, 4), axis=0)
        np.testing.assert_allclose(per_patient, [float(whole[p] == 3) for p in range(4)], rtol=1e-9)
    assert abs(np.mean(counts) - 2.0) < 0.3


def mechanism(**settings: Any) -> Mechanism:
    return Mechanism(
        **{
            "sampling": FullBatch(),
            "noise": GaussianNoise(noise_multiplier=20.0),
            "l2_clip_norm": 1.0,
            "num_rounds": 4,
            "privacy_unit": "patient",
        }
        | settings
    )


def test_the_guarantee_names_its_unit() -> None:
    assert "of one patient under" in account(mechanism(), delta=1e-5).sentence
    assert "of one record under" in account(mechanism(privacy_unit="record"), delta=1e-5).sentence


def test_a_patient_at_several_sites_costs_as_many_times_and_it_is_said() -> None:
    several = account(mechanism(sites_per_unit=3), delta=1e-5)
    assert "patient with records at up to 3 sites" in several.sentence
    assert several.delta == 1e-5
    # at full batch the truth is known: the sum moves by 3C, one Gaussian of a third of the noise
    exact = account(mechanism(noise=GaussianNoise(noise_multiplier=20.0 / 3)), delta=1e-5)
    single = account(mechanism(), delta=1e-5)
    assert exact.epsilon <= several.epsilon
    assert 3 * single.epsilon < several.epsilon < 6 * single.epsilon
    with pytest.raises(ValueError, match=r"use several_sites\.account"):
        account_at_one_site(mechanism(sites_per_unit=3), delta=1e-5)
    with pytest.raises(ValueError, match="have the records of each at one site"):
        account(mechanism(sites_per_unit=3, noise=GaussianNoise(noise_multiplier=0.05)), delta=1e-5)
