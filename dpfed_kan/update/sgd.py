"""The projected gradient step of [KAN-SGD] arXiv 2605.12648, Algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass

from dpfed_kan._validate import check_positive
from dpfed_kan.privacy.clipping import Vector
from dpfed_kan.privacy.mechanism import Release
from dpfed_kan.update.projection import project_onto_ball


@dataclass(frozen=True, kw_only=True)
class SGDState:
    """What a step needs of the past.

    Args:
        params: W_t, shape (D,).
        initial_params: W_0, shape (D,), the center of the ball.
        num_steps: Steps taken.
        num_projected: Steps after which W had left the ball.
    """

    params: Vector
    initial_params: Vector
    num_steps: int = 0
    num_projected: int = 0


@dataclass(frozen=True, kw_only=True)
class ProjectedSGD:
    """W_t = Proj_{ball(W_0, R)}(W_{t−1} − η · release / B).

    Args:
        learning_rate: η > 0.
        projection_radius: R in (0, ∞].
    """

    learning_rate: float
    projection_radius: float = float("inf")

    def __post_init__(self) -> None:
        check_positive("learning_rate", self.learning_rate)
        check_positive("projection_radius", self.projection_radius, allow_infinity=True)

    def start(self, params: Vector) -> SGDState:
        """Return the state before the first step."""
        return SGDState(params=params, initial_params=params)

    def step(self, state: SGDState, release: Release, *, batch_size: float) -> SGDState:
        """Take one step.

        Args:
            state: Before the step.
            release: The noisy sum of clipped gradients.
            batch_size: B, a public constant: never the number of records that came.
        """
        moved = state.params - (self.learning_rate / batch_size) * release.value
        params, projected = project_onto_ball(
            moved, center=state.initial_params, radius=self.projection_radius
        )
        return SGDState(
            params=params,
            initial_params=state.initial_params,
            num_steps=state.num_steps + 1,
            num_projected=state.num_projected + projected,
        )
