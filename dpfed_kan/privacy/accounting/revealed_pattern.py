"""The revealed pattern: who took part in which round is given away, the noise protects the rest.

δ(ε) = E_y δ_Gauss(ε; s‖C y‖/κ), by joint convexity of the hockey-stick divergence over the batches,
whose law does not depend on the data. It holds for every data-independent sampler, Poisson and
fixed-size alike, without amplification (README.md).
"""

from __future__ import annotations

import math

from scipy.optimize import brentq

from dpfed_kan.privacy.accounting.gaussian import gaussian_deltas, gaussian_epsilon
from dpfed_kan.privacy.accounting.mixture import NormLaw


def revealed_pattern_epsilon(
    law: NormLaw, *, noise_multiplier: float, sensitivity_factor: float, delta: float
) -> float:
    """Return the least ε with E_y δ_Gauss(ε; s‖C y‖/κ) ≤ δ, rounded up.

    Args:
        law: Of ‖C y‖, in clip norms.
        noise_multiplier: κ > 0.
        sensitivity_factor: s: how many clip norms a round in which the record takes part moves
            when the batches are the same; 1 for zero-out, 2 for replace-one.
        delta: δ in (0, 1).
    """
    if law.beyond >= delta:
        return math.inf
    moved = law.norms > 0
    if not moved.any():
        return 0.0
    mus = law.norms[moved] * sensitivity_factor / noise_multiplier
    probs = law.probs[moved]

    def excess(epsilon: float) -> float:
        deltas = gaussian_deltas(epsilon=epsilon, mus=mus)
        return float(deltas @ probs) + law.beyond - delta

    if excess(0.0) <= 0:
        return 0.0
    high = gaussian_epsilon(delta=delta - law.beyond, mu=float(mus[-1]))
    if excess(high) > 0:  # equal to rounding
        return high * (1 + 1e-12)
    epsilon = float(brentq(excess, 0.0, high, xtol=1e-10, rtol=1e-12))
    while excess(epsilon) > 0:
        epsilon = epsilon * (1 + 1e-10) + 1e-10
    return epsilon
