"""`audit`: what canaries in the product's own runs prove about ε, beside what the account says.

Two forms. Two-run: one canary in a small federation, with and without it, over many independent
runs. One-run: many canaries beside the experiment's own model, records and sites, each in or out
by a coin, once. Both are repeated with a bug planted that an audit should notice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from threadpoolctl import threadpool_limits

from dpfed_kan._validate import check_count
from dpfed_kan.canary_run import CANARIES, Bug, CanaryRun
from dpfed_kan.experiment import Experiment
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
from dpfed_kan.privacy.sampling import Cyclic, FullBatch
from dpfed_kan.simulated_sites import SimulatedSites
from dpfed_kan.streams import Streams

CONFIDENCE = 0.95
BUGS: tuple[Bug, ...] = ("noise halved", "clip off")
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


@dataclass(frozen=True, kw_only=True)
class Found:
    """Both forms, of the product as it is or with a bug planted; a form not asked for is None."""

    two_run: TwoRun | None
    one_run: OneRun | None

    @property
    def exceeding(self) -> tuple[str, ...]:
        """The forms whose lower bound exceeds the account's upper one."""
        forms = {"two-run": self.two_run, "one-run": self.one_run}
        return tuple(
            name
            for name, form in forms.items()
            if form is not None and form.epsilon_lower > form.epsilon
        )


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What was audited, what was found, and whether bugs would have been.

    Args:
        delta: δ of all bounds.
        confidence: Of each lower bound.
        audited: What was run, in words.
        note: What of the configuration was not.
        found: Of the product.
        controls: Bug to what was found with it.
    """

    delta: float
    confidence: float
    audited: str
    note: str
    found: Found
    controls: Mapping[Bug, Found]


def audit(
    experiment: Experiment,
    *,
    num_runs: int = 1000,
    num_rounds: int = 20,
    num_canaries: int = 400,
    keep_sampling: bool = False,
    streams: Streams | None = None,
) -> Audit:
    """Audit an experiment's mechanism and update rule.

    Guarantees:
        Each lower bound exceeds a true ε with probability at most 5 %, whatever the product does
        (two-run bounds of fixed schedules: as long as its noise is Gaussian).

    Args:
        experiment: Random batches are replaced by full ones at the same target, since an audit
            is tight only where participation is known.
        num_runs: Of the two-run form, half of them with the canary; half as many with a planted
            bug; 0 leaves the form out.
        num_rounds: Of each of these, at most; the noise is calibrated to the same target.
        num_canaries: Of the one-run form, which runs the whole experiment; 0 leaves it out.
        keep_sampling: Audit random batches as they are: valid, and far from tight.
        streams: Of the audit; the experiment's by default.

    Raises:
        ValueError: If there is no noise, or nothing is asked for.
    """
    check_count("num_runs", num_runs, low=0)
    check_count("num_rounds", num_rounds)
    check_count("num_canaries", num_canaries, low=0)
    if num_runs + num_canaries == 0 or num_runs == 1:
        raise ValueError("expected num_runs of at least 2 or num_canaries of at least 1")
    if experiment.noise.noise_multiplier == 0:
        raise ValueError("noise=none: ε = ∞, and no audit can exceed it; choose noise=independent")
    experiment, note = _auditable(experiment, keep_sampling=keep_sampling)
    streams = streams or experiment.streams()
    sites = SimulatedSites(experiment, streams)
    mechanism = experiment.mechanism(sites.num_records)
    short = replace(experiment, num_rounds=min(num_rounds, experiment.num_rounds))
    small = CanaryRun.small(short.mechanism(sites.num_records), short.update, streams=streams)
    large = CanaryRun.beside(experiment, sites, mechanism, num_canaries=max(1, num_canaries))
    delta = experiment.privacy.target_delta

    def find(bug: Bug | None) -> Found:
        own = streams.for_site(f"audit, {bug}")
        runs = num_runs if bug is None else max(2, num_runs // 2)
        with threadpool_limits(experiment.runtime.num_threads):
            return Found(
                two_run=two_run(small, num_runs=runs, delta=delta, streams=own, bug=bug)
                if num_runs
                else None,
                one_run=one_run(large, delta=delta, streams=own, bug=bug) if num_canaries else None,
            )

    return Audit(
        delta=delta,
        confidence=CONFIDENCE,
        audited=(
            f"{mechanism.num_rounds} rounds of {mechanism.sampling.describe()}, "
            f"{mechanism.noise.describe()}, κ={mechanism.noise_multiplier:.4g}, "
            f"{type(experiment.update).__name__}, {mechanism.neighboring_relation}"
        ),
        note=note,
        found=find(None),
        controls={bug: find(bug) for bug in BUGS},
    )


def _auditable(experiment: Experiment, *, keep_sampling: bool) -> tuple[Experiment, str]:
    """Return what is audited in the place of an experiment, and what of it is not."""
    batches = experiment.sampling.describe()
    if isinstance(experiment.sampling, (FullBatch, Cyclic)):
        return experiment, f"all that the account reads; sampling: {batches}"
    if keep_sampling:
        return experiment, f"the auditor does not know who joined ({batches}): far from tight"
    return replace(experiment, sampling=FullBatch()), (
        f"full batches in the place of {batches}, at the same target; what secret random batches "
        "add to privacy is the account's word and not audited"
    )


def _accounted(run: CanaryRun, delta: float) -> float:
    """Return the account's ε of the canaries' site."""
    server = run.server
    found = account_run(server.mechanism, num_records=server.num_records, delta=delta)
    return found.sites[CANARIES].epsilon


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
        present = np.zeros(run.num_canaries, dtype=bool)
        present[place] = is_in[index]
        seen = run.seen(present, streams=streams.for_site(f"run {index}"), bug=bug)[:, [place]]
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
    seen = run.seen(present, streams=streams.for_site("one run"), bug=bug)
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
