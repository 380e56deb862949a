"""`Experiment`: everything that a run depends on, as the yaml builds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dpfed_kan._validate import check_choice, check_count, check_number, check_positive
from dpfed_kan.data.federation import FederatedData
from dpfed_kan.federated.deployed import Deployed
from dpfed_kan.federated.runtimes import Fused, InProcess, Precision, Ray, Workers
from dpfed_kan.kan import TwoLayerKAN
from dpfed_kan.models.spec import CNN, MLP, UserModule
from dpfed_kan.privacy.joint_sampling import BallsInBins, FixedSize
from dpfed_kan.privacy.mechanism import (
    PRIVACY_UNITS,
    Mechanism,
    NeighboringRelation,
    PrivacyUnit,
)
from dpfed_kan.privacy.noising import GaussianNoise, NoNoise
from dpfed_kan.privacy.sampling import Cyclic, FullBatch, Poisson, PoissonBatch
from dpfed_kan.streams import Streams
from dpfed_kan.update.adaclip import AdaClip
from dpfed_kan.update.adam import DPAdam
from dpfed_kan.update.adam_bc import DPAdamBC
from dpfed_kan.update.macadam import DPMacAdam
from dpfed_kan.update.macadam_bc import DPMacAdamBC
from dpfed_kan.update.sgd import ProjectedSGD

_MEASUREMENTS = 20


@dataclass(frozen=True, kw_only=True)
class PrivacySettings:
    """The target and the clip.

    Args:
        l2_clip_norm: C, the bound on one record's gradient.
        target_epsilon: ε that the whole run may spend; None if the noise multiplier is given.
        target_delta: δ of the target and of every ε that is reported; below 1/n of every site.
        neighboring_relation: What may differ between two data sets that must look alike: one
            record zeroed out, or replaced. A run publishes the sites' sizes and divides by them,
            so it cannot hide that a record was added or removed, and does not claim to.
        privacy_unit: record, or patient: a patient's records are clipped, sampled and held out
            together.
        sites_per_patient: The most sites that may hold records of one patient; above 1 the
            guarantee multiplies, and data that exceed it are refused.
    """

    l2_clip_norm: float
    target_epsilon: float | None
    target_delta: float
    neighboring_relation: NeighboringRelation = "zero_out"
    privacy_unit: PrivacyUnit = "record"
    sites_per_patient: int = 1

    def __post_init__(self) -> None:
        check_positive("l2_clip_norm", self.l2_clip_norm, allow_infinity=True)
        check_number(
            "target_delta", self.target_delta, low=0.0, high=1.0, low_open=True, high_open=True
        )
        if self.target_epsilon is not None:
            check_positive("target_epsilon", self.target_epsilon)
        if self.neighboring_relation == "add_remove":
            raise ValueError(
                "neighboring_relation=add_remove cannot be promised by a run, which publishes the "
                "sites' sizes and divides by them: use zero_out (the same ε, sizes public) or "
                "replace_one"
            )
        check_choice("privacy_unit", self.privacy_unit, PRIVACY_UNITS)
        check_count("sites_per_patient", self.sites_per_patient)
        if self.sites_per_patient > 1 and self.privacy_unit != "patient":
            raise ValueError("sites_per_patient above 1 needs privacy_unit=patient")


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything that a run depends on, besides fresh randomness.

    Args:
        data: Source, held-out share, partition over sites.
        model: The network.
        sampling: Who takes part in a round.
        noise: Noise over the rounds; with a multiplier of None it is calibrated to the target.
        privacy: Target and clip.
        update: From a release to new params.
        runtime: Where the sites run.
        num_rounds: T.
        evaluate_every: Rounds between two measurements on the held-out records; None for twenty
            measurements in a run.
        seed: None for fresh randomness of the operating system; a number makes the run a
            declared simulation, noise included, and the report says so.
    """

    data: FederatedData
    model: TwoLayerKAN | MLP | CNN | UserModule
    sampling: Poisson | PoissonBatch | FixedSize | Cyclic | BallsInBins | FullBatch
    noise: GaussianNoise | NoNoise
    privacy: PrivacySettings
    update: ProjectedSGD | DPAdam | DPAdamBC | AdaClip | DPMacAdam | DPMacAdamBC
    runtime: Fused | Workers | InProcess | Ray | Deployed
    num_rounds: int
    evaluate_every: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        check_count("num_rounds", self.num_rounds)
        if self.evaluate_every is not None:
            check_count("evaluate_every", self.evaluate_every)
        if self.precision == "float32":
            self._check_single_precision()
        calibrated = self.noise.noise_multiplier is None
        if calibrated and self.privacy.target_epsilon is None:
            raise ValueError(
                "the noise is undetermined: give privacy.target_epsilon to have it calibrated, or "
                "noise.noise_multiplier"
            )
        chosen = isinstance(self.noise, GaussianNoise) and not calibrated
        if chosen and self.privacy.target_epsilon is not None:
            raise ValueError(
                "the noise is determined twice: with noise.noise_multiplier given, set "
                "privacy.target_epsilon=null (the report says what ε was spent)"
            )

    def _check_single_precision(self) -> None:
        """Refuse what the bound of `privacy/single_precision.py` is not proved for."""
        plain = isinstance(self.update, (ProjectedSGD, DPAdam, DPAdamBC))
        one_layer = isinstance(self.model, TwoLayerKAN) and not self.model.train_second_layer
        if not (plain and one_layer and self.privacy.privacy_unit == "record"):
            raise ValueError(
                "runtime.precision=float32 is for model=kan with model.train_second_layer=false, "
                "update sgd, adam or adam_bc, and privacy.privacy_unit=record; everything else "
                "needs runtime.precision=float64"
            )

    @property
    def precision(self) -> Precision:
        """Of the large products; float64 wherever the runtime offers no other."""
        return self.runtime.precision if isinstance(self.runtime, Fused) else "float64"

    @property
    def evaluation_interval(self) -> int:
        """Rounds between two measurements."""
        return self.evaluate_every or max(1, self.num_rounds // _MEASUREMENTS)

    def streams(self) -> Streams:
        """Return the run's streams: fresh, or of the seed."""
        return Streams.from_entropy() if self.seed is None else Streams.from_seed(self.seed)

    def mechanism(self, num_records: Mapping[str, int]) -> Mechanism:
        """Return the mechanism, its noise calibrated where the target asks for it.

        Args:
            num_records: Site name to n_k; the target is kept at every site.
        """
        mechanism = Mechanism(
            sampling=self.sampling,
            noise=self.noise,
            l2_clip_norm=self.privacy.l2_clip_norm,
            num_rounds=self.num_rounds,
            neighboring_relation=self.privacy.neighboring_relation,
            privacy_unit=self.privacy.privacy_unit,
            sites_per_unit=self.privacy.sites_per_patient,
        )
        if self.noise.noise_multiplier is not None or self.privacy.target_epsilon is None:
            return mechanism
        from dpfed_kan.privacy.accounting.sites import records_of_account  # loads scipy: when
        from dpfed_kan.privacy.calibration import calibrate  # needed, not when configured

        smallest = min(num_records, key=lambda site: num_records[site])  # has the largest q_k
        calibrated = calibrate(
            mechanism.at_site(num_records[smallest]),
            target_epsilon=self.privacy.target_epsilon,
            target_delta=self.privacy.target_delta,
            num_records=records_of_account(mechanism, num_records, smallest),
        )
        return mechanism.with_noise_multiplier(calibrated.noise_multiplier)
