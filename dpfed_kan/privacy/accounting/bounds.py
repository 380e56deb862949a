"""Which bounds hold for which sampler: the one place where a sampler meets its account.

| sampler | bounds |
|---|---|
| FullBatch, Cyclic, Poisson at q = 1 | one Gaussian, exact |
| Poisson | full participation, spectral, block-spectral, norm mixture, revealed pattern |
| FixedSize | full participation, amplification at sensitivity 2, revealed pattern |
| BallsInBins | deterministic; Monte Carlo with a stated confidence if draws are given |

Every bound holds under every neighbouring relation, with the pair that belongs to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpfed_kan._validate import check_count
from dpfed_kan.privacy.accounting.balls_in_bins import (
    balls_in_bins_epsilon,
    deterministic_bins_epsilon,
)
from dpfed_kan.privacy.accounting.block_spectral import block_spectral_epsilon
from dpfed_kan.privacy.accounting.fixed_size import (
    fixed_size_amplified_epsilon,
)
from dpfed_kan.privacy.accounting.gaussian import gaussian_epsilon
from dpfed_kan.privacy.accounting.mixture import NormLaw
from dpfed_kan.privacy.accounting.norm_mixture import norm_mixture_epsilon
from dpfed_kan.privacy.accounting.patterns import has_run_law, run_law
from dpfed_kan.privacy.accounting.revealed_pattern import revealed_pattern_epsilon
from dpfed_kan.privacy.accounting.spectral import independent_noise, spectral_epsilon
from dpfed_kan.privacy.joint_sampling import BallsInBins, FixedSize
from dpfed_kan.privacy.mechanism import Mechanism
from dpfed_kan.privacy.noising import NoNoise
from dpfed_kan.privacy.sampling import Cyclic, FullBatch, Poisson
from dpfed_kan.privacy.sensitivity import cyclic_sensitivity, full_batch_sensitivity

PATTERN_CUTOFF = 1e-3  # of δ, that may be left to participation patterns which are not listed


@dataclass(frozen=True, kw_only=True)
class Computation:
    """A bound still to be computed.

    Args:
        compute: From the least bound known so far (from which grids are chosen) to this bound
            and the name of its method.
        assumption: What it needs, in one line.
        quick: Whether it takes milliseconds rather than seconds.
    """

    compute: Callable[[float], tuple[float, str]]
    assumption: str
    quick: bool = True


def gaussian_sensitivity(mechanism: Mechanism, num_rounds: int) -> float | None:
    """Return ‖C y‖ of a fixed public schedule, or None if participation is random."""
    noise, horizon = mechanism.noise, mechanism.num_rounds
    match mechanism.sampling:
        case FullBatch() | Poisson(sampling_prob=1.0):
            return full_batch_sensitivity(noise, num_rounds=num_rounds, horizon=horizon)
        case Cyclic(num_batches=num_batches):
            return cyclic_sensitivity(
                noise, num_batches=num_batches, num_rounds=num_rounds, horizon=horizon
            )
        case _:
            return None


def valid_bounds(
    mechanism: Mechanism,
    num_rounds: int,
    delta: float,
    *,
    num_records: int | None = None,
    rng: np.random.Generator | None = None,
) -> list[Computation]:
    """Return the bounds that hold for a mechanism with noise.

    Args:
        mechanism: With κ > 0.
        num_rounds: Rounds that happened.
        delta: δ in (0, 1).
        num_records: n over all sites; fixed-size batches need it.
        rng: For the balls-in-bins draws; without it only the deterministic bound is given.

    Raises:
        TypeError: If there is no account for its sampler.
    """
    if num_rounds == 0:
        return [Computation(compute=lambda _: (0.0, "nothing was released"), assumption="none")]
    sensitivity = gaussian_sensitivity(mechanism, num_rounds)
    if sensitivity is not None:
        mu = mechanism.sensitivity_factor * sensitivity / mechanism.noise_multiplier
        return [
            Computation(
                compute=lambda _: (gaussian_epsilon(delta=delta, mu=mu), "one Gaussian, exact"),
                assumption="participation is a fixed public schedule",
            )
        ]
    match mechanism.sampling:
        case Poisson(sampling_prob=sampling_prob):
            return _poisson_bounds(mechanism, sampling_prob, num_rounds, delta)
        case FixedSize(batch_size=batch_size):
            prob = inclusion_prob(batch_size, num_records)
            return _fixed_size_bounds(mechanism, prob, num_rounds, delta)
        case BallsInBins(num_bins=num_bins):
            return _bins_bounds(mechanism, num_bins, num_rounds, delta, rng)
        case _:
            raise TypeError(f"there is no account for {type(mechanism.sampling).__name__} sampling")


def inclusion_prob(batch_size: int, num_records: int | None) -> float:
    """Return r = B/n of fixed-size batches.

    Raises:
        ValueError: If n is not given or smaller than B.
    """
    if num_records is None:
        raise ValueError(
            "fixed-size sampling takes its account from B/n: give num_records, the number of "
            "records of all sites"
        )
    check_count("num_records", num_records, low=batch_size, advice="a batch cannot be larger")
    return batch_size / num_records


def _full_participation(
    mechanism: Mechanism, num_rounds: int, delta: float, sensitivity_factor: int
) -> Computation:
    sensitivity = full_batch_sensitivity(
        mechanism.noise, num_rounds=num_rounds, horizon=mechanism.num_rounds
    )
    mu = sensitivity_factor * sensitivity / mechanism.noise_multiplier
    return Computation(
        compute=lambda _: (gaussian_epsilon(delta=delta, mu=mu), "one Gaussian, every round"),
        assumption="none on the sampling: no amplification",
    )


def _poisson_bounds(
    mechanism: Mechanism, sampling_prob: float, num_rounds: int, delta: float
) -> list[Computation]:
    factor = mechanism.sensitivity_factor

    def spectral(_: float) -> tuple[float, str]:
        epsilon = spectral_epsilon(
            mechanism.noise,
            noise_multiplier=mechanism.noise_multiplier,
            sampling_prob=sampling_prob,
            num_rounds=num_rounds,
            horizon=mechanism.num_rounds,
            delta=delta,
            neighboring_relation=mechanism.neighboring_relation,
        )
        name = "" if mechanism.noise.correlation == 0 else "spectral bound, "
        return epsilon, f"{name}PLD of the Poisson-subsampled Gaussian"

    def block(known: float) -> tuple[float, str]:
        bound = block_spectral_epsilon(
            mechanism.noise,
            noise_multiplier=mechanism.noise_multiplier,
            sampling_prob=sampling_prob,
            num_rounds=num_rounds,
            horizon=mechanism.num_rounds,
            delta=delta,
            neighboring_relation=mechanism.neighboring_relation,
            known_epsilon=known,
        )
        blocks = "single rounds" if bound.width == 1 else f"blocks of {bound.width} rounds"
        return bound.epsilon, f"block-spectral bound, {blocks}"

    found = [
        _full_participation(mechanism, num_rounds, delta, factor),
        Computation(compute=spectral, assumption="Poisson sampling"),
    ]
    if mechanism.noise.correlation > 0:
        found.append(Computation(compute=block, assumption="Poisson sampling", quick=False))
    if not has_run_law(mechanism.noise, num_rounds=num_rounds):
        return found

    def mixture(_: float) -> tuple[float, str]:
        epsilon = norm_mixture_epsilon(
            _law(mechanism, sampling_prob, num_rounds, delta),
            noise_multiplier=mechanism.noise_multiplier,
            delta=delta,
            neighboring_relation=mechanism.neighboring_relation,
        )
        return epsilon, "norm mixture"

    return [
        *found,
        Computation(compute=mixture, assumption="Poisson sampling", quick=False),
        _revealed(mechanism, sampling_prob, num_rounds, delta, factor),
    ]


def _fixed_size_bounds(
    mechanism: Mechanism, prob: float, num_rounds: int, delta: float
) -> list[Computation]:
    """Return what holds for fixed-size batches; see fixed_size.py for the factors."""
    relation = mechanism.neighboring_relation
    factor = 1 if relation == "zero_out" else 2

    def amplified(_: float) -> tuple[float, str]:
        epsilon = fixed_size_amplified_epsilon(
            inclusion_prob=prob,
            noise_multiplier=independent_noise(
                mechanism.noise,
                noise_multiplier=mechanism.noise_multiplier,
                num_rounds=num_rounds,
                horizon=mechanism.num_rounds,
            ),
            num_rounds=num_rounds,
            delta=delta,
            neighboring_relation=relation,
        )
        return epsilon, "PLD of sampling without replacement at sensitivity 2"

    found = [
        _full_participation(mechanism, num_rounds, delta, factor),
        Computation(compute=amplified, assumption="independent batches, without replacement"),
    ]
    if has_run_law(mechanism.noise, num_rounds=num_rounds):
        found.append(_revealed(mechanism, prob, num_rounds, delta, factor))
    return found


def _revealed(
    mechanism: Mechanism, prob: float, num_rounds: int, delta: float, factor: int
) -> Computation:
    def revealed(_: float) -> tuple[float, str]:
        epsilon = revealed_pattern_epsilon(
            _law(mechanism, prob, num_rounds, delta),
            noise_multiplier=mechanism.noise_multiplier,
            sensitivity_factor=factor,
            delta=delta,
        )
        return epsilon, "revealed pattern"

    return Computation(
        compute=revealed, assumption="batches drawn independently of the data", quick=False
    )


def _bins_bounds(
    mechanism: Mechanism,
    num_bins: int,
    num_rounds: int,
    delta: float,
    rng: np.random.Generator | None,
) -> list[Computation]:
    if isinstance(mechanism.noise, NoNoise):
        raise TypeError("there is no account without noise")
    noise = mechanism.noise
    facts = {
        "num_bins": num_bins,
        "num_rounds": num_rounds,
        "horizon": mechanism.num_rounds,
        "sensitivity_factor": mechanism.sensitivity_factor,
    }

    def deterministic(_: float) -> tuple[float, str]:
        found = deterministic_bins_epsilon(noise=noise, delta=delta, **facts)
        return found.epsilon, found.method

    def drawn(_: float) -> tuple[float, str]:
        found = balls_in_bins_epsilon(
            noise=noise, delta=delta, rng=rng or np.random.default_rng(), **facts
        )
        return found.epsilon, found.method

    once = "each record's bin is drawn once for the run"
    found = [Computation(compute=deterministic, assumption=once)]
    if rng is not None:
        found.append(
            Computation(
                compute=drawn,
                assumption=f"{once}; the draws were made once, apart from the records",
                quick=False,
            )
        )
    return found


def _law(mechanism: Mechanism, prob: float, num_rounds: int, delta: float) -> NormLaw:
    return run_law(
        mechanism.noise,
        sampling_prob=prob,
        num_rounds=num_rounds,
        horizon=mechanism.num_rounds,
        cutoff=PATTERN_CUTOFF * delta,
    )
