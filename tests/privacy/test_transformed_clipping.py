"""No record adds more than C in w = (g − m̂)/b, also where the three products cancel."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpfed_kan.privacy.clipping import GradientBlock, clip_and_sum
from dpfed_kan.privacy.transform import SCALE_FLOOR, ClipTransform
from dpfed_kan.privacy.transformed_clipping import (
    clip_and_sum_transformed,
    transformed_clip_factors,
    transformed_norms,
)


def drawn(rng: np.random.Generator, count: int, *shapes: tuple[int, int]) -> list[GradientBlock]:
    return [
        GradientBlock(left=rng.normal(size=(count, r)), right=rng.normal(size=(count, s)))
        for r, s in shapes
    ]


def written(blocks: list[GradientBlock], dtype: Any = np.float64) -> np.ndarray:
    """Every example's gradient written out: what the code never does."""
    parts = [
        (b.left.astype(dtype)[:, :, None] * b.right.astype(dtype)[:, None, :]).reshape(
            len(b.left), -1
        )
        for b in blocks
    ]
    return np.concatenate(parts, axis=1)


def transform_of(rng: np.random.Generator, dimension: int) -> ClipTransform:
    return ClipTransform(
        center=rng.normal(size=dimension), scale=np.exp(rng.normal(size=dimension))
    )


def test_norms_and_sums_equal_those_of_the_written_out_gradients() -> None:
    rng = np.random.default_rng(0)
    blocks = drawn(rng, 40, (3, 7), (1, 11), (4, 1))
    transform = transform_of(rng, 36)
    w = (written(blocks) - transform.center) / transform.scale
    norms = np.linalg.norm(w, axis=1)
    np.testing.assert_allclose(transformed_norms(blocks, transform), norms, rtol=1e-12)
    clip = float(np.median(norms))
    total = clip_and_sum_transformed(blocks, transform=transform, l2_clip_norm=clip)
    expected = (w * np.minimum(1, clip / norms)[:, None]).sum(axis=0)
    np.testing.assert_allclose(total.value, expected, rtol=0, atol=1e-12 * clip * 40)
    assert total.l2_sensitivity == clip


def test_the_identity_transform_is_the_plain_clip() -> None:
    rng = np.random.default_rng(1)
    blocks = drawn(rng, 9, (3, 7), (2, 2))
    identity = ClipTransform(center=np.zeros(25), scale=np.ones(25))
    ours = clip_and_sum_transformed(blocks, transform=identity, l2_clip_norm=1.0).value
    np.testing.assert_allclose(ours, clip_and_sum(blocks, l2_clip_norm=1.0).value, atol=1e-13)


