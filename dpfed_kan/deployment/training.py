"""The server's side of a training over real sites, read top to bottom; it holds no record."""

from __future__ import annotations

import contextlib
import errno
import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from dpfed_kan.data.encoding import encoded_names
from dpfed_kan.data.records import Records
from dpfed_kan.data.schema import Schema
from dpfed_kan.deployment.study import Study, described_columns, differences
from dpfed_kan.deployment.transports import collecting
from dpfed_kan.experiment import Experiment
from dpfed_kan.federated.replies import exchange_over
from dpfed_kan.federated.server import rounds
from dpfed_kan.flower.deployed_exchange import ask_approval, gather_metrics, meet
from dpfed_kan.flower.deployed_records import SiteFacts
from dpfed_kan.flower.runtimes import Grid
from dpfed_kan.kan import KANParams
from dpfed_kan.models import port
from dpfed_kan.planning import plan_of
from dpfed_kan.privacy.ledger import Ledger
from dpfed_kan.run import Run
from dpfed_kan.run_directory import RunDirectory, held
from dpfed_kan.server_plan import plan_server
from dpfed_kan.streams import Streams

_RUN_ID_FILE = "run_id"
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES}
Listener = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """What a run over real sites has come to.

    Args:
        run: As of a simulation, without an assessment: the server has nothing to measure on.
        metrics: Site name to what it says of the final model; of the sites that allow it.
        zeroed: Site name to the number of rounds that it contributed zero to.
        seconds_per_round: Median wall time of this call's rounds; None without rounds.
    """

    run: Run
    metrics: Mapping[str, Mapping[str, Any]]
    zeroed: Mapping[str, int]
    seconds_per_round: float | None


def train(
    grid: Grid, experiment: Experiment, output_dir: Path, *, listener: Listener | None = None
) -> Deployment:
    """Train from the start.

    Args:
        grid: Flower's, of nodes that are real sites.
        experiment: With data=at_sites and runtime=deployed.
        output_dir: Holds no run yet; created if absent.
        listener: Told of every round that is over.

    Raises:
        ValueError: If the experiment cannot keep its promises, or the directory be written to.
        RoundRefused: If a site is missing, differs from the plan, fails, or says what it may not.
    """
    streams = experiment.streams()
    study, start = _study(experiment, streams, run_id=secrets.token_hex(16))
    with _disk(output_dir), held(output_dir):
        directory = RunDirectory.create(output_dir, experiment=experiment, streams=streams)
        name = output_dir / _RUN_ID_FILE
        temporary = name.with_suffix(".tmp")
        temporary.write_text(study.run_id, encoding="ascii")
        temporary.replace(name)  # comes last: a run that has no name was never begun
        return _train(grid, study, start, directory, streams, listener=listener)


def resume(
    grid: Grid, experiment: Experiment, output_dir: Path, *, listener: Listener | None = None
) -> Deployment:
    """Continue a run after its last checkpoint, over the same sites.

    Args:
        grid: As in `train`.
        experiment: The one that was started; only its runtime may be another.
        output_dir: Of the run.
        listener: As in `train`.

    Raises:
        ValueError: If there is no run of real sites, or its plan is another.
        RoundRefused: As `train`.
    """
    begun = RunDirectory(output_dir)
    named = output_dir / _RUN_ID_FILE
    if not begun.config_path.exists():
        raise ValueError(f"{output_dir.absolute()} holds no run that can be resumed")
    with _disk(output_dir), held(output_dir):
        if named.exists() or begun.ledger_path.exists():
            directory, streams, run_id = _opened(experiment, output_dir)
            study, start = _study(experiment, streams, run_id=run_id)
            return _train(grid, study, start, directory, streams, listener=listener)
        begun.forget()  # killed before it had a name, so before any site was asked
    return train(grid, experiment, output_dir, listener=listener)


def _opened(experiment: Experiment, output_dir: Path) -> tuple[RunDirectory, Streams, str]:
    directory, planned, streams = RunDirectory.open(output_dir)
    if replace(planned, runtime=experiment.runtime) != experiment:
        raise ValueError(
            f"{output_dir} holds a run of another experiment; a run continues under its own plan, "
            "which its account covers and nothing else"
        )
    try:
        return directory, streams, (output_dir / _RUN_ID_FILE).read_text(encoding="ascii")
    except OSError:
        raise ValueError(f"{output_dir} holds no run of real sites: expected run_id") from None


