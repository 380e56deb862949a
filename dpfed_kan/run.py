"""`run` and `resume`: a training, read top to bottom."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from threadpoolctl import threadpool_limits

from dpfed_kan.assessment import Assessment, assess
from dpfed_kan.experiment import Experiment
from dpfed_kan.federated.deployed import Deployed
from dpfed_kan.federated.runtimes import Fused, Workers
from dpfed_kan.federated.server import SumOverSites
from dpfed_kan.planning import Planned, plan_of, planned
from dpfed_kan.privacy.accounting import NonPrivate, PrivacyGuarantee
from dpfed_kan.privacy.ledger import Ledger
from dpfed_kan.run_directory import RunDirectory
from dpfed_kan.sites.plan import Plan
from dpfed_kan.training import PreparedRun, Progress
from dpfed_kan.update.rule import UpdateState
from dpfed_kan.worker_pool import pooled

if TYPE_CHECKING:
    from dpfed_kan.flower.runtimes import Grid


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a run has come to.

    Args:
        experiment: That was run.
        directory: Where its files are.
        plan: What each site is asked to approve: all of the run that touches privacy.
        feature_names: Public names of the model's inputs.
        guarantee: Of the rounds that happened, for the worst site.
        epsilon_per_site: Site name to ε.
        num_records: Site name to n_k, in units of privacy.
        left_out: Site name to why it takes no part.
        seeded: Whether the noise came from a seed.
        assessment: Of the final model on the held-out records; None where the server has none.
        share_projected: Steps that had left the ball, over steps.
        finished: Whether all planned rounds were run.
        seconds: Wall time of this call's rounds.
    """

    experiment: Experiment
    directory: RunDirectory
    plan: Plan
    feature_names: tuple[str, ...]
    guarantee: PrivacyGuarantee | NonPrivate
    epsilon_per_site: Mapping[str, float]
    num_records: Mapping[str, int]
    left_out: Mapping[str, str]
    seeded: bool
    assessment: Assessment | None
    share_projected: float
    finished: bool
    seconds: float


RESERVED_AHEAD = 100  # rounds of a simulation between two waits for the disk
Listener = Callable[[Progress], None]
Announce = Callable[[Planned], None]


def run(
    experiment: Experiment,
    output_dir: Path,
    *,
    stop_after: int | None = None,
    listener: Listener | None = None,
    announce: Announce | None = None,
    grid: Grid | None = None,
) -> Run:
    """Train from the start.

    Args:
        experiment: What to run.
        output_dir: Holds no run yet; created if absent.
        stop_after: Stop once this many rounds are over, as an interruption would.
        listener: Told of every round.
        announce: Told what is planned, before the first.
        grid: Of sites that run already, under `flwr run`; None to have the experiment's
            runtime start them.

    Raises:
        ValueError: If the experiment cannot keep its promises; nothing is written then.
        RoundRefused: If a site fails or sends what it may not.
    """
    streams = experiment.streams()
    plan = PreparedRun.of(experiment, streams)
    directory = RunDirectory.create(output_dir, experiment=experiment, streams=streams)
    return _train(
        plan,
        directory,
        stop_after=stop_after,
        listener=listener,
        announce=announce,
        grid=grid,
    )


def resume(
    output_dir: Path,
    *,
    stop_after: int | None = None,
    listener: Listener | None = None,
    announce: Announce | None = None,
) -> Run:
    """Continue a run after its last checkpoint; it ends as an unbroken one, bit for bit.

    Args:
        output_dir: Of the run.
        stop_after: As in `run`.
        listener: As in `run`.
        announce: As in `run`.

    Raises:
        ValueError: If there is no run, or its ledger and plan disagree.
        RoundRefused: As in `run`.
    """
    directory, experiment, streams = RunDirectory.open(output_dir)
    return _train(
        PreparedRun.of(experiment, streams),
        directory,
        stop_after=stop_after,
        listener=listener,
        announce=announce,
    )


def inspect(output_dir: Path) -> Run:
    """Return what a run has come to so far, from its files alone: none of them is changed.

    Rounds that were reserved and not released count as spent, as in the ledger.

    Args:
        output_dir: Of the run, which may be finished, interrupted, or going on elsewhere.

    Raises:
        ValueError: If there is no run, its data are gone, or its ledger and plan disagree.
    """
    start = time.perf_counter()
    directory, experiment, streams = RunDirectory.open(output_dir)
    if isinstance(experiment.runtime, Deployed):
        raise ValueError(
            f"{output_dir} holds a run over real sites, which is reported when it ends: continue "
            "it with `dpfed-kan pilot run` or `flwr run`"
        )
    plan = PreparedRun.of(experiment, streams)
    state = plan.start(directory)  # before the ledger, which never lags behind it
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / directory.ledger_path.name
        if directory.ledger_path.is_file():
            shutil.copyfile(directory.ledger_path, copy)
        ledger = Ledger(
            mechanism=plan.server.mechanism, num_records=plan.server.num_records, path=copy
        )
        ledger.settle()
    return _outcome(plan, directory, ledger, state, seconds=time.perf_counter() - start)


