"""What every update rule is: a start, and a pure step from a release to the next state."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, TypeVar

import numpy as np

from dpfed_kan._validate import check_choice, check_positive
from dpfed_kan.privacy.clipping import Vector
from dpfed_kan.privacy.mechanism import Release
from dpfed_kan.privacy.transform import ClipTransform
from dpfed_kan.update.projection import project_onto_ball

Averaging = Literal["none", "last_half"]
_NEVER = -1


def _nothing() -> Vector:
    return np.zeros(0)


@dataclass(frozen=True, kw_only=True)
class UpdateState:
    """What every rule carries from step to step: arrays and integers, made of releases only.

    Args:
        params: W_t, shape (D,).
        initial_params: W_0, shape (D,), the center of the ball.
        num_steps: Steps taken.
        num_projected: Steps after which W had left the ball.
        average_from: First step whose W_t enters the average; -1 for none.
        average: Mean of the W_t since then, shape (D,), or (0,) before.
    """

    params: Vector
    initial_params: Vector
    num_steps: int = 0
    num_projected: int = 0
    average_from: int = _NEVER
    average: Vector = field(default_factory=_nothing)

    @property
    def model_params(self) -> Vector:
        """The parameters to use the model with: the average where there is one, else W_t."""
        return self.average if len(self.average) else self.params

    @property
    def transform(self) -> ClipTransform | None:
        """The public transform that sites clip in this round; None is the identity."""
        return None

    @property
    def diagnostics(self) -> dict[str, float]:
        """Public facts about the state, for the metrics of a round."""
        return {}


S = TypeVar("S", bound=UpdateState)


class UpdateRule(Protocol):
    """(state, release) -> state; deterministic, and blind to everything but releases."""

    def start(self, params: Vector, *, num_rounds: int | None = None) -> UpdateState:
        """Return the state before the first step.

        Args:
            params: W_0, shape (D,).
            num_rounds: The horizon T, which averaging the last half needs.
        """
        ...

    # The state is the one that `start` made: a rule's own subclass.
    def step(self, state: UpdateState, release: Release, *, batch_size: float) -> UpdateState:
        """Take one step.

        Args:
            state: Before the step.
            release: The noisy sum of clipped gradients, in the state's transform.
            batch_size: B, a public constant: never the number of records that came.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class StepSettings:
    """The settings that every rule has.

    Args:
        learning_rate: η > 0.
        projection_radius: R in (0, ∞].
        average: Which iterates the final model is the mean of; the last half smooths the noise,
            and as post-processing of releases it is free.
    """

    learning_rate: float
    projection_radius: float = float("inf")
    average: Averaging = "none"

    def __post_init__(self) -> None:
        check_positive("learning_rate", self.learning_rate)
        check_positive("projection_radius", self.projection_radius, allow_infinity=True)
        check_choice("average", self.average, ("none", "last_half"))

    def first_averaged(self, num_rounds: int | None) -> int:
        """Return the first step of the average, or -1.

        Raises:
            ValueError: If the average needs the number of rounds and it is not given.
        """
        if self.average == "none":
            return _NEVER
        if num_rounds is None:
            raise ValueError("average=last_half needs num_rounds when the rule starts")
        return num_rounds // 2 + 1

    def move(self, state: S, displacement: Vector) -> S:
        """Return the state at Proj(W − displacement), counted and averaged."""
        params, projected = project_onto_ball(
            state.params - displacement,
            center=state.initial_params,
            radius=self.projection_radius,
        )
        num_steps = state.num_steps + 1
        average, first = state.average, state.average_from
        if first != _NEVER and num_steps >= first:
            before = average if len(average) else np.zeros_like(params)
            average = before + (params - before) / (num_steps - first + 1)
        return replace(
            state,
            params=params,
            num_steps=num_steps,
            num_projected=state.num_projected + projected,
            average=average,
        )


def belongs(state: UpdateState, kind: type[S]) -> S:
    """Return the state as the rule's own kind.

    Raises:
        TypeError: If another rule made it.
    """
    if not isinstance(state, kind):
        raise TypeError(
            f"expected a {kind.__name__}, got the {type(state).__name__} of another rule"
        )
    return state
