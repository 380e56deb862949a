"""A float32 product moves the sum by at most C for a record, because its rounding is charged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpfed_kan.data.federation import IID, FederatedData
from dpfed_kan.data.synthetic import SyntheticLogistic
from dpfed_kan.experiment import Experiment, PrivacySettings
from dpfed_kan.federated.runtimes import Fused
from dpfed_kan.federated.site import Broadcast
from dpfed_kan.kan import KANGradients, TwoLayerKAN
from dpfed_kan.models.spec import MLP
from dpfed_kan.privacy import single_precision
from dpfed_kan.privacy.clipping import (
    GradientBlock,
    clip_and_sum,
    clip_factors,
    row_squares,
    squared_norms,
)
from dpfed_kan.privacy.noising import GaussianNoise
from dpfed_kan.privacy.sampling import Poisson
from dpfed_kan.privacy.single_precision import EXCESS, ROWS_AT_ONCE, charged_clip_norm, sum_of_rows
from dpfed_kan.privacy.transform import ClipTransform
from dpfed_kan.privacy.transformed_clipping import clip_and_sum_transformed
from dpfed_kan.simulated_sites import SimulatedSites
from dpfed_kan.update.macadam import DPMacAdam
from dpfed_kan.update.sgd import ProjectedSGD

SIZES = [0, 1, ROWS_AT_ONCE - 1, ROWS_AT_ONCE, ROWS_AT_ONCE + 1, 200]


def block(rng: np.random.Generator, count: int, scale: float = 100.0) -> GradientBlock:
    """Rows much alike, so that roundings of the sum do not cancel; all are clipped."""
    left = scale * (1.0 + 0.01 * rng.normal(size=(count, 3)))
    right = (1.0 + 0.01 * rng.normal(size=(count, 40))).astype(np.float32)
    return GradientBlock(left=left, right=right)


def without(whole: GradientBlock, row: int) -> GradientBlock:
    left = whole.left.copy()
    left[row] = 0.0
    return replace(whole, left=left)


def distance(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.linalg.norm(np.asarray(one - other, np.longdouble).astype(np.float64)))


def test_a_record_moves_the_sum_by_at_most_c_and_would_by_more_without_the_charge() -> None:
    rng = np.random.default_rng(0)
    uncharged = []
    for _ in range(200):
        whole = block(rng, int(rng.integers(2, 2 * ROWS_AT_ONCE)))
        row = int(rng.integers(len(whole.left)))
        less = without(whole, row)
        moved = distance(
            clip_and_sum([whole], l2_clip_norm=0.7).value,
            clip_and_sum([less], l2_clip_norm=0.7).value,
        )
        assert moved <= 0.7
        sums = [
            sum_of_rows(b.left, b.right, clip_factors([b], l2_clip_norm=0.7)) for b in (whole, less)
        ]
        uncharged.append(distance(sums[0].ravel(), sums[1].ravel()))
    assert max(uncharged) > 0.7 * (1 + 1e-7)


def test_a_sum_of_rows_is_off_by_less_than_the_bound_and_by_more_than_float64_would() -> None:
    rng = np.random.default_rng(1)
    whole = block(rng, ROWS_AT_ONCE)
    factors = clip_factors([whole], l2_clip_norm=1.0)
    scaled = (whole.left * factors[:, None]).astype(np.float32).astype(np.longdouble)
    exact = scaled.T @ whole.right.astype(np.longdouble)
    error = float(np.sqrt(np.square(sum_of_rows(whole.left, whole.right, factors) - exact).sum()))
    bound = ROWS_AT_ONCE * ROWS_AT_ONCE * 2.0**-24 * (1 + 1e-5)
    assert 1e-9 < error <= bound
    assert EXCESS >= 2 * bound
    assert EXCESS < 5e-4
    assert charged_clip_norm(1.0) == pytest.approx(1 / (1 + EXCESS), abs=1e-15)


def test_no_more_rows_are_added_up_in_float32_than_the_bound_has() -> None:
    """Beside 2^24 float32 loses ones, but only those that are added to it before float64 is."""
    later = 32
    right = np.ones((ROWS_AT_ONCE + later, 16), np.float32)
    right[0] = 2.0**24
    total = sum_of_rows(np.ones_like(right, np.float64), right, np.ones(len(right)))
    assert (total >= 2.0**24 + later).all()
    assert (total <= 2.0**24 + len(right)).all()


@pytest.mark.parametrize("count", SIZES)
def test_the_sum_is_the_one_of_float64_at_the_charged_clip(count: int) -> None:
    rng = np.random.default_rng(count)
    single = block(rng, count, scale=rng.choice([0.001, 100.0]))
    double = replace(single, right=np.asarray(single.right, np.float64))
    found = clip_and_sum([single], l2_clip_norm=0.5)
    wanted = clip_and_sum([double], l2_clip_norm=charged_clip_norm(0.5))
    np.testing.assert_allclose(found.value, wanted.value, rtol=1e-5, atol=1e-7)
    assert found.value.dtype == np.float64
    assert (found.l2_sensitivity, found.num_nonfinite) == (0.5, 0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_row_that_is_not_finite_adds_zero_in_its_place(bad: float, side: str) -> None:
    """The other rows stay in the sums that they are in: bit for bit as if it were zero."""
    rng = np.random.default_rng(2)
    whole = block(rng, 2 * ROWS_AT_ONCE + 5)
    values = getattr(whole, side).copy()
    with np.errstate(over="ignore"):
        values[3, 1] = bad
    broken = replace(whole, **{side: values})
    found = clip_and_sum([broken], l2_clip_norm=0.7)
    wanted = clip_and_sum([without(whole, 3)], l2_clip_norm=0.7)
    assert found.value.tobytes() == wanted.value.tobytes()
    assert found.num_nonfinite == 1


@pytest.mark.parametrize("length", [1e-30, 1e25])
def test_a_row_that_float32_cannot_hold_adds_zero(length: float) -> None:
    whole = block(np.random.default_rng(3), 5)
    right = whole.right.copy()
    right[2] = length
    found = clip_and_sum([replace(whole, right=right)], l2_clip_norm=0.7).value
    assert found.tobytes() == clip_and_sum([without(whole, 2)], l2_clip_norm=0.7).value.tobytes()


@pytest.mark.parametrize("clip", [1e-30, 1e30])
def test_a_clip_norm_that_float32_cannot_hold_is_refused(clip: float) -> None:
    with pytest.raises(ValueError, match=r"expected l2_clip_norm=.* in \["):
        clip_and_sum([block(np.random.default_rng(0), 3)], l2_clip_norm=clip)


def test_what_the_bound_is_not_for_is_refused() -> None:
    one = block(np.random.default_rng(0), 3)
    with pytest.raises(ValueError, match="precision=float32"):
        clip_and_sum([one, one], l2_clip_norm=1.0)
    with pytest.raises(ValueError, match="precision=float32"):
        clip_and_sum([one], l2_clip_norm=1.0, groups=np.zeros(3, np.intp))
    transform = ClipTransform(center=np.zeros(120), scale=np.ones(120))
    with pytest.raises(ValueError, match="precision=float32"):
        clip_and_sum_transformed([one], transform=transform, l2_clip_norm=1.0)


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_lengths_that_are_kept_are_those_of_the_rows(precision: Any) -> None:
    model = TwoLayerKAN(hidden_width=4, num_basis=5, input_grid=1.0)
    rng = np.random.default_rng(4)
    params = model.initialize(6, rng)
    site = KANGradients(
        model=model,
        frozen=params.frozen,
        features=rng.uniform(-1, 1, (30, 6)),
        labels=rng.choice([-1.0, 1.0], 30),
        precision=precision,
    )
    (found,) = site.blocks(params.trainable, rng.integers(30, size=50))
    assert found.right.dtype == np.dtype(precision)
    assert found.left.dtype == np.float64
    np.testing.assert_allclose(
        row_squares(found), row_squares(replace(found, right_squares=None)), rtol=1e-14
    )
    dense = np.einsum("ij,ik->ijk", found.left, np.asarray(found.right, np.float64))
    np.testing.assert_allclose(squared_norms([found]), np.square(dense).sum((1, 2)), rtol=1e-13)


def job(**changes: Any) -> Experiment:
    made = Experiment(
        data=FederatedData(
            source=SyntheticLogistic(num_records=400, input_dim=3), partition=IID(num_sites=3)
        ),
        model=TwoLayerKAN(hidden_width=4, num_basis=5),
        sampling=Poisson(sampling_prob=0.4),
        noise=GaussianNoise(noise_multiplier=0.7),
        privacy=PrivacySettings(l2_clip_norm=0.2, target_epsilon=None, target_delta=1e-5),
        update=ProjectedSGD(learning_rate=0.5),
        runtime=Fused(precision="float32"),
        num_rounds=6,
        seed=0,
    )
    return replace(made, **changes)


def test_a_run_in_single_precision_is_near_that_in_double() -> None:
    sums = []
    for precision in ("float64", "float32"):
        planned = job(runtime=Fused(precision=precision))  # type: ignore[arg-type]
        sites = SimulatedSites(planned, planned.streams())
        found = sites.fused()(Broadcast(round_index=1, params=sites.params.trainable))
        assert found.l2_sensitivity == 0.2
        sums.append(found.value)
    assert 0 < np.linalg.norm(sums[1] - sums[0]) < 1e-3 * np.linalg.norm(sums[0])


@pytest.mark.parametrize(
    "changes",
    [
        {"update": DPMacAdam(learning_rate=0.1)},
        {"model": MLP(hidden_widths=(3,))},
        {"model": TwoLayerKAN(hidden_width=4, num_basis=5, train_second_layer=True)},
        {
            "privacy": PrivacySettings(
                l2_clip_norm=0.2, target_epsilon=None, target_delta=1e-5, privacy_unit="patient"
            )
        },
    ],
    ids=["macadam", "mlp", "two layers", "patients"],
)
def test_a_run_that_the_bound_is_not_for_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="precision=float32 is for model=kan"):
        job(**changes)


def test_a_device_or_precision_that_is_not_offered_is_refused() -> None:
    with pytest.raises(ValueError, match="device=cpu alone"):
        Fused(precision="float32", device="cuda")
    with pytest.raises(ValueError, match="precision"):
        Fused(precision="float16")  # type: ignore[arg-type]


def test_the_constant_is_that_of_the_docstring() -> None:
    u, b = 2.0**-24, single_precision.ROWS_AT_ONCE
    assert (1 + u) * (1 + 2 * b * b * u / (1 - b * u)) <= 1 + EXCESS
