"""The independent check of the Poisson account: privacy random variables (arXiv 2106.02848).

prv-accountant 0.2.0 takes the mean of the truncated privacy loss by a quadrature that is too
coarse for large losses, so its interval can miss the truth; here the mean is integrated over
geometric cells. Settings on which the library never returns are refused before it is called.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from prv_accountant import PRVAccountant
from prv_accountant.accountant import compute_safe_domain_size
from prv_accountant.composers import Heterogeneous
from prv_accountant.discretisers import CellCentred
from prv_accountant.domain import Domain
from prv_accountant.privacy_random_variables import (
    PoissonSubsampledGaussianMechanism,
    PrivacyRandomVariableTruncated,
)

_EPS_ERROR = 0.01
_MIN_NOISE, _MAX_NOISE, _MIN_DELTA, _MAX_DOMAIN = 0.3, 1e3, 1e-11, 200.0
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)


@dataclass(frozen=True, kw_only=True)
class PrvInterval:
    """An estimate of ε and the error bounds the method states for it."""

    lower: float
    estimate: float
    upper: float


class _FineMean(PrivacyRandomVariableTruncated):  # type: ignore[misc]  # untyped library
    def mean(self) -> float:
        """Return t_max F(t_max) − t_min F(t_min) − ∫ F, cell by cell."""
        reach = np.geomspace(1e-7, max(-self.t_min, self.t_max), 120)
        kink = [float(np.log1p(-self.prv.p))] if self.prv.p < 1 else []
        edges = np.unique(np.concatenate([-reach, [0.0], reach, kink]).astype(float))
        edges = edges[(edges > self.t_min) & (edges < self.t_max)]
        edges = np.concatenate([[float(self.t_min)], edges, [float(self.t_max)]])
        half = np.diff(edges)[:, None] / 2
        points = edges[:-1, None] + half * (1 + _NODES)
        integral = float((half * _WEIGHTS * np.asarray(self.cdf(points), float)).sum())
        low, high = float(self.t_min), float(self.t_max)
        return high - low * float(self.cdf(low)) - integral


class _Accountant(PRVAccountant):  # type: ignore[misc]  # untyped library
    def __init__(
        self, sampling_prob: float, noise_multiplier: float, num_rounds: int, delta: float
    ):
        prv = PoissonSubsampledGaussianMechanism(sampling_prob, noise_multiplier)
        self.eps_error = _EPS_ERROR
        self.delta_error = 1e-3 * delta
        self.prvs = [prv]
        self.max_self_compositions = [num_rounds]
        reach = compute_safe_domain_size(
            self.prvs,
            self.max_self_compositions,
            eps_error=self.eps_error,
            delta_error=self.delta_error,
        )
        if reach > _MAX_DOMAIN:
            raise OverflowError
        mesh = self.eps_error / np.sqrt(num_rounds / 2 * np.log(12 / self.delta_error))
        domain = Domain.create_aligned(-reach, reach, mesh)
        truncated = _FineMean(prv, domain.t_min(), domain.t_max())
        self.composer = Heterogeneous([CellCentred().discretise(truncated, domain)])


def prv_interval(
    *, sampling_prob: float, noise_multiplier: float, num_rounds: int, delta: float
) -> PrvInterval | None:
    """Return PRV's bounds on ε (remove direction, the larger one), or None outside its range.

    Args:
        sampling_prob: q in (0, 1).
        noise_multiplier: σ, noise std per clip norm.
        num_rounds: T.
        delta: δ in (0, 1).
    """
    in_range = _MIN_NOISE <= noise_multiplier <= _MAX_NOISE and delta >= _MIN_DELTA
    if not in_range or not 0 < sampling_prob < 1:
        return None
    try:
        accountant = _Accountant(sampling_prob, noise_multiplier, num_rounds, delta)
        lower, estimate, upper = accountant.compute_epsilon(delta, [int(num_rounds)])
    except (OverflowError, RuntimeError, ValueError):  # the library's way to say "too little noise"
        return None
    if not np.isfinite([lower, estimate, upper]).all():
        return None
    return PrvInterval(lower=float(lower), estimate=float(estimate), upper=float(upper))
