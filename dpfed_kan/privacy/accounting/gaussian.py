"""One Gaussian: the exact account of a single release of sensitivity μ under unit noise.

δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ) (Balle and Wang, arXiv 1805.06530).
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr

from dpfed_kan._validate import check_number
from dpfed_kan.privacy.clipping import Vector

_RELATIVE_SLACK = 1e-12


def gaussian_delta(*, epsilon: float, mu: float) -> float:
    """Return δ(ε) of N(μ, 1) against N(0, 1), computed in logarithms.

    Args:
        epsilon: ε ≥ 0.
        mu: μ ≥ 0, sensitivity over noise std; infinite without noise.
    """
    check_number("mu", mu, low=0.0)
    if mu == 0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    first = float(log_ndtr(mu / 2 - epsilon / mu))
    second = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    if second >= first:  # equal to rounding: the difference is below what can be told from 0
        return 0.0
    return float(np.exp(first) * -np.expm1(second - first))


def gaussian_deltas(*, epsilon: float, mus: Vector) -> Vector:
    """Return δ(ε) for many μ > 0 at once, shape as `mus`."""
    first = log_ndtr(mus / 2 - epsilon / mus)
    second = epsilon + log_ndtr(-mus / 2 - epsilon / mus)
    return np.asarray(np.exp(first) * -np.expm1(np.minimum(second - first, 0.0)))


def gaussian_epsilon(*, delta: float, mu: float) -> float:
    """Return the least ε with δ(ε) ≤ δ, rounded up.

    Args:
        delta: δ in (0, 1).
        mu: μ ≥ 0, sensitivity over noise std.
    """
    check_number("delta", delta, low=0.0, high=1.0, low_open=True, high_open=True)
    if math.isinf(mu):
        return math.inf
    if gaussian_delta(epsilon=0.0, mu=mu) <= delta:
        return 0.0
    high = mu**2 / 2 + mu * math.sqrt(2 * math.log(1 / delta))  # zCDP's bound
    while gaussian_delta(epsilon=high, mu=mu) > delta:
        high *= 2
    root = float(
        brentq(
            lambda e: gaussian_delta(epsilon=e, mu=mu) - delta, 0.0, high, xtol=1e-13, rtol=1e-14
        )
    )
    while gaussian_delta(epsilon=root, mu=mu) > delta:
        root = root * (1 + _RELATIVE_SLACK) + 1e-15
    return root
