"""DP-MacAdam-BC: DP-MacAdam with the noise's variance taken out of the second moment."""

from __future__ import annotations

from dataclasses import dataclass

from dpfed_kan._validate import check_choice, check_positive
from dpfed_kan.privacy.mechanism import Release
from dpfed_kan.update.macadam import Form, MacAdamSettings, MacAdamState
from dpfed_kan.update.moments import corrected_displacement, debiased
from dpfed_kan.update.rule import UpdateState, belongs


@dataclass(frozen=True, kw_only=True)
class DPMacAdamBC(MacAdamSettings):
    """W −= η m̂ / sqrt(max(v̂ − Φ, γ')), clipped in w = (g − m̂)/b.

    Φ is (std/B)² as printed (`phi=paper`), which is the noise variance of w̃, not of g̃ = b w̃ + m̂;
    `phi=exact` is the bias-corrected EMA with β2 of b² std²/B². std² is the release's noise
    variance: see `DPMacAdam` for what λ and column normalisation make of it.

    Args:
        learning_rate: η > 0.
        projection_radius: R in (0, ∞].
        average: none | last_half.
        beta1: β1.
        beta2: β2.
        min_variance: h1.
        max_variance: h2.
        bias_correction: paper | exact.
        noise_variance: paper | ema.
        variance_of: batch_mean | example.
        variance_floor: γ' > 0.
        phi: paper | exact.
    """

    variance_floor: float = 1e-9
    phi: Form = "exact"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("variance_floor", self.variance_floor)
        check_choice("phi", self.phi, ("paper", "exact"))

    def step(self, state: UpdateState, release: Release, *, batch_size: float) -> MacAdamState:
        """Take one step; the arguments are those of `UpdateRule.step`."""
        before = belongs(state, MacAdamState)
        after, second = self.observe(before, release, batch_size=batch_size)
        exact = debiased(after.noise_moment, decay=self.beta2, num_steps=before.num_steps + 1)
        displacement = corrected_displacement(
            after.center,
            second,
            exact if self.phi == "exact" else (release.noise_std / batch_size) ** 2,
            learning_rate=self.learning_rate,
            floor=self.variance_floor,
        )
        return self.move(after, displacement)
