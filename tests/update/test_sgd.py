import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dpfed_kan.privacy.mechanism import Release, ReleaseEvent
from dpfed_kan.update.projection import project_onto_ball
from dpfed_kan.update.sgd import ProjectedSGD

EVENT = ReleaseEvent(
    round_index=0,
    l2_sensitivity=1.0,
    noise_multiplier=1.0,
    correlation=0.0,
    column_normalized=False,
    release_sha256="",
)


def release(value: np.ndarray) -> Release:
    return Release(value=value, event=EVENT)


def test_a_step_divides_by_the_public_batch_size_and_by_nothing_else() -> None:
    rule = ProjectedSGD(learning_rate=0.5)
    state = rule.step(rule.start(np.zeros(2)), release(np.array([4.0, -8.0])), batch_size=2.0)
    np.testing.assert_array_equal(state.params, [-1.0, 2.0])
    assert (state.num_steps, state.num_projected) == (1, 0)


def test_a_step_that_leaves_the_ball_is_put_back_and_counted() -> None:
    rule = ProjectedSGD(learning_rate=1.0, projection_radius=2.0)
    start = np.array([1.0, 1.0])
    state = rule.step(rule.start(start), release(np.array([-6.0, -8.0])), batch_size=1.0)
    np.testing.assert_allclose(state.params - start, [1.2, 1.6], rtol=1e-15)
    assert state.num_projected == 1
    assert state.initial_params is start


@given(
    params=hnp.arrays(float, 4, elements=st.floats(-1e6, 1e6)),
    center=hnp.arrays(float, 4, elements=st.floats(-1e3, 1e3)),
    radius=st.floats(1e-3, 1e3),
)
def test_a_projection_lies_in_the_ball_and_moves_nothing_that_was_inside(
    params: np.ndarray, center: np.ndarray, radius: float
) -> None:
    projected, moved = project_onto_ball(params, center=center, radius=radius)
    assert np.linalg.norm(projected - center) <= radius * (1 + 1e-9) + 1e-9
    assert moved == (math.sqrt(np.square(params - center).sum()) > radius)
    if not moved:
        assert projected is params


@pytest.mark.parametrize("setting", ["learning_rate", "projection_radius"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan])
def test_settings_are_positive(setting: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"expected {setting}="):
        ProjectedSGD(**({"learning_rate": 1.0} | {setting: value}))
