"""AdaClip: clip in coordinates whitened by a running mean and standard deviation; SGD step."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dpfed_kan._validate import check_number
from dpfed_kan.privacy.clipping import Vector
from dpfed_kan.privacy.mechanism import Release
from dpfed_kan.privacy.transform import ClipTransform
from dpfed_kan.update.moments import ema
from dpfed_kan.update.rule import StepSettings, UpdateState, belongs
from dpfed_kan.update.variance import (
    check_variance_range,
    optimal_scale,
    shares_at_ends,
    starting_scale,
)


@dataclass(frozen=True, kw_only=True)
class AdaClipState(UpdateState):
    """A state with the transform that it makes.

    Args:
        center: m, shape (D,), without bias correction.
        scale: b, shape (D,).
        variance: EMA of the clamped variance, shape (D,); s is its square root.
        num_at_low: Coordinates whose last variance was at h1.
        num_at_high: Coordinates whose last variance was at h2.
    """

    center: Vector
    scale: Vector
    variance: Vector
    num_at_low: int = 0
    num_at_high: int = 0

    @property
    def transform(self) -> ClipTransform:
        """(m, b)."""
        return ClipTransform(center=self.center, scale=self.scale)

    @property
    def diagnostics(self) -> dict[str, float]:
        """Shares of coordinates at h1 and h2."""
        return shares_at_ends(self.num_at_low, self.num_at_high, len(self.params))


@dataclass(frozen=True, kw_only=True)
class AdaClip(StepSettings):
    """W −= η g̃ with g̃ = b w̃ + m, w̃ = release / B.

    m = β1 m + (1−β1) g̃, s² = β2 s² + (1−β2) clamp((g̃−m)² − Var, h1, h2),
    b = s^{1/2} (Σ s)^{1/2}.

    Var = b² std²/B² is the noise variance of g̃, std² that of the release: σ²C² for independent
    noise, (1 + λ²) times that from t = 2 on for λ-correlated, d_t² times it if
    column-normalised.

    Args:
        learning_rate: η > 0.
        projection_radius: R in (0, ∞].
        average: none | last_half.
        beta1: β1 in [0, 1).
        beta2: β2 in [0, 1).
        min_variance: h1 > 0; with it b has a public floor.
        max_variance: h2 ≥ h1.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    min_variance: float = 1e-9
    max_variance: float = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("beta1", self.beta1, low=0.0, high=1.0, high_open=True)
        check_number("beta2", self.beta2, low=0.0, high=1.0, high_open=True)
        check_variance_range(self.min_variance, self.max_variance)

    def start(self, params: Vector, *, num_rounds: int | None = None) -> AdaClipState:
        """Return the state before the first step: m = 0, b = 1/D."""
        return AdaClipState(
            params=params,
            initial_params=params,
            average_from=self.first_averaged(num_rounds),
            center=np.zeros_like(params),
            scale=starting_scale(len(params)),
            variance=np.zeros_like(params),
        )

    def step(self, state: UpdateState, release: Release, *, batch_size: float) -> AdaClipState:
        """Take one step; the arguments are those of `UpdateRule.step`."""
        before = belongs(state, AdaClipState)
        gradient = before.scale * (release.value / batch_size) + before.center
        noise = np.square(before.scale * (release.noise_std / batch_size))
        center = ema(before.center, gradient, decay=self.beta1)
        raw = np.square(gradient - center) - noise
        clamped = np.clip(raw, self.min_variance, self.max_variance)
        variance = ema(before.variance, clamped, decay=self.beta2)
        after = replace(
            before,
            center=center,
            scale=optimal_scale(variance),
            variance=variance,
            num_at_low=int((raw <= self.min_variance).sum()),
            num_at_high=int((raw >= self.max_variance).sum()),
        )
        return self.move(after, self.learning_rate * gradient)
