"""The projected gradient step of [KAN-SGD] arXiv 2605.12648, Algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass

from dpfed_kan.privacy.clipping import Vector
from dpfed_kan.privacy.mechanism import Release
from dpfed_kan.update.rule import StepSettings, UpdateState, belongs


@dataclass(frozen=True, kw_only=True)
class SGDState(UpdateState):
    """What a step needs of the past: nothing but where it is."""


@dataclass(frozen=True, kw_only=True)
class ProjectedSGD(StepSettings):
    """W_t = Proj_{ball(W_0, R)}(W_{t−1} − η · release / B).

    It assumes nothing about the noise: any variance, any correlation.

    Args:
        learning_rate: η > 0.
        projection_radius: R in (0, ∞].
        average: none | last_half.
    """

    def start(self, params: Vector, *, num_rounds: int | None = None) -> SGDState:
        """Return the state before the first step."""
        return SGDState(
            params=params, initial_params=params, average_from=self.first_averaged(num_rounds)
        )

    def step(self, state: UpdateState, release: Release, *, batch_size: float) -> SGDState:
        """Take one step.

        Args:
            state: Before the step.
            release: The noisy sum of clipped gradients.
            batch_size: B, a public constant: never the number of records that came.
        """
        return self.move(
            belongs(state, SGDState), (self.learning_rate / batch_size) * release.value
        )
