"""DP-AdamBC: Adam with the noise's variance taken out of the second moment."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dpfed_kan._validate import check_positive
from dpfed_kan.privacy.clipping import Vector
from dpfed_kan.privacy.mechanism import Release
from dpfed_kan.update.moments import MomentSettings, MomentState, corrected_displacement, debiased
from dpfed_kan.update.rule import UpdateState, belongs


@dataclass(frozen=True, kw_only=True)
class AdamBCState(MomentState):
    """m_t and v_t of the noisy gradients."""


@dataclass(frozen=True, kw_only=True)
class DPAdamBC(MomentSettings):
    """W −= η m̂ / sqrt(max(v̂ − Φ, γ')) with g̃ = release / B.

    Φ is the noise variance of one coordinate of g̃ in the step at hand: (σC/B)² for independent
    noise, as in the paper; (1 + λ²) times that from t = 2 on for λ-correlated noise, and d_t²
    times that if it is column-normalised.

    Args:
        learning_rate: η > 0.
        projection_radius: R in (0, ∞].
        average: none | last_half.
        beta1: β1.
        beta2: β2.
        variance_floor: γ' > 0.
    """

    variance_floor: float = 1e-9

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("variance_floor", self.variance_floor)

    def start(self, params: Vector, *, num_rounds: int | None = None) -> AdamBCState:
        """Return the state before the first step."""
        return AdamBCState(
            params=params,
            initial_params=params,
            average_from=self.first_averaged(num_rounds),
            first_moment=np.zeros_like(params),
            second_moment=np.zeros_like(params),
        )

    def step(self, state: UpdateState, release: Release, *, batch_size: float) -> AdamBCState:
        """Take one step; the arguments are those of `UpdateRule.step`."""
        before = belongs(state, AdamBCState)
        first, second = self.next_moments(before, release.value / batch_size)
        t = before.num_steps + 1
        displacement = corrected_displacement(
            debiased(first, decay=self.beta1, num_steps=t),
            debiased(second, decay=self.beta2, num_steps=t),
            (release.noise_std / batch_size) ** 2,
            learning_rate=self.learning_rate,
            floor=self.variance_floor,
        )
        after = replace(before, first_moment=first, second_moment=second)
        return self.move(after, displacement)
