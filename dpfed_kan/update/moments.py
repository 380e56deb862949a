"""Adam's two moving averages, and what is shared by the rules that have them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpfed_kan._validate import check_number
from dpfed_kan.privacy.clipping import Vector
from dpfed_kan.update.rule import StepSettings, UpdateState


@dataclass(frozen=True, kw_only=True)
class MomentState(UpdateState):
    """A state with m_t and v_t.

    Args:
        first_moment: m, shape (D,), without bias correction.
        second_moment: v, shape (D,), without bias correction.
    """

    first_moment: Vector
    second_moment: Vector


@dataclass(frozen=True, kw_only=True)
class MomentSettings(StepSettings):
    """The settings of a rule with moments.

    Args:
        beta1: β1 in [0, 1), of the first moment.
        beta2: β2 in [0, 1), of the second moment.
    """

    beta1: float = 0.9
    beta2: float = 0.999

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("beta1", self.beta1, low=0.0, high=1.0, high_open=True)
        check_number("beta2", self.beta2, low=0.0, high=1.0, high_open=True)

    def next_moments(self, state: MomentState, gradient: Vector) -> tuple[Vector, Vector]:
        """Return m_t = β1 m + (1−β1) g̃ and v_t = β2 v + (1−β2) g̃²."""
        return (
            ema(state.first_moment, gradient, decay=self.beta1),
            ema(state.second_moment, np.square(gradient), decay=self.beta2),
        )


def ema(average: Vector, value: Vector, *, decay: float) -> Vector:
    """Return decay · average + (1 − decay) · value."""
    return np.asarray(decay * average + (1.0 - decay) * value)


def debiased(average: Vector, *, decay: float, num_steps: int) -> Vector:
    """Return average / (1 − decay^t), t the steps including this one."""
    return np.asarray(average / (1.0 - decay**num_steps))


def adam_displacement(
    first: Vector, second: Vector, *, learning_rate: float, denominator_floor: float
) -> Vector:
    """Return η m̂ / (√v̂ + γ)."""
    return np.asarray(learning_rate * first / (np.sqrt(second) + denominator_floor))


def corrected_displacement(
    first: Vector, second: Vector, noise: Vector | float, *, learning_rate: float, floor: float
) -> Vector:
    """Return η m̂ / sqrt(max(v̂ − Φ, γ'))."""
    return np.asarray(learning_rate * first / np.sqrt(np.maximum(second - noise, floor)))
