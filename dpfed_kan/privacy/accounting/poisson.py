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
from dpfed_kan.privacy.accounting.loss_distribution import (
    LossDistribution,
    dense,
    grid_interval,
    loss_epsilon,
    repeated,
)
from dpfed_kan.privacy.mechanism import NeighboringRelation

_MAX_STEP_CELLS, _ACCURACY = 2e6, 0.5
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
    bound = gaussian_epsilon(delta=delta, mu=factor * math.sqrt(num_rounds) / noise_multiplier)
    if sampling_prob == 1 or bound == 0:
        return bound
    interval = math.inf
    for _ in range(4):  # from the unamplified ε down to a grid that suits the answer
        finer = poisson_interval(
            epsilon=bound, noise_multiplier=noise_multiplier, num_rounds=num_rounds
        )
        if finer > 0.7 * interval:
            break
        interval = finer
        try:
            loss = poisson_loss(
                sampling_prob=sampling_prob,
                noise_multiplier=noise_multiplier,
                num_rounds=num_rounds,
                neighboring_relation=neighboring_relation,
                interval=interval,
            )
        except OverflowError:  # the coarser grid's answer stands
            break
        bound = min(bound, loss_epsilon(loss, delta=delta, num_compositions=num_rounds))
    return bound


def poisson_loss(
    *,
    sampling_prob: float,
    noise_multiplier: float,
    num_rounds: int,
    neighboring_relation: NeighboringRelation,
    interval: float,
) -> LossDistribution:
    """Return the loss distribution of T rounds on a grid.

    Args:
        sampling_prob: q in (0, 1].
        noise_multiplier: σ > 0.
        num_rounds: T.
        neighboring_relation: Gives the pairs.
        interval: Gap of the grid.

    Raises:
        OverflowError: If the grid would not fit.
    """
    if _largest_loss(noise_multiplier) > interval * _MAX_STEP_CELLS:
        raise OverflowError(f"interval={interval:g} is too fine for noise {noise_multiplier:g}")
    step = _one_round(sampling_prob, noise_multiplier, interval, neighboring_relation)
    return repeated(step, num_rounds)


def poisson_interval(*, epsilon: float, noise_multiplier: float, num_rounds: int) -> float:
    """Return a grid interval that suits ε and fits into memory."""
    wanted = grid_interval(epsilon=epsilon, num_compositions=num_rounds, accuracy=_ACCURACY)
    return max(wanted, 1.01 * _largest_loss(noise_multiplier) / _MAX_STEP_CELLS)


@lru_cache(maxsize=16)
def _one_round(
    sampling_prob: float,
    noise_multiplier: float,
    interval: float,
    neighboring_relation: NeighboringRelation,
) -> LossDistribution:
    step = pld.from_gaussian_mechanism(
        noise_multiplier,
        sampling_prob=sampling_prob,
        value_discretization_interval=interval,
        neighboring_relation=_RELATIONS[neighboring_relation],
    )
    return dense(step)


def _largest_loss(noise_multiplier: float) -> float:
    """Return about the range of one round's losses: the tails are cut 10 std away."""
    return 4.0 / noise_multiplier**2 + 40.0 / noise_multiplier
