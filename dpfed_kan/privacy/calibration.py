"""From a target (ε, δ) to the least noise multiplier that keeps it."""

from __future__ import annotations

import math

from scipy.optimize import brentq

from dpfed_kan._validate import check_number, check_positive
from dpfed_kan.privacy.accounting import account
from dpfed_kan.privacy.mechanism import Mechanism

_LOG_TOLERANCE = 1e-6
_LOWEST, _START, _HIGHEST = 1e-3, 100.0, 1e9


def calibrate(mechanism: Mechanism, *, target_epsilon: float, target_delta: float) -> Mechanism:
    """Return the mechanism with the least κ whose account keeps the target.

    Guarantees:
        The account of the result, computed afresh, is at most `target_epsilon`.

    Args:
        mechanism: Its own noise multiplier is ignored.
        target_epsilon: ε > 0 that the whole horizon may spend.
        target_delta: δ in (0, 1).

    Raises:
        ValueError: If a target is out of range or no κ up to 1e9 keeps it.
    """
    check_positive("target_epsilon", target_epsilon)
    check_number("target_delta", target_delta, low=0.0, high=1.0, low_open=True, high_open=True)

    def excess(log_multiplier: float) -> float:
        candidate = mechanism.with_noise_multiplier(math.exp(log_multiplier))
        return account(candidate, delta=target_delta).epsilon - target_epsilon

    high = math.log(_START)  # from high noise downward: too little noise is what costs time
    while excess(high) > 0:
        high += 2.0
        if high > math.log(_HIGHEST):
            raise ValueError(
                f"no noise multiplier up to {_HIGHEST:g} keeps target_epsilon={target_epsilon:g} "
                f"at target_delta={target_delta:g}; use fewer rounds, a smaller sampling_prob or "
                "a larger target"
            )
    low = high - 0.5
    while excess(low) <= 0:
        low, high = low - 0.5, low
        if low < math.log(_LOWEST):
            return mechanism.with_noise_multiplier(math.exp(high))
    log_multiplier = float(brentq(excess, low, high, xtol=_LOG_TOLERANCE))
    step = _LOG_TOLERANCE
    while excess(log_multiplier) > 0:  # the conservative end, verified afresh
        log_multiplier += step
        step *= 2
    return mechanism.with_noise_multiplier(math.exp(log_multiplier))
