"""The norm mixture: the whole run as one release whose norm ‖C y‖ is random.

Given the pattern y ∈ {0,1}^T of a record's participations the run is one Gaussian of norm ‖C y‖;
two patterns' means have inner product at most ‖C y‖‖C y'‖, and aligned means are the worst case
(README.md, "Gaussian comparison"). Poisson sampling only: other samplers move other records too.
"""

from __future__ import annotations

import math

from dpfed_kan.privacy.accounting.mixture import NormLaw, directions, mixture_epsilon
from dpfed_kan.privacy.mechanism import NeighboringRelation


def norm_mixture_epsilon(
    law: NormLaw,
    *,
    noise_multiplier: float,
    delta: float,
    neighboring_relation: NeighboringRelation,
) -> float:
    """Return the larger ε of the directions.

    Args:
        law: Of ‖C y‖, in clip norms.
        noise_multiplier: κ > 0.
        delta: δ in (0, 1).
        neighboring_relation: Replace-one compares norms of opposite sign.
    """
    if math.isinf(noise_multiplier):
        return 0.0
    scaled = law.scaled(1 / noise_multiplier)
    return max(
        mixture_epsilon(scaled, delta=delta, direction=direction)
        for direction in directions(neighboring_relation)
    )
