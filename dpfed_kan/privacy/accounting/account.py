"""`account`: every valid bound for a mechanism, the least of them as the answer."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from dpfed_kan._validate import check_count, check_number
from dpfed_kan.privacy.accounting.gaussian import gaussian_epsilon
from dpfed_kan.privacy.accounting.poisson import poisson_epsilon
from dpfed_kan.privacy.accounting.prv import prv_interval
from dpfed_kan.privacy.mechanism import Mechanism
from dpfed_kan.privacy.sampling import Cyclic, FullBatch, Poisson
from dpfed_kan.privacy.sensitivity import (
    cyclic_sensitivity,
    full_batch_sensitivity,
    spectral_norm,
)

TRUST = (
    "the coordinating server, which sees each site's un-noised sum, and each site with its own "
    "records; protected against everybody else who sees the released models"
)


@dataclass(frozen=True, kw_only=True)
class Bound:
    """One valid upper bound on ε.

    Args:
        epsilon: ε.
        method: How it was computed.
        assumption: What it needs, in one line.
        seconds: How long it took.
    """

    epsilon: float
    method: str
    assumption: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class PrivacyGuarantee:
    """(ε, δ) with all that makes it a statement: unit, relation, sampling, trust, method.

    Args:
        epsilon: An upper bound, ≥ 0.
        delta: δ.
        num_rounds: Rounds that it covers.
        unit: What is protected.
        neighboring_relation: What may differ between the two data sets.
        sampling: The sampler and its rate.
        noise: The noise and its correlation.
        noise_multiplier: κ.
        trust: Who must be trusted.
        best: The bound that gave ε.
        tried: All valid bounds that were computed.
        check: What an independent accountant said, or why none was asked.
    """

    epsilon: float
    delta: float
    num_rounds: int
    unit: str
    neighboring_relation: str
    sampling: str
    noise: str
    noise_multiplier: float
    trust: str
    best: Bound
    tried: tuple[Bound, ...]
    check: str

    @property
    def sentence(self) -> str:
        """The guarantee in one sentence."""
        relation = self.neighboring_relation.replace("_", "-")
        return (
            f"({self.epsilon:.4g}, {self.delta:g})-differential privacy of one {self.unit} under "
            f"{relation} neighbours, for {self.num_rounds} rounds of {self.sampling} sampling "
            f"with {self.noise} (κ={self.noise_multiplier:.4g}); "
            f"trusted: {self.trust}; accountant: {self.best.method}"
        )


@dataclass(frozen=True, kw_only=True)
class NonPrivate:
    """No noise was added: ε = ∞, whatever δ.

    Args:
        num_rounds: Rounds that were run.
        reason: Why there is no guarantee.
    """

    num_rounds: int
    reason: str = "no noise was added"

    @property
    def epsilon(self) -> float:
        """∞."""
        return math.inf

    @property
    def sentence(self) -> str:
        """The absence of a guarantee in one sentence."""
        return (
            f"NO PRIVACY: ε = ∞ after {self.num_rounds} rounds, because {self.reason}; "
            "the released models may reveal any record"
        )


def account(
    mechanism: Mechanism,
    *,
    delta: float,
    num_rounds: int | None = None,
    cross_check: bool = False,
    unit: str = "record",
) -> PrivacyGuarantee | NonPrivate:
    """Return what a run of a mechanism guarantees.

    Guarantees:
        ε is an upper bound for the whole run, never an estimate: the least of the valid bounds.

    Args:
        mechanism: With its noise multiplier set.
        delta: δ in (0, 1).
        num_rounds: Rounds that happened, ≤ the horizon; None for the whole horizon.
        cross_check: Ask an independent accountant too, where there is one; if the two disagree
            beyond their stated errors the larger ε is reported, and said so.
        unit: What one clipped gradient stands for.

    Raises:
        ValueError: If δ or the number of rounds is out of range.
        TypeError: If there is no account for the mechanism.
    """
    if isinstance(mechanism, Mechanism) and mechanism.sites_per_unit > 1:
        raise ValueError("this account is of a unit at one site; use several_sites.account")
    if not isinstance(mechanism, Mechanism):
        raise TypeError(f"there is no account for {type(mechanism).__name__}")
    advice = "a δ near 1/n lets whole records leak; use one well below"
    check_number("delta", delta, low=0.0, high=1.0, low_open=True, high_open=True, advice=advice)
    rounds = mechanism.num_rounds if num_rounds is None else num_rounds
    check_count("num_rounds", rounds, low=0)
    if rounds > mechanism.num_rounds:
        raise ValueError(
            f"expected num_rounds={rounds} of at most {mechanism.num_rounds}, the horizon that the "
            "mechanism was planned for; plan a new mechanism for more"
        )
    if rounds > 0 and mechanism.noise_multiplier == 0:
        return NonPrivate(num_rounds=rounds)
    tried = tuple(_timed(compute) for compute in _bounds(mechanism, rounds, delta))
    best = min(tried, key=lambda bound: bound.epsilon)
    check = "not asked"
    if cross_check:
        best, check = _cross_checked(best, mechanism, rounds, delta)
    return PrivacyGuarantee(
        epsilon=best.epsilon,
        delta=delta,
        num_rounds=rounds,
        unit=unit,
        neighboring_relation=mechanism.neighboring_relation,
        sampling=mechanism.sampling.describe(),
        noise=mechanism.noise.describe(),
        noise_multiplier=mechanism.noise_multiplier,
        trust=TRUST,
        best=best,
        tried=tried,
        check=check,
    )


_Computation = Callable[[], tuple[float, str, str]]


def _timed(compute: _Computation) -> Bound:
    start = time.perf_counter()
    epsilon, method, assumption = compute()
    seconds = time.perf_counter() - start
    return Bound(epsilon=epsilon, method=method, assumption=assumption, seconds=seconds)


def _bounds(mechanism: Mechanism, rounds: int, delta: float) -> list[_Computation]:
    """List the computations of every bound that is valid for a mechanism."""
    if rounds == 0:
        return [lambda: (0.0, "nothing was released", "none")]
    match mechanism.sampling:
        case FullBatch():
            sensitivity = full_batch_sensitivity(
                mechanism.noise, num_rounds=rounds, horizon=mechanism.num_rounds
            )
            return [lambda: _one_gaussian(mechanism, sensitivity, delta)]
        case Cyclic(num_batches=num_batches):
            sensitivity = cyclic_sensitivity(
                mechanism.noise,
                num_batches=num_batches,
                num_rounds=rounds,
                horizon=mechanism.num_rounds,
            )
            return [lambda: _one_gaussian(mechanism, sensitivity, delta)]
        case Poisson(sampling_prob=1.0):
            sensitivity = full_batch_sensitivity(
                mechanism.noise, num_rounds=rounds, horizon=mechanism.num_rounds
            )
            return [lambda: _one_gaussian(mechanism, sensitivity, delta)]
        case Poisson(sampling_prob=sampling_prob):
            return [lambda: _spectral(mechanism, sampling_prob, rounds, delta)]
        case _:
            raise TypeError(f"there is no account for {type(mechanism.sampling).__name__} sampling")


def _one_gaussian(mechanism: Mechanism, sensitivity: float, delta: float) -> tuple[float, str, str]:
    mu = mechanism.sensitivity_factor * sensitivity / mechanism.noise_multiplier
    return (
        gaussian_epsilon(delta=delta, mu=mu),
        "one Gaussian, exact",
        "participation is a fixed public schedule",
    )


def _spectral(
    mechanism: Mechanism, sampling_prob: float, rounds: int, delta: float
) -> tuple[float, str, str]:
    """Account for λ > 0 through M = C⁻¹C⁻ᵀ ⪰ ‖C‖₂⁻² I.

    The noise is independent noise of std κ/‖C‖₂ plus an independent rest, which is
    post-processing; at λ = 0 the norm is 1 and nothing is given away.
    """
    epsilon = poisson_epsilon(
        sampling_prob=sampling_prob,
        noise_multiplier=_independent_part(mechanism, rounds),
        num_rounds=rounds,
        delta=delta,
        neighboring_relation=mechanism.neighboring_relation,
    )
    spectral = "" if mechanism.noise.correlation == 0 else "spectral bound, "
    return epsilon, f"{spectral}PLD of the Poisson-subsampled Gaussian", "Poisson sampling"


def _independent_part(mechanism: Mechanism, rounds: int) -> float:
    norm = spectral_norm(mechanism.noise, num_rounds=rounds, horizon=mechanism.num_rounds)
    return mechanism.noise_multiplier / norm


def _cross_checked(
    best: Bound, mechanism: Mechanism, rounds: int, delta: float
) -> tuple[Bound, str]:
    """Compare a Poisson account with PRV, keeping the larger where they disagree."""
    sampling = mechanism.sampling
    if not isinstance(sampling, Poisson) or "PLD" not in best.method or rounds == 0:
        return best, "not needed: the account is exact"
    if mechanism.neighboring_relation == "replace_one":
        return best, "none: PRV has no replace-one pair"
    interval = prv_interval(
        sampling_prob=sampling.sampling_prob,
        noise_multiplier=_independent_part(mechanism, rounds),
        num_rounds=rounds,
        delta=delta,
    )
    if interval is None:
        return best, "none: outside the range in which PRV can be trusted to return"
    text = f"PRV says [{interval.lower:.4g}, {interval.upper:.4g}]"
    if best.epsilon >= interval.lower:
        return best, f"{text}: agrees"
    larger = Bound(
        epsilon=interval.upper,
        method="PRV, the larger of two accountants that disagree",
        assumption=best.assumption,
        seconds=best.seconds,
    )
    return larger, f"{text}: DISAGREES with {best.epsilon:.4g}; the larger is reported"
