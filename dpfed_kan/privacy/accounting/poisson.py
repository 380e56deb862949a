"""Poisson-subsampled Gaussian, independent over rounds: privacy loss distributions.

dp-accounting's connect-the-dots discretisation is a rigorous upper bound for any grid, in both
directions (arXiv 2207.04380). The grid here is chosen so that time and memory stay bounded.
"""

from __future__ import annotations

import math
from functools import lru_cache

from dp_accounting import NeighboringRelation as DpaRelation
from dp_accounting.pld import privacy_loss_distribution as pld

from dpfed_kan.privacy.accounting.gaussian import gaussian_epsilon
from dpfed_kan.privacy.mechanism import NeighboringRelation

_FINEST, _MAX_CELLS = 1e-4, 4e6
_RELATIONS = {
    "zero_out": DpaRelation.REPLACE_SPECIAL,
    "add_remove": DpaRelation.ADD_OR_REMOVE_ONE,
    "replace_one": DpaRelation.REPLACE_ONE,
}


def poisson_epsilon(
    *,
    sampling_prob: float,
    noise_multiplier: float,
    num_rounds: int,
    delta: float,
    neighboring_relation: NeighboringRelation,
) -> float:
    """Return an upper bound on ε after T rounds of the Poisson-subsampled Gaussian.

    Args:
        sampling_prob: q in (0, 1]; at q = 1 the exact Gaussian account is used.
        noise_multiplier: σ > 0, noise std per clip norm.
        num_rounds: T.
        delta: δ in (0, 1).
        neighboring_relation: Replace-one needs its own pair; the other two share one.
    """
    factor = 2 if neighboring_relation == "replace_one" else 1
    no_amplification = gaussian_epsilon(
        delta=delta, mu=factor * math.sqrt(num_rounds) / noise_multiplier
    )
    if sampling_prob == 1 or no_amplification == 0:
        return no_amplification

    def composed(interval: float) -> float:
        step = _one_round(sampling_prob, noise_multiplier, interval, neighboring_relation)
        return float(step.self_compose(num_rounds).get_epsilon_for_delta(delta))

    coarse = _interval(no_amplification, noise_multiplier)
    bound = min(no_amplification, composed(coarse))
    fine = _interval(bound, noise_multiplier)
    if fine < coarse:
        bound = min(bound, composed(fine))
    return max(0.0, bound)


@lru_cache(maxsize=64)
def _one_round(
    sampling_prob: float,
    noise_multiplier: float,
    interval: float,
    neighboring_relation: NeighboringRelation,
) -> pld.PrivacyLossDistribution:
    return pld.from_gaussian_mechanism(
        noise_multiplier,
        sampling_prob=sampling_prob,
        value_discretization_interval=interval,
        neighboring_relation=_RELATIONS[neighboring_relation],
    )


def _interval(epsilon: float, noise_multiplier: float) -> float:
    """Return a grid interval: fine where ε is small, coarse where the losses would not fit."""
    largest_loss = 0.5 / noise_multiplier**2 + 10.0 / noise_multiplier + epsilon
    return max(_FINEST * min(1.0, max(epsilon, 1e-3)), 2 * largest_loss / _MAX_CELLS)
