"""The spectral bound: correlated noise is at least independent noise of std κ/‖C‖₂.

M = C⁻¹C⁻ᵀ ⪰ ‖C‖₂⁻² I, so the noise is independent noise of that std plus an independent rest, which
is post-processing. It holds for every sampler, every relation and adaptively (README.md).
"""

from __future__ import annotations

from dpfed_kan.privacy.accounting.poisson import poisson_epsilon
from dpfed_kan.privacy.mechanism import NeighboringRelation
from dpfed_kan.privacy.noising import Noise
from dpfed_kan.privacy.sensitivity import spectral_norm


def independent_noise(
    noise: Noise, *, noise_multiplier: float, num_rounds: int, horizon: int
) -> float:
    """Return κ/‖C‖₂, the std of the independent noise that is inside the correlated one."""
    return noise_multiplier / spectral_norm(noise, num_rounds=num_rounds, horizon=horizon)


def spectral_epsilon(
    noise: Noise,
    *,
    noise_multiplier: float,
    sampling_prob: float,
    num_rounds: int,
    horizon: int,
    delta: float,
    neighboring_relation: NeighboringRelation,
) -> float:
    """Return the account of Poisson sampling with independent noise κ/‖C‖₂.

    Args:
        noise: Gives λ and the row scales.
        noise_multiplier: κ > 0.
        sampling_prob: q.
        num_rounds: Rounds that happened.
        horizon: Rounds planned.
        delta: δ in (0, 1).
        neighboring_relation: Replace-one needs its own pair.
    """
    return poisson_epsilon(
        sampling_prob=sampling_prob,
        noise_multiplier=independent_noise(
            noise, noise_multiplier=noise_multiplier, num_rounds=num_rounds, horizon=horizon
        ),
        num_rounds=num_rounds,
        delta=delta,
        neighboring_relation=neighboring_relation,
    )
