"""The one object where sampling, clipping, noise and horizon meet; all that an account reads."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from dpfed_kan._validate import check_choice, check_count, check_positive
from dpfed_kan.privacy.clipping import ClippedSum, Vector
from dpfed_kan.privacy.joint_sampling import Sampling, at_site
from dpfed_kan.privacy.noising import Noise, draw_noise, noise_std
from dpfed_kan.privacy.sampling import Cyclic, PoissonBatch
from dpfed_kan.streams import Streams

NeighboringRelation = Literal["zero_out", "add_remove", "replace_one"]
PrivacyUnit = Literal["record", "patient"]
PRIVACY_UNITS: tuple[PrivacyUnit, ...] = ("record", "patient")
NEIGHBORING_RELATIONS: tuple[NeighboringRelation, ...] = ("zero_out", "add_remove", "replace_one")


@dataclass(frozen=True, kw_only=True)
class ReleaseEvent:
    """One release that happened: what the ledger keeps and the account composes.

    Args:
        round_index: t, from 0.
        l2_sensitivity: C, of the sum that was released.
        noise_multiplier: κ, the noise's std per unit of sensitivity before correlation.
        correlation: λ.
        column_normalized: Whether row t was scaled by d_t.
        release_sha256: Of the released vector, which is public: a release that is computed
            again after a crash must be the same one.
    """

    round_index: int
    l2_sensitivity: float
    noise_multiplier: float
    correlation: float
    column_normalized: bool
    release_sha256: str


@dataclass(frozen=True, kw_only=True)
class Release:
    """A noisy sum, public from here on, with the event that accounts for it.

    Args:
        value: Shape (D,), the sum plus its noise; not divided by anything.
        event: To be recorded before the value is used.
        noise_std: Standard deviation of the noise in one coordinate of `value`, public.
    """

    value: Vector
    event: ReleaseEvent
    noise_std: float


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """What touches privacy in a run, from which its ε follows.

    Args:
        sampling: Who takes part in a round.
        noise: Multiplier, correlation, normalisation.
        l2_clip_norm: C; infinity only without noise.
        num_rounds: The horizon T: a round beyond it is refused.
        neighboring_relation: What may differ between two data sets that must look alike:
            one record zeroed out (site sizes public), added or removed, or replaced.
        privacy_unit: What one clipped gradient stands for: a record, or all of a patient's.
        sites_per_unit: The most sites that hold records of one unit, public: each of them clips,
            and what the whole guarantee costs multiplies.
    """

    sampling: Sampling
    noise: Noise
    l2_clip_norm: float
    num_rounds: int
    neighboring_relation: NeighboringRelation = "zero_out"
    privacy_unit: PrivacyUnit = "record"
    sites_per_unit: int = 1

    def __post_init__(self) -> None:
        check_choice("privacy_unit", self.privacy_unit, PRIVACY_UNITS)
        check_count("sites_per_unit", self.sites_per_unit)
        no_noise = self.noise.noise_multiplier == 0
        check_positive("l2_clip_norm", self.l2_clip_norm, allow_infinity=no_noise)
        check_count("num_rounds", self.num_rounds)
        check_choice("neighboring_relation", self.neighboring_relation, NEIGHBORING_RELATIONS)
        if isinstance(self.sampling, PoissonBatch) and self.neighboring_relation == "add_remove":
            raise ValueError(
                "a rate that depends on a site's size tells whether a record was added or removed: "
                "use neighboring_relation=zero_out or replace_one, or Poisson with one "
                "sampling_prob for all"
            )
        if isinstance(self.sampling, Cyclic) and self.neighboring_relation == "add_remove":
            raise ValueError(
                "a record that is added or removed moves all later ones into other batches of a "
                "cyclic order: use neighboring_relation=zero_out or replace_one"
            )

    @property
    def noise_multiplier(self) -> float:
        """κ.

        Raises:
            ValueError: If it has not been calibrated yet.
        """
        if self.noise.noise_multiplier is None:
            raise ValueError(
                "noise_multiplier is not set: give noise.noise_multiplier, or "
                "privacy.target_epsilon to have it calibrated"
            )
        return self.noise.noise_multiplier

    def with_noise_multiplier(self, noise_multiplier: float) -> Mechanism:
        """Return the same mechanism at another κ."""
        return replace(self, noise=replace(self.noise, noise_multiplier=noise_multiplier))

    def at_site(self, num_records: int) -> Mechanism:
        """Return the mechanism as the records of a site with n_k records meet it."""
        return replace(self, sampling=at_site(self.sampling, num_records))

    @property
    def sensitivity_factor(self) -> int:
        """Sensitivity of the sum in clip norms: 2 for replace-one, else 1."""
        return 2 if self.neighboring_relation == "replace_one" else 1

    def privatize(self, total: ClippedSum, *, round_index: int, streams: Streams) -> Release:
        """Add this round's noise to a sum: the only way a `Release` comes to be.

        Args:
            total: The sum over all sites, with its sensitivity.
            round_index: t, from 0.
            streams: The server's secret streams; Z_t belongs to this round for ever.

        Returns:
            total + κ C d_t (Z_t − λ Z_{t−1}), and its event.

        Raises:
            ValueError: If the sum is not finite, promises another sensitivity than the clip
                norm, or the round lies beyond the horizon.
        """
        if not 0 <= round_index < self.num_rounds:
            raise ValueError(
                f"expected round_index={round_index} in [0, {self.num_rounds}): the mechanism "
                f"was planned and accounted for {self.num_rounds} rounds"
            )
        if total.l2_sensitivity != self.l2_clip_norm:
            raise ValueError(
                f"expected a sum of sensitivity {self.l2_clip_norm:g} (l2_clip_norm), "
                f"got one that states {total.l2_sensitivity:g}"
            )
        if not np.isfinite(total.value).all():
            raise ValueError("expected a finite sum; nothing was released")
        value = total.value
        if self.noise_multiplier > 0:
            noise = draw_noise(
                self.noise,
                streams=streams,
                round_index=round_index,
                num_rounds=self.num_rounds,
                dimension=len(value),
            )
            noise *= total.l2_sensitivity
            value = np.add(value, noise, out=noise)
        event = ReleaseEvent(
            round_index=round_index,
            l2_sensitivity=total.l2_sensitivity,
            noise_multiplier=self.noise_multiplier,
            correlation=self.noise.correlation,
            column_normalized=self.noise.column_normalized,
            release_sha256=hashlib.sha256(value.data).hexdigest(),
        )
        std = noise_std(self.noise, round_index=round_index, num_rounds=self.num_rounds)
        return Release(value=value, event=event, noise_std=total.l2_sensitivity * std)
