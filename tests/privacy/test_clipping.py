import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dpfed_kan.privacy.clipping import GradientBlock, clip_and_sum, clip_factors, squared_norms


def blocks_of(
    rng: np.random.Generator, count: int, *shapes: tuple[int, int]
) -> list[GradientBlock]:
    return [
        GradientBlock(left=rng.normal(size=(count, r)), right=rng.normal(size=(count, s)))
        for r, s in shapes
    ]


def gradients(blocks: list[GradientBlock]) -> np.ndarray:
    """Every example's gradient written out, shape (n, D): what the code never does."""
    parts = [np.einsum("ir,is->irs", b.left, b.right).reshape(len(b.left), -1) for b in blocks]
    return np.concatenate(parts, axis=1)


def test_factored_norms_and_sums_equal_those_of_the_written_out_gradients() -> None:
    rng = np.random.default_rng(0)
    blocks = blocks_of(rng, 40, (3, 7), (1, 11))
    written = gradients(blocks)
    norms = np.linalg.norm(written, axis=1)
    clip = float(np.median(norms))
    clipped = written * np.minimum(1, clip / norms)[:, None]
    np.testing.assert_allclose(squared_norms(blocks), norms**2, rtol=1e-13)
    total = clip_and_sum(blocks, l2_clip_norm=clip)
    np.testing.assert_allclose(total.value, clipped.sum(axis=0), rtol=0, atol=1e-12)
    assert total.l2_sensitivity == clip


def test_blocks_share_one_norm() -> None:
    """Trial P09: three parts of norm 0.9 C each must not leave with 1.56 C."""
    one = np.ones((1, 1))
    blocks = [GradientBlock(left=0.9 * one, right=one) for _ in range(3)]
    value = clip_and_sum(blocks, l2_clip_norm=1.0).value
    assert np.linalg.norm(value) == pytest.approx(1.0, abs=1e-15)


finite = st.floats(-1e60, 1e60)


@given(
    left=hnp.arrays(float, (5, 2), elements=finite),
    right=hnp.arrays(float, (5, 3), elements=finite),
    clip=st.floats(1e-6, 1e6),
)
def test_one_record_moves_the_sum_by_at_most_the_clip(
    left: np.ndarray, right: np.ndarray, clip: float
) -> None:
    factors = clip_factors([GradientBlock(left=left, right=right)], l2_clip_norm=clip)
    for i in range(5):
        mine = (
            np.longdouble(factors[i])
            * np.linalg.norm(left[i].astype(np.longdouble))
            * (np.linalg.norm(right[i].astype(np.longdouble)))
        )
        assert mine <= clip * (1 + 1e-14)


def test_a_small_gradient_is_left_alone() -> None:
    block = GradientBlock(left=np.array([[0.1], [0.0]]), right=np.array([[2.0], [1.0]]))
    np.testing.assert_array_equal(clip_factors([block], l2_clip_norm=1.0), [1.0, 1.0])
    assert clip_and_sum([block], l2_clip_norm=math.inf).value == pytest.approx([0.2])


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 1e308])
def test_a_gradient_that_is_not_finite_counts_as_zero_and_is_counted(poison: float) -> None:
    rng = np.random.default_rng(1)
    blocks = blocks_of(rng, 10, (2, 3), (1, 4))
    sound = np.arange(10) != 4
    expected = clip_and_sum(
        [GradientBlock(left=b.left[sound], right=b.right[sound]) for b in blocks], l2_clip_norm=0.5
    )
    blocks[1].right[4, 2] = poison
    total = clip_and_sum(blocks, l2_clip_norm=0.5)
    np.testing.assert_array_equal(total.value, expected.value)
    assert (total.num_nonfinite, expected.num_nonfinite) == (1, 0)


def test_an_empty_batch_sums_to_zero() -> None:
    block = GradientBlock(left=np.empty((0, 2)), right=np.empty((0, 3)))
    np.testing.assert_array_equal(clip_and_sum([block], l2_clip_norm=1.0).value, np.zeros(6))


@pytest.mark.parametrize("clip", [0.0, -1.0, math.nan])
def test_a_clip_is_positive(clip: float) -> None:
    block = GradientBlock(left=np.ones((1, 1)), right=np.ones((1, 1)))
    with pytest.raises(ValueError, match="l2_clip_norm"):
        clip_and_sum([block], l2_clip_norm=clip)


def test_blocks_of_different_examples_are_refused() -> None:
    blocks = [
        GradientBlock(left=np.ones((2, 1)), right=np.ones((2, 1))),
        GradientBlock(left=np.ones((3, 1)), right=np.ones((3, 1))),
    ]
    with pytest.raises(ValueError, match="same examples"):
        clip_and_sum(blocks, l2_clip_norm=1.0)
    with pytest.raises(ValueError, match="at least one"):
        clip_and_sum([], l2_clip_norm=1.0)
