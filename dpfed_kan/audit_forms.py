"""The two forms of an audit: many runs with one canary, and one run with many."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpfed_kan.canary_run import CANARIES, Bug, CanaryRun
from dpfed_kan.privacy.accounting.bounds import gaussian_sensitivity
from dpfed_kan.privacy.accounting.sites import account_run
from dpfed_kan.privacy.auditing import (
    Rates,
    epsilon_from_mu,
    epsilon_from_one_run,
    epsilon_from_rates,
    guess,
    raw_scores,
    raw_shifts,
    shifts,
    whitened_scores,
)
from dpfed_kan.privacy.clipping import Vector
from dpfed_kan.streams import Streams

CONFIDENCE = 0.95
_SHARE_GUESSED = 0.4


@dataclass(frozen=True, kw_only=True)
class TwoRun:
    """The two-run form.

    Args:
        epsilon: The account's upper bound for the rounds that were run.
        epsilon_lower: Lower bound on ε from the whitened score.
        unwhitened: The same from a score that leaves the correlation in the noise.
        method: How the rates became ε.
        num_rounds: Of every run.
        rates: At the threshold, which lies where the account puts it.
    """

    epsilon: float
    epsilon_lower: float
    unwhitened: float
    method: str
    num_rounds: int
    rates: Rates


@dataclass(frozen=True, kw_only=True)
class OneRun:
    """The one-run form.

    Args:
        epsilon: The account's upper bound.
        epsilon_lower: Lower bound on ε.
        num_canaries: m.
        num_guesses: r.
        num_correct: v.
        num_rounds: Of the run.
    """

    epsilon: float
    epsilon_lower: float
    num_canaries: int
    num_guesses: int
    num_correct: int
    num_rounds: int


def two_run(
    run: CanaryRun, *, num_runs: int, delta: float, streams: Streams, bug: Bug | None = None
) -> TwoRun:
    """Return what independent runs with and without one canary prove.

    The canary takes the place that the account is worst for; the threshold is half of the shift
    that the account expects, fixed before the runs, so that all of them count.

    Args:
        run: To repeat.
        num_runs: How often, half of them with the canary.
        delta: δ.
        streams: Of all the runs; each has its own.
        bug: Planted, or none.
    """
    mechanism = run.server.mechanism
    noise, horizon = mechanism.noise, mechanism.num_rounds
    patterns = run.patterns()
    place = int(np.argmax(shifts(noise, patterns, horizon=horizon)))
    pattern = patterns[:, [place]]
    whitened, raw = np.zeros(num_runs), np.zeros(num_runs)
    is_in = np.arange(num_runs) % 2 == 0
    for index in range(num_runs):
        signs = np.full(run.num_canaries, np.nan)
        signs[place] = 1.0 if is_in[index] else run.sign_of_out
        seen = run.seen(signs, streams=streams.for_site(f"run {index}"), bug=bug)[:, [place]]
        whitened[index] = whitened_scores(noise, seen, pattern, horizon=horizon)[0]
        raw[index] = raw_scores(noise, seen, pattern, horizon=horizon)[0]
    half = 0.0 if mechanism.neighboring_relation == "replace_one" else 0.5
    gaussian = gaussian_sensitivity(mechanism, mechanism.num_rounds) is not None
    bound = epsilon_from_mu if gaussian else epsilon_from_rates

    def rates(scores: Vector, shift: float) -> Rates:
        taken = scores > half * shift
        return Rates(
            num_in=int(is_in.sum()),
            true_positives=int(taken[is_in].sum()),
            num_out=int((~is_in).sum()),
            false_positives=int(taken[~is_in].sum()),
        )

    seen_whitened = rates(whitened, shifts(noise, pattern, horizon=horizon)[0])
    seen_raw = rates(raw, raw_shifts(noise, pattern, horizon=horizon)[0])
    return TwoRun(
        epsilon=_accounted(run, delta),
        epsilon_lower=bound(seen_whitened, delta=delta, confidence=CONFIDENCE),
        unwhitened=bound(seen_raw, delta=delta, confidence=CONFIDENCE),
        method="Clopper-Pearson, Gaussian form" if gaussian else "Clopper-Pearson, any mechanism",
        num_rounds=mechanism.num_rounds,
        rates=seen_whitened,
    )


def one_run(run: CanaryRun, *, delta: float, streams: Streams, bug: Bug | None = None) -> OneRun:
    """Return what one run proves in which a coin decided of each canary whether it is in.

    Args:
        run: Its canaries are the m of the bound.
        delta: δ.
        streams: Of the run, and of the coins.
        bug: Planted, or none.
    """
    mechanism = run.server.mechanism
    coins = streams.for_site("coins").generator("split")
    present = coins.integers(2, size=run.num_canaries).astype(bool)
    signs = np.where(present, 1.0, run.sign_of_out)
    seen = run.seen(signs, streams=streams.for_site("one run"), bug=bug)
    scores = whitened_scores(mechanism.noise, seen, run.patterns(), horizon=mechanism.num_rounds)
    num_guesses = 2 * max(1, round(_SHARE_GUESSED * run.num_canaries / 2))
    guesses = guess(scores, num_guesses=min(num_guesses, run.num_canaries))
    correct = int(((guesses > 0) & present).sum() + ((guesses < 0) & ~present).sum())
    num_guesses = int((guesses != 0).sum())
    return OneRun(
        epsilon=_accounted(run, delta),
        epsilon_lower=epsilon_from_one_run(
            num_canaries=run.num_canaries,
            num_guesses=num_guesses,
            num_correct=correct,
            delta=delta,
            confidence=CONFIDENCE,
        ),
        num_canaries=run.num_canaries,
        num_guesses=num_guesses,
        num_correct=correct,
        num_rounds=mechanism.num_rounds,
    )


def _accounted(run: CanaryRun, delta: float) -> float:
    """Return the account's ε of the canaries' site."""
    server = run.server
    found = account_run(server.mechanism, num_records=server.num_records, delta=delta)
    return found.sites[CANARIES].epsilon
