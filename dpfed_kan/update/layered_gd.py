"""Gradient descent with one sensitivity, one noise and one ball per layer; [KAN-GD] 2601.22409."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dpfed_kan._validate import check_positive
from dpfed_kan.privacy.clipping import Vector
from dpfed_kan.privacy.mechanism import Release
from dpfed_kan.privacy.transform import ClipTransform
from dpfed_kan.update.projection import project_onto_ball
from dpfed_kan.update.rule import StepSettings, UpdateState, belongs


@dataclass(frozen=True, kw_only=True)
class LayeredState(UpdateState):
    """A state with the fixed scale of each coordinate's layer.

    Args:
        scale: L_j in every coordinate of layer j, shape (D,).
    """

    scale: Vector

    @property
    def transform(self) -> ClipTransform:
        """(0, L): in w = g/L every layer of a record's gradient has norm at most 1."""
        return ClipTransform(center=np.zeros_like(self.scale), scale=self.scale)


@dataclass(frozen=True, kw_only=True)
class LayeredGD(StepSettings):
    """W_j = Proj_{ball(W_0j, R_j)}(W_j − η g̃_j), the noise of layer j in proportion to L_j.

    With J layers and l2_clip_norm = √J in w = g/L, the noise of layer j has std κ √J L_j: the
    paper's σ_j = Δ_j √(JT)/μ at κ = √T/μ. Its account is that of the full batch, one Gaussian of
    μ = √T/κ. Where the L_j bound the gradients, as `kan.lipschitz` has them, the clip moves
    nothing; where they do not, it keeps the promise, so privacy does not hang on them nor on the
    balls, as it does in the paper.

    Args:
        learning_rate: η > 0.
        projection_radius: R of the whole, after the layers' own; usually ∞.
        average: none | last_half.
        layer_sizes: Parameters of each layer, in order.
        layer_scales: L_j of each layer.
        layer_radii: R_j of each layer, in (0, ∞].
    """

    layer_sizes: tuple[int, ...]
    layer_scales: tuple[float, ...]
    layer_radii: tuple[float, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not len(self.layer_sizes) == len(self.layer_scales) == len(self.layer_radii) > 0:
            raise ValueError("expected one size, one scale and one radius for each layer")
        for scale, radius in zip(self.layer_scales, self.layer_radii, strict=True):
            check_positive("layer_scales", scale)
            check_positive("layer_radii", radius, allow_infinity=True)

    def start(self, params: Vector, *, num_rounds: int | None = None) -> LayeredState:
        """Return the state before the first step.

        Raises:
            ValueError: If the layers do not make up the parameters.
        """
        if sum(self.layer_sizes) != len(params):
            raise ValueError(
                f"expected layer_sizes={self.layer_sizes} to sum to {len(params)} parameters"
            )
        return LayeredState(
            params=params,
            initial_params=params,
            average_from=self.first_averaged(num_rounds),
            scale=np.repeat(self.layer_scales, self.layer_sizes),
        )

    def step(self, state: UpdateState, release: Release, *, batch_size: float) -> LayeredState:
        """Take one step; the arguments are those of `UpdateRule.step`."""
        before = belongs(state, LayeredState)
        moved = before.params - (self.learning_rate / batch_size) * before.scale * release.value
        ends = np.cumsum(self.layer_sizes)[:-1].tolist()
        layers = zip(
            np.split(moved, ends),
            np.split(before.initial_params, ends),
            self.layer_radii,
            strict=True,
        )
        parts, left = zip(
            *(project_onto_ball(part, center=c, radius=r) for part, c, r in layers), strict=True
        )
        after = self.move(before, before.params - np.concatenate(parts))
        return replace(after, num_projected=before.num_projected + any(left))