@contextlib.contextmanager
def _disk(output_dir: Path) -> Iterator[None]:
    """Say in one line that the disk is full or closed; the ledger is whole up to there.

    Raises:
        ValueError: In place of the system's own error.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK:
            raise
        raise ValueError(
            f"the run stops: {output_dir} cannot be written to: {error.strerror}. What was "
            "released is in the ledger; make room, then the same command continues the run"
        ) from None


def _study(experiment: Experiment, streams: Streams, *, run_id: str) -> tuple[Study, KANParams]:
    """Return what sites are told, and the starting parameters."""
    input_dim = Study(experiment=experiment, run_id=run_id, frozen=np.zeros(0)).input_dim
    model = port.fixed(experiment.model, input_dim)
    start = port.start(model, input_dim, streams.generator("initial_params"))
    return Study(experiment=experiment, run_id=run_id, frozen=start.frozen), start


def _train(
    grid: Grid,
    study: Study,
    start: KANParams,
    directory: RunDirectory,
    streams: Streams,
    *,
    listener: Listener | None,
) -> Deployment:
    experiment, runtime = study.experiment, study.runtime
    dimension = len(start.trainable)
    nodes, facts = meet(
        grid,
        study.source.sites,
        settings=study.settings(),
        timeout=runtime.meeting_timeout,
        problem_of=lambda said: _problem_of(said, study, dimension),
    )
    num_records = {site: said.num_records for site, said in facts.items()}
    server = plan_server(experiment, num_records)
    study = study.planned(server.mechanism, num_records)
    state = directory.load_checkpoint() or experiment.update.start(
        start.trainable, num_rounds=experiment.num_rounds
    )
    if state.num_steps < experiment.num_rounds:
        ask_approval(grid, nodes, facts, settings=study.settings(), timeout=runtime.meeting_timeout)
    directory.drop_metrics_after(state.num_steps)
    ledger = Ledger(mechanism=server.mechanism, num_records=num_records, path=directory.ledger_path)
    layout = port.layout(port.fixed(experiment.model, study.input_dim), study.input_dim)
    begun, seconds = time.perf_counter(), list[float]()
    if state.num_steps < experiment.num_rounds:
        with (
            threadpool_limits(runtime.num_threads),
            collecting(grid, nodes, study, dimension=dimension) as collect,
        ):
            exchange = exchange_over(
                collect,
                server,
                run_id=study.run_id,
                timeout=runtime.timeout,
                on_bad_reply=runtime.on_bad_reply,
                ledger=ledger,
            )
            since = time.perf_counter()
            left = rounds(
                server,
                state,
                sum_over_sites=server.over(exchange),
                streams=streams,
                ledger=ledger,
            )
            for state in left:
                row = {"round": state.num_steps, "num_projected": state.num_projected}
                directory.append_metrics(row)
                directory.save_checkpoint(state, frozen=start.frozen, layout=layout)
                seconds.append(time.perf_counter() - since)
                since = time.perf_counter()
                if listener is not None:
                    listener(state.num_steps)
    ledger.settle()
    metrics: Mapping[str, Mapping[str, Any]] = {}
    if study.source.share_metrics:
        metrics = gather_metrics(
            grid,
            nodes,
            state.model_params,
            settings=study.settings(),
            timeout=runtime.meeting_timeout,
        )
    per_site = ledger.spent_per_site(delta=experiment.privacy.target_delta, cross_check=True)
    run = Run(
        experiment=experiment,
        directory=directory,
        plan=plan_of(
            experiment,
            mechanism=server.mechanism,
            num_records=num_records,
            num_params=dimension,
            like=no_records(study.source.schema),
            metrics_leave=study.source.share_metrics,
        ),
        feature_names=encoded_names(study.source.schema),
        guarantee=per_site.sites[per_site.worst_site],
        epsilon_per_site={site: found.epsilon for site, found in per_site.sites.items()},
        num_records=num_records,
        left_out={},
        seeded=streams.seeded,
        assessment=None,
        share_projected=state.num_projected / max(1, state.num_steps),
        finished=state.num_steps == experiment.num_rounds,
        seconds=time.perf_counter() - begun,
    )
    return Deployment(
        run=run,
        metrics=metrics,
        zeroed=Counter(zeroed.site for zeroed in ledger.zeroed),
        seconds_per_round=float(np.median(seconds)) if seconds else None,
    )


def _problem_of(said: SiteFacts, study: Study, dimension: int) -> str | None:
    """Return why a site cannot take part; None if it can."""
    wanted = described_columns(study.source.schema)
    if said.columns != wanted:
        return f"its schema is not the study's: {differences(wanted, said.columns)}"
    if said.num_params != dimension:
        return f"its model has {said.num_params} parameters, the study's {dimension}"
    model = study.experiment.model
    classes = {"logistic": 2, "softmax": model.num_outputs}.get(model.loss, 0)
    if said.num_classes != classes:
        return f"its labels have {said.num_classes} classes, the study's loss takes {classes}"
    if said.num_records < 1 or not math.isfinite(said.num_records):
        return "it has no record to train on"
    return None


def no_records(schema: Schema) -> Records:
    """Return no records of a schema: their columns alone, which are public."""
    names = encoded_names(schema)
    return Records(
        features=np.zeros((0, len(names))),
        labels=np.zeros(0),
        feature_names=names,
        num_classes=schema.label.num_classes,
    )
