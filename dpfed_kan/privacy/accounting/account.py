"""`account`: every valid bound for a mechanism, the least of them as the answer."""

from __future__ import annotations

import time

import numpy as np

from dpfed_kan._validate import check_count, check_number
from dpfed_kan.privacy.accounting.bounds import Computation, valid_bounds
from dpfed_kan.privacy.accounting.guarantee import TRUST, Bound, NonPrivate, PrivacyGuarantee
from dpfed_kan.privacy.accounting.prv import prv_interval
from dpfed_kan.privacy.accounting.spectral import independent_noise
from dpfed_kan.privacy.accounting.theorem_e1 import theorem_e1_figures
from dpfed_kan.privacy.mechanism import Mechanism
from dpfed_kan.privacy.sampling import Poisson, PoissonBatch


def account(
    mechanism: Mechanism,
    *,
    delta: float,
    num_rounds: int | None = None,
    cross_check: bool = False,
    unit: str = "record",
    num_records: int | None = None,
    quick: bool = False,
    rng: np.random.Generator | None = None,
) -> PrivacyGuarantee | NonPrivate:
    """Return what a run of a mechanism guarantees.

    Guarantees:
        ε is an upper bound for the whole run, never an estimate: the least of the valid bounds.

    Args:
        mechanism: With its noise multiplier set.
        delta: δ in (0, 1).
        num_rounds: Rounds that happened, ≤ the horizon; None for the whole horizon.
        cross_check: Ask an independent accountant too, where there is one; if the two disagree
            beyond their stated errors the larger ε is reported, and said so.
        unit: What one clipped gradient stands for.
        num_records: n; δ must be below 1/n. Fixed-size sampling needs it, over all sites.
        quick: Only the bounds that take milliseconds: still valid, looser for λ > 0.
        rng: For the draws of balls-in-bins, from the operating system's entropy; without it
            the deterministic bound is the answer.

    Raises:
        ValueError: If δ or the number of rounds is out of range.
        TypeError: If there is no account for the mechanism.
    """
    if isinstance(mechanism, Mechanism) and mechanism.sites_per_unit > 1:
        raise ValueError("this account is of a unit at one site; use several_sites.account")
    if not isinstance(mechanism, Mechanism):
        raise TypeError(f"there is no account for {type(mechanism).__name__}")
    check_delta(delta, num_records=num_records)
    if isinstance(mechanism.sampling, PoissonBatch):
        if num_records is None:
            raise ValueError("a site's own rate decides: give num_records, n of that site")
        mechanism = mechanism.at_site(num_records)
    rounds = mechanism.num_rounds if num_rounds is None else num_rounds
    check_count("num_rounds", rounds, low=0)
    if rounds > mechanism.num_rounds:
        raise ValueError(
            f"expected num_rounds={rounds} of at most {mechanism.num_rounds}, the horizon that the "
            "mechanism was planned for; plan a new mechanism for more"
        )
    if rounds > 0 and mechanism.noise_multiplier == 0:
        return NonPrivate(num_rounds=rounds)
    tried: list[Bound] = []
    for bound in valid_bounds(mechanism, rounds, delta, num_records=num_records, rng=rng):
        if bound.quick or not quick:
            known = min((b.epsilon for b in tried), default=float("inf"))
            tried.append(_timed(bound, known))
    best = min(tried, key=lambda bound: bound.epsilon)
    check = "not asked"
    if cross_check:
        best, check = _cross_checked(best, tried, mechanism, rounds, delta)
    return PrivacyGuarantee(
        epsilon=best.epsilon,
        delta=delta,
        num_rounds=rounds,
        planned_rounds=mechanism.num_rounds,
        unit=unit,
        neighboring_relation=mechanism.neighboring_relation,
        sampling=mechanism.sampling.describe(),
        noise=mechanism.noise.describe(),
        noise_multiplier=mechanism.noise_multiplier,
        trust=TRUST,
        best=best,
        tried=tuple(tried),
        check=check,
        compared=theorem_e1_figures(mechanism, rounds, delta),
    )


def check_delta(delta: float, *, num_records: int | None) -> None:
    """Refuse a δ outside (0, 1), or outside (0, 1/n) where n is known.

    Raises:
        ValueError: Naming δ and n.
    """
    advice = "a δ near 1/n lets whole records leak; use one well below"
    check_number("delta", delta, low=0.0, high=1.0, low_open=True, high_open=True, advice=advice)
    if num_records is None:
        return
    check_count("num_records", num_records)
    if delta >= 1 / num_records:
        raise ValueError(
            f"expected delta={delta:g} in (0, 1/num_records) with num_records={num_records}: such "
            f"a δ lets a whole record leak; use one well below {1 / num_records:g}"
        )


def _timed(bound: Computation, known: float) -> Bound:
    start = time.perf_counter()
    epsilon, method = bound.compute(known)
    return Bound(
        epsilon=epsilon,
        method=method,
        assumption=bound.assumption,
        seconds=time.perf_counter() - start,
    )


def _cross_checked(
    best: Bound, tried: list[Bound], mechanism: Mechanism, rounds: int, delta: float
) -> tuple[Bound, str]:
    """Compare the PLD of Poisson rounds with PRV, keeping the larger where they disagree."""
    sampling = mechanism.sampling
    if not isinstance(sampling, Poisson) or rounds == 0 or sampling.sampling_prob == 1:
        return best, "not needed: PRV covers random Poisson batches only"
    pld = next(bound for bound in tried if "PLD" in bound.method)
    if mechanism.neighboring_relation == "replace_one":
        return best, "none: PRV has no replace-one pair"
    interval = prv_interval(
        sampling_prob=sampling.sampling_prob,
        noise_multiplier=independent_noise(
            mechanism.noise,
            noise_multiplier=mechanism.noise_multiplier,
            num_rounds=rounds,
            horizon=mechanism.num_rounds,
        ),
        num_rounds=rounds,
        delta=delta,
    )
    if interval is None:
        return best, "none: outside the range in which PRV can be trusted to return"
    text = f"PRV says [{interval.lower:.4g}, {interval.upper:.4g}] for the {pld.method}"
    if pld.epsilon >= interval.lower:
        return best, f"{text}: agrees"
    larger = Bound(
        epsilon=interval.upper,
        method="PRV, the larger of two accountants that disagree",
        assumption=best.assumption,
        seconds=best.seconds,
    )
    return larger, f"{text}: DISAGREES with {pld.epsilon:.4g}; the larger is reported"