@st.composite
def near_the_center(draw: Any) -> tuple[GradientBlock, ClipTransform]:
    """Factors, and a center that is almost one example's gradient, at ‖m̂/b‖ up to 1e6."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows, columns = draw(st.integers(1, 6)), draw(st.integers(1, 12))
    spread, distance = draw(st.floats(0, 6)), 10.0 ** draw(st.floats(-17, 1))
    length = 10.0 ** draw(st.floats(-6, 6))
    left = np.exp(rng.normal(size=(3, rows)) * spread) * rng.choice([-1, 1], (3, rows))
    right = np.exp(rng.normal(size=(3, columns)) * spread) * rng.choice([-1, 1], (3, columns))
    target = np.outer(left[0], right[0]).ravel()
    scale = np.exp(rng.normal(size=target.size) * spread) * 10.0 ** draw(st.floats(-6, 2))
    size = np.linalg.norm(target / scale)
    left, target = left * (length / size), target * (length / size)
    center = target * (1 + distance * rng.normal(size=target.size))
    scale = np.maximum(scale, SCALE_FLOOR)
    return GradientBlock(left=left, right=right), ClipTransform(center=center, scale=scale)


def longest(case: tuple[GradientBlock, ClipTransform]) -> float:
    """Return max ‖w̄‖ in longdouble over the examples."""
    block, transform = case
    factors = transformed_clip_factors([block], transform=transform, l2_clip_norm=1.0)
    w = written([block], np.longdouble) - transform.center.astype(np.longdouble)
    w /= transform.scale.astype(np.longdouble)
    return float((np.sqrt(np.square(w).sum(axis=1)) * factors).max())


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(near_the_center())
def test_no_adversarial_record_leaves_with_more_than_one(case: Any) -> None:
    assert longest(case) <= 1.0


@pytest.mark.slow
@settings(max_examples=10_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(near_the_center())
def test_none_of_ten_thousand_adversarial_records_leaves_with_more_than_one(case: Any) -> None:
    assert longest(case) <= 1.0


def test_the_bare_products_would_break_the_promise() -> None:
    """The negative control: without the slack some w̄ is longer than 1."""
    rng, worst = np.random.default_rng(0), 0.0
    for _ in range(300):
        left, right = rng.normal(size=(1, 4)), rng.normal(size=(1, 8))
        g = np.outer(left[0], right[0])
        scale = np.full((4, 8), np.linalg.norm(g) / 1e6)
        center = g * (1 + 3e-6 * rng.normal(size=g.shape))
        products = (
            np.square(left) @ (1 / scale**2) @ np.square(right).T
            - 2 * left @ (center / scale**2) @ right.T
            + np.square(center / scale).sum()
        ).item()
        true = np.linalg.norm((g.astype(np.longdouble) - center) / scale)
        worst = max(worst, float(true / max(1.0, math.sqrt(max(products, 0.0)))))
    assert worst > 1.0


def test_the_examples_of_one_group_add_at_most_the_clip_together() -> None:
    rng = np.random.default_rng(4)
    blocks, transform = drawn(rng, 12, (3, 7)), transform_of(rng, 21)
    groups = np.array([5, 5, 5, 0, 1, 1, 2, 2, 2, 2, 2, 7])
    clip = {"transform": transform, "l2_clip_norm": 1.0}
    factors = transformed_clip_factors(blocks, groups=groups, **clip)  # type: ignore[arg-type]
    w = (written(blocks) - transform.center) / transform.scale * factors[:, None]
    for group in np.unique(groups):
        assert np.linalg.norm(w[groups == group].sum(axis=0)) <= 1.0
    total = clip_and_sum_transformed(blocks, groups=groups, **clip)  # type: ignore[arg-type]
    np.testing.assert_allclose(total.value, w.sum(axis=0), atol=1e-12)


@pytest.mark.parametrize("poison", [math.nan, math.inf, 1e308])
def test_a_gradient_that_is_not_finite_counts_as_zero_and_is_counted(poison: float) -> None:
    rng = np.random.default_rng(1)
    blocks, transform = drawn(rng, 10, (2, 3), (1, 4)), transform_of(rng, 10)
    sound = np.arange(10) != 4
    rest = [GradientBlock(left=b.left[sound], right=b.right[sound]) for b in blocks]
    expected = clip_and_sum_transformed(rest, transform=transform, l2_clip_norm=0.5)
    blocks[1].right[4, 2] = poison
    total = clip_and_sum_transformed(blocks, transform=transform, l2_clip_norm=0.5)
    np.testing.assert_array_equal(total.value, expected.value)
    assert (total.num_nonfinite, expected.num_nonfinite) == (1, 0)


def test_an_empty_batch_sums_to_zero_whatever_the_center() -> None:
    block = GradientBlock(left=np.empty((0, 2)), right=np.empty((0, 3)))
    transform = transform_of(np.random.default_rng(2), 6)
    total = clip_and_sum_transformed([block], transform=transform, l2_clip_norm=1.0)
    np.testing.assert_array_equal(total.value, np.zeros(6))


@pytest.mark.parametrize(
    ("center", "scale", "said"),
    [
        (np.zeros(2), np.ones(3), "one shape"),
        (np.array([0.0, math.nan]), np.ones(2), "finite center"),
        (np.zeros(2), np.array([1.0, 0.0]), "1e-12"),
        (np.zeros(2), np.array([1.0, -1.0]), "1e-12"),
        (np.zeros(2), np.array([1.0, math.inf]), "finite"),
    ],
)
def test_a_transform_without_a_floor_is_refused(
    center: np.ndarray, scale: np.ndarray, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        ClipTransform(center=center, scale=scale)


def test_a_transform_of_another_size_is_refused() -> None:
    block = GradientBlock(left=np.ones((1, 2)), right=np.ones((1, 3)))
    transform = transform_of(np.random.default_rng(3), 5)
    with pytest.raises(ValueError, match="6 parameters, got 5"):
        clip_and_sum_transformed([block], transform=transform, l2_clip_norm=1.0)
