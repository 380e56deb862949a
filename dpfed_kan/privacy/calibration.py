"""From a target (ε, δ) to the least noise multiplier that keeps it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from scipy.optimize import brentq

from dpfed_kan._validate import check_number, check_positive
from dpfed_kan.privacy.accounting import account
from dpfed_kan.privacy.accounting.account import check_delta
from dpfed_kan.privacy.mechanism import Mechanism

_LOG_TOLERANCE, _SLOW_LOG_TOLERANCE = 1e-6, 1e-4
_LOWEST, _HIGHEST = 1e-3, 1e9

Excess = Callable[[float], float]


def calibrate(
    mechanism: Mechanism,
    *,
    target_epsilon: float,
    target_delta: float,
    num_records: int | None = None,
    quick: bool = False,
    tolerance: float | None = None,
    known_multiplier: float = 100.0,
) -> Mechanism:
    """Return the mechanism with the least κ whose account keeps the target.

    The quick bounds bracket κ from above; where they are loose (λ > 0) all bounds are then tried in
    the bracket that is left.

    Guarantees:
        The account of the result, computed afresh, is at most `target_epsilon`.

    Args:
        mechanism: Its own noise multiplier is ignored.
        target_epsilon: ε > 0 that the whole horizon may spend.
        target_delta: δ in (0, 1), below 1/n where n is given.
        num_records: n; fixed-size sampling needs it, over all sites.
        quick: Rest on the bounds that take milliseconds only: still valid, κ may be larger.
        tolerance: How far log κ may be above its least value; None for 1e-6, or 1e-4 for the
            slow bounds.
        known_multiplier: Where to begin: best a κ that is known to be enough.

    Raises:
        ValueError: If a target is out of range or no κ up to 1e9 keeps it.
    """
    check_positive("target_epsilon", target_epsilon)
    check_number("target_delta", target_delta, low=0.0, high=1.0, low_open=True, high_open=True)
    check_delta(target_delta, num_records=num_records)

    def excess(log_multiplier: float, *, quick: bool) -> float:
        candidate = mechanism.with_noise_multiplier(math.exp(log_multiplier))
        guarantee = account(candidate, delta=target_delta, num_records=num_records, quick=quick)
        return guarantee.epsilon - target_epsilon

    def quickly(log_multiplier: float) -> float:
        return excess(log_multiplier, quick=True)

    def thoroughly(log_multiplier: float) -> float:
        return excess(log_multiplier, quick=False)

    high = math.log(known_multiplier)
    high = _sufficient(quickly, high, target_epsilon, target_delta)
    fine = _LOG_TOLERANCE if tolerance is None else tolerance
    least = _least(quickly, high, fine)
    if quick:
        return mechanism.with_noise_multiplier(math.exp(_kept(quickly, least, fine)))
    if thoroughly(least) < -1e-3 * target_epsilon:
        fine = _SLOW_LOG_TOLERANCE if tolerance is None else tolerance
        least = _least(thoroughly, least, fine)
    return mechanism.with_noise_multiplier(math.exp(_kept(thoroughly, least, fine)))


@dataclass(frozen=True, kw_only=True)
class CalibratedSites:
    """One noise multiplier that keeps the target at every site.

    Args:
        mechanisms: By site, all with the same κ.
        binding_site: The site whose target asked for it.
    """

    mechanisms: Mapping[str, Mechanism]
    binding_site: str


def calibrate_sites(
    mechanisms: Mapping[str, Mechanism],
    *,
    target_epsilon: float,
    target_delta: float,
    num_records: Mapping[str, int] | None = None,
) -> CalibratedSites:
    """Return the least common κ at which every site's records have the target guarantee.

    Args:
        mechanisms: By site; they differ in the sampling, the noise is added once for all.
        target_epsilon: ε > 0.
        target_delta: δ in (0, 1).
        num_records: By site, n_k; δ must be below every 1/n_k.

    Raises:
        ValueError: If there are no sites, or a target is out of range.
    """
    if not mechanisms:
        raise ValueError("expected at least one site to calibrate for")
    multipliers = {
        site: calibrate(
            mechanism,
            target_epsilon=target_epsilon,
            target_delta=target_delta,
            num_records=None if num_records is None else num_records[site],
        ).noise_multiplier
        for site, mechanism in mechanisms.items()
    }
    binding = max(multipliers, key=lambda site: multipliers[site])
    return CalibratedSites(
        mechanisms={
            site: mechanism.with_noise_multiplier(multipliers[binding])
            for site, mechanism in mechanisms.items()
        },
        binding_site=binding,
    )


def _sufficient(excess: Excess, high: float, target_epsilon: float, target_delta: float) -> float:
    """Return log κ of enough noise, from high noise upward: too little is what costs time.

    Raises:
        ValueError: If no κ up to 1e9 is enough.
    """
    while excess(high) > 0:
        high += 2.0
        if high > math.log(_HIGHEST):
            raise ValueError(
                f"no noise multiplier up to {_HIGHEST:g} keeps target_epsilon={target_epsilon:g} "
                f"at target_delta={target_delta:g}; use fewer rounds, a smaller sampling_prob or "
                "a larger target"
            )
    return high


def _least(excess: Excess, high: float, tolerance: float) -> float:
    """Return about the least log κ below a sufficient one."""
    step = 0.25
    low = high - step
    while excess(low) <= 0:
        low, high, step = low - step, low, min(2 * step, 1.0)
        if low < math.log(_LOWEST):
            return high
    return float(brentq(excess, low, high, xtol=tolerance, rtol=1e-12))


def _kept(excess: Excess, log_multiplier: float, step: float) -> float:
    """Return log κ at which the target is kept, verified afresh: the conservative end."""
    while excess(log_multiplier) > 0:
        log_multiplier += step
        step *= 2
    return log_multiplier
