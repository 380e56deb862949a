"""`audit`: what canaries in the product's own runs prove about ε, beside what the account says.

Two forms. Two-run: one canary in a small federation, with and without it, over many independent
runs. One-run: many canaries beside the experiment's own model, records and sites, each in or out
by a coin, once. Both are repeated with a bug planted that an audit should notice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from threadpoolctl import threadpool_limits

from dpfed_kan._validate import check_count
from dpfed_kan.audit_forms import CONFIDENCE, OneRun, TwoRun, one_run, two_run
from dpfed_kan.canary_run import Bug, CanaryRun
from dpfed_kan.experiment import Experiment
from dpfed_kan.federated.runtimes import Fused
from dpfed_kan.privacy.joint_sampling import FixedSize
from dpfed_kan.privacy.sampling import Cyclic, FullBatch, PoissonBatch
from dpfed_kan.simulated_sites import SimulatedSites
from dpfed_kan.streams import Streams

BUGS: tuple[Bug, ...] = ("noise halved", "clip off")
FEWEST_CANARIES = 120  # with fewer the server itself refuses a site that does not clip


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
    if num_runs + num_canaries == 0 or num_runs == 1 or 0 < num_canaries < FEWEST_CANARIES:
        raise ValueError(
            f"expected num_runs={num_runs} to be 0 or at least 2, num_canaries={num_canaries} to "
            f"be 0 or at least {FEWEST_CANARIES} (fewer prove next to nothing), and one of them "
            "above 0"
        )
    if experiment.noise.noise_multiplier == 0:
        raise ValueError("noise=none: ε = ∞, and no audit can exceed it; choose noise=independent")
    experiment, note = _auditable(experiment, keep_sampling=keep_sampling)
    if isinstance(experiment.runtime, Fused) and experiment.precision != "float64":
        experiment = replace(experiment, runtime=replace(experiment.runtime, precision="float64"))
        note += "; products in float64: what float32 rounds is proved and charged, not audited"
    streams = streams or experiment.streams()
    sites = SimulatedSites(experiment, streams)
    mechanism = experiment.mechanism(sites.num_records)
    short = replace(experiment, num_rounds=min(num_rounds, experiment.num_rounds))
    small = CanaryRun.small(short.mechanism(sites.num_records), short.update, streams=streams)
    large = CanaryRun.beside(experiment, sites, mechanism, num_canaries=num_canaries or 1)
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
    if keep_sampling and isinstance(experiment.sampling, (FixedSize, PoissonBatch)):
        raise ValueError(
            f"batches of a given size ({batches}) do not fit an audit's small federation: leave "
            "out --keep-sampling"
        )
    if keep_sampling:
        return experiment, f"the auditor does not know who joined ({batches}): far from tight"
    return replace(experiment, sampling=FullBatch()), (
        f"full batches in the place of {batches}, at the same target; what secret random batches "
        "add to privacy is the account's word and not audited"
    )