def _train(
    plan: PreparedRun,
    directory: RunDirectory,
    *,
    stop_after: int | None,
    listener: Listener | None,
    announce: Announce | None,
    grid: Grid | None = None,
) -> Run:
    experiment, server = plan.experiment, plan.server
    state = plan.start(directory)
    directory.drop_metrics_after(state.num_steps)
    ledger = Ledger(
        mechanism=server.mechanism,
        num_records=server.num_records,
        path=directory.ledger_path,
        reserve_ahead=1 if grid is not None else RESERVED_AHEAD,
    )

    def main(sum_over_sites: SumOverSites) -> None:
        nonlocal state
        steps = plan.training(
            state,
            directory=directory,
            ledger=ledger,
            sum_over_sites=sum_over_sites,
            stop_after=stop_after,
        )
        if announce is not None:
            announce(
                planned(
                    server.mechanism,
                    server.num_records,
                    guarantee=plan.spent.full,
                    privacy_unit=experiment.privacy.privacy_unit,
                )
            )
        with contextlib.closing(steps):
            for after, progress in steps:
                state = after
                if listener is not None:
                    listener(progress)

    start = time.perf_counter()
    already = stop_after is not None and state.num_steps >= stop_after
    if state.num_steps < experiment.num_rounds and not already:
        _with_sites(plan, main, grid=grid)
    return _outcome(plan, directory, ledger, state, seconds=time.perf_counter() - start)


def _outcome(
    plan: PreparedRun,
    directory: RunDirectory,
    ledger: Ledger,
    state: UpdateState,
    *,
    seconds: float,
) -> Run:
    experiment, server, held_out = plan.experiment, plan.server, plan.sites.federation.held_out
    delta = experiment.privacy.target_delta
    per_site = ledger.spent_per_site(delta=delta, cross_check=True)
    return Run(
        experiment=experiment,
        directory=directory,
        plan=plan_of(
            experiment,
            mechanism=server.mechanism,
            num_records=server.num_records,
            num_params=len(plan.sites.params.trainable),
            like=held_out,
            metrics_leave=False,
        ),
        feature_names=held_out.feature_names,
        guarantee=per_site.sites[per_site.worst_site],
        epsilon_per_site={site: found.epsilon for site, found in per_site.sites.items()},
        num_records=server.num_records,
        left_out=plan.sites.federation.left_out,
        seeded=plan.streams.seeded,
        assessment=assess(plan.scores(state), held_out.labels, held_out.sites, **plan.labels_are),
        share_projected=state.num_projected / max(1, state.num_steps),
        finished=state.num_steps == experiment.num_rounds,
        seconds=seconds,
    )


def _with_sites(
    plan: PreparedRun, main: Callable[[SumOverSites], None], *, grid: Grid | None
) -> None:
    """Call `main` with the way to the sites that the runtime asks for."""
    runtime, server = plan.experiment.runtime, plan.server
    if isinstance(runtime, Fused):
        if grid is not None:
            raise ValueError("runtime=fused sends no messages: use runtime=in_process here")
        with threadpool_limits(runtime.num_threads):
            main(plan.sites.fused())
        return
    if isinstance(runtime, Workers):
        if grid is not None:
            raise ValueError("runtime=workers sends no messages: use runtime=in_process here")
        with pooled(plan.sites, runtime) as total, threadpool_limits(runtime.num_threads):
            main(total)
        return
    if isinstance(runtime, Deployed):
        raise TypeError("a deployment has no simulated sites")
    from dpfed_kan.flower.exchange import meet_sites  # loads flwr, which fused runs do without
    from dpfed_kan.flower.runtimes import start

    def over(grid: Grid) -> None:
        exchange = meet_sites(
            grid,
            num_records=server.num_records,
            num_params=len(plan.sites.params.trainable),
            settings=plan.sites.settings,
            timeout=runtime.timeout,
        )
        main(server.over(exchange))

    if grid is None:
        start(runtime, plan.sites, num_sites=len(server.num_records), main=over)
    else:
        with threadpool_limits(runtime.num_threads):
            over(grid)
