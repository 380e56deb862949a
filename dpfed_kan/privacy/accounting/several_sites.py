"""A unit with records at several sites: each site clips its part, so the bound multiplies.

Group privacy: s neighbouring steps of (ε₁, δ₁) are one of (s·ε₁, δ₁·(1 + e^ε₁ + ... +
e^{(s−1)ε₁})), whatever the mechanism; Dwork & Roth (2014), theorem 2.2 and its (ε, δ) form.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from dpfed_kan.privacy.accounting.account import account as account_at_one_site
from dpfed_kan.privacy.accounting.guarantee import NonPrivate, PrivacyGuarantee
from dpfed_kan.privacy.mechanism import Mechanism

_STEPS = 100
_LARGEST_EXPONENT = 400.0


def account(mechanism: Mechanism, *, delta: float, **options: Any) -> PrivacyGuarantee | NonPrivate:
    """Return what a run of a mechanism guarantees to a unit, at however many sites it is.

    Args:
        mechanism: As for `account.account`.
        delta: δ of the answer.
        options: Of `account.account`.

    Raises:
        ValueError: As `account.account`, or if no δ₁ is small enough for δ.
        TypeError: As `account.account`.
    """
    if not isinstance(mechanism, Mechanism):
        return account_at_one_site(mechanism, delta=delta, **options)
    options = {"unit": mechanism.privacy_unit, **options}
    sites = mechanism.sites_per_unit
    at_one = replace(mechanism, sites_per_unit=1)
    if sites == 1:
        return account_at_one_site(at_one, delta=delta, **options)
    one_delta = delta / sites
    for _ in range(_STEPS):
        found = account_at_one_site(at_one, delta=one_delta, **options)
        if isinstance(found, NonPrivate):
            return found
        if (sites - 1) * found.epsilon > _LARGEST_EXPONENT:
            break
        factor = math.fsum(math.exp(k * found.epsilon) for k in range(sites))
        if one_delta * factor <= delta:
            method = f"{found.best.method}, times {sites} by group privacy"
            return replace(
                found,
                epsilon=sites * found.epsilon,
                delta=delta,
                unit=f"{found.unit} with records at up to {sites} sites",
                best=replace(found.best, epsilon=sites * found.epsilon, method=method),
            )
        one_delta = delta / factor * (1 - 1e-9)
    raise ValueError(
        f"no account keeps delta={delta:g} for a unit with records at {sites} sites: add noise, or "
        "have the records of each at one site"
    )
