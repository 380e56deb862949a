"""DP-Adam: Adam's step on noisy gradients; the second moment keeps the noise's variance."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dpfed_kan._validate import check_positive
from dpfed_kan.privacy.clipping import Vector
from dpfed_kan.privacy.mechanism import Release
from dpfed_kan.update.moments import MomentSettings, MomentState, adam_displacement, debiased
from dpfed_kan.update.rule import UpdateState, belongs


@dataclass(frozen=True, kw_only=True)
class AdamState(MomentState):
    """m_t and v_t of the noisy gradients."""


@dataclass(frozen=True, kw_only=True)
class DPAdam(MomentSettings):
    """W −= η m̂ / (√v̂ + γ) with g̃ = release / B.

    It assumes nothing about the noise.

    Args:
        learning_rate: η > 0.
        projection_radius: R in (0, ∞].
        average: none | last_half.
        beta1: β1.
        beta2: β2.
        denominator_floor: γ > 0.
    """

    denominator_floor: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("denominator_floor", self.denominator_floor)

    def start(self, params: Vector, *, num_rounds: int | None = None) -> AdamState:
        """Return the state before the first step."""
        return AdamState(
            params=params,
            initial_params=params,
            average_from=self.first_averaged(num_rounds),
            first_moment=np.zeros_like(params),
            second_moment=np.zeros_like(params),
        )

    def step(self, state: UpdateState, release: Release, *, batch_size: float) -> AdamState:
        """Take one step; the arguments are those of `UpdateRule.step`."""
        before = belongs(state, AdamState)
        first, second = self.next_moments(before, release.value / batch_size)
        t = before.num_steps + 1
        displacement = adam_displacement(
            debiased(first, decay=self.beta1, num_steps=t),
            debiased(second, decay=self.beta2, num_steps=t),
            learning_rate=self.learning_rate,
            denominator_floor=self.denominator_floor,
        )
        after = replace(before, first_moment=first, second_moment=second)
        return self.move(after, displacement)
