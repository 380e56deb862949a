"""`run` and `resume`: a training, read top to bottom."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from dpfed_kan.assessment import Assessment, assess
from dpfed_kan.evaluation import Utility, evaluate
from dpfed_kan.experiment import Experiment
from dpfed_kan.federated.deployed import Deployed
from dpfed_kan.federated.server import Server, rounds
from dpfed_kan.flower.exchange import meet_sites
from dpfed_kan.flower.runtimes import Grid, Runtime
from dpfed_kan.models import port
from dpfed_kan.privacy.accounting import NonPrivate, PrivacyGuarantee
from dpfed_kan.privacy.accounting.running import RunningAccount
from dpfed_kan.privacy.accounting.sites import records_of_account
from dpfed_kan.privacy.clipping import Vector
from dpfed_kan.privacy.ledger import Ledger
from dpfed_kan.run_directory import RunDirectory
from dpfed_kan.server_plan import plan_server
from dpfed_kan.simulated_sites import SimulatedSites
from dpfed_kan.streams import Streams
from dpfed_kan.update.rule import UpdateState


@dataclass(frozen=True, kw_only=True)
class Progress:
    """A run after one more round.

    Args:
        num_rounds: Rounds released so far.
        planned_rounds: T.
        epsilon: Upper bound on ε of the rounds so far; None where it was not computed.
        utility: On the held-out records; None where it was not measured.
    """

    num_rounds: int
    planned_rounds: int
    epsilon: float | None
    utility: Utility | None


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a run has come to.

    Args:
        experiment: That was run.
        directory: Where its files are.
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
    guarantee: PrivacyGuarantee | NonPrivate
    epsilon_per_site: Mapping[str, float]
    num_records: Mapping[str, int]
    left_out: Mapping[str, str]
    seeded: bool
    assessment: Assessment | None
    share_projected: float
    finished: bool
    seconds: float


Listener = Callable[[Progress], None]


def run(
    experiment: Experiment,
    output_dir: Path,
    *,
    stop_after: int | None = None,
    listener: Listener | None = None,
    grid: Grid | None = None,
) -> Run:
    """Train from the start.

    Args:
        experiment: What to run.
        output_dir: Holds no run yet; created if absent.
        stop_after: Stop once this many rounds are over, as an interruption would.
        listener: Told of every round.
        grid: Of sites that run already, under `flwr run`; None to have the experiment's
            runtime start them.

    Raises:
        ValueError: If the experiment cannot keep its promises; nothing is written then.
        RoundRefused: If a site fails or sends what it may not.
    """
    streams = experiment.streams()
    plan = _plan(experiment, streams)
    directory = RunDirectory.create(output_dir, experiment=experiment, streams=streams)
    return _train(plan, directory, stop_after=stop_after, listener=listener, grid=grid)


def resume(
    output_dir: Path,
    *,
    stop_after: int | None = None,
    listener: Listener | None = None,
) -> Run:
    """Continue a run after its last checkpoint; it ends as an unbroken one, bit for bit.

    Args:
        output_dir: Of the run.
        stop_after: As in `run`.
        listener: As in `run`.

    Raises:
        ValueError: If there is no run, or its ledger and plan disagree.
        RoundRefused: As in `run`.
    """
    directory, experiment, streams = RunDirectory.open(output_dir)
    return _train(_plan(experiment, streams), directory, stop_after=stop_after, listener=listener)


@dataclass(frozen=True, kw_only=True)
class _Plan:
    experiment: Experiment
    runtime: Runtime
    streams: Streams
    sites: SimulatedSites
    server: Server


def _plan(experiment: Experiment, streams: Streams) -> _Plan:
    """Load, check, calibrate: all that can fail before anything is written."""
    runtime = experiment.runtime
    if isinstance(runtime, Deployed):
        raise ValueError(
            "runtime=deployed waits for sites that are processes of their own: start it with "
            "`dpfed-kan pilot run` or `flwr run`, or simulate with runtime=in_process"
        )
    sites = SimulatedSites(experiment, streams)
    return _Plan(
        experiment=experiment,
        runtime=runtime,
        streams=streams,
        sites=sites,
        server=plan_server(experiment, sites.num_records),
    )


def _train(
    plan: _Plan,
    directory: RunDirectory,
    *,
    stop_after: int | None,
    listener: Listener | None,
    grid: Grid | None = None,
) -> Run:
    experiment, server, held_out = plan.experiment, plan.server, plan.sites.federation.held_out
    delta = experiment.privacy.target_delta
    layout = port.layout(plan.sites.model, plan.sites.input_dim)
    state = directory.load_checkpoint() or experiment.update.start(
        plan.sites.params.trainable, num_rounds=experiment.num_rounds
    )
    directory.drop_metrics_after(state.num_steps)
    ledger = Ledger(
        mechanism=server.mechanism, num_records=server.num_records, path=directory.ledger_path
    )

    model = plan.sites.model
    labels_are: Any = {"loss": model.loss, "huber_delta": model.huber_delta}

    def scores(at: UpdateState) -> Vector:
        return port.decisions(model, at.model_params, plan.sites.params.frozen, held_out.features)

    def main(grid: Grid) -> None:
        nonlocal state
        exchange = meet_sites(
            grid,
            num_records=server.num_records,
            num_params=len(state.params),
            settings=plan.sites.settings,
            timeout=plan.runtime.timeout,
        )
        spent = _running_account(server, delta)
        left = rounds(server, state, exchange=exchange, streams=plan.streams, ledger=ledger)
        for state in left:
            directory.save_checkpoint(state, frozen=plan.sites.params.frozen, layout=layout)
            last = state.num_steps in (experiment.num_rounds, stop_after)
            due = last or state.num_steps % experiment.evaluate_every == 0
            progress = Progress(
                num_rounds=state.num_steps,
                planned_rounds=experiment.num_rounds,
                epsilon=spent.epsilon(state.num_steps) if due else None,
                utility=evaluate(scores(state), held_out.labels, **labels_are) if due else None,
            )
            directory.append_metrics(_metrics_row(progress, state))
            if listener is not None:
                listener(progress)
            if state.num_steps == stop_after:
                return

    start = time.perf_counter()
    already = stop_after is not None and state.num_steps >= stop_after
    if state.num_steps < experiment.num_rounds and not already:
        if grid is None:
            plan.runtime.run(plan.sites, num_sites=len(server.num_records), main=main)
        else:
            with threadpool_limits(plan.runtime.num_threads):
                main(grid)
    per_site = ledger.spent_per_site(delta=delta, cross_check=True)
    return Run(
        experiment=experiment,
        directory=directory,
        guarantee=per_site.sites[per_site.worst_site],
        epsilon_per_site={site: found.epsilon for site, found in per_site.sites.items()},
        num_records=server.num_records,
        left_out=plan.sites.federation.left_out,
        seeded=plan.streams.seeded,
        assessment=assess(scores(state), held_out.labels, held_out.sites, **labels_are),
        share_projected=state.num_projected / max(1, state.num_steps),
        finished=state.num_steps == experiment.num_rounds,
        seconds=time.perf_counter() - start,
    )


def _running_account(server: Server, delta: float) -> RunningAccount:
    """Return ε so far at the worst site, the one that samples its records most often."""
    smallest = min(server.num_records, key=lambda site: server.num_records[site])
    return RunningAccount(
        server.mechanism.at_site(server.num_records[smallest]),
        delta=delta,
        num_records=records_of_account(server.mechanism, server.num_records, smallest),
    )


def _metrics_row(progress: Progress, state: UpdateState) -> dict[str, Any]:
    epsilon = progress.epsilon
    utility = {} if progress.utility is None else asdict(progress.utility)
    return {
        "round": progress.num_rounds,
        "epsilon": "infinity" if epsilon == float("inf") else epsilon,
        "num_projected": state.num_projected,
        **state.diagnostics,
        **{f"held_out_{name}": value for name, value in utility.items()},
    }
