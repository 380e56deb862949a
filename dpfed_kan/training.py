"""A training from its plan to its last round: what `run` and `resume` iterate over."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from dpfed_kan.evaluation import Utility, evaluate
from dpfed_kan.experiment import Experiment
from dpfed_kan.federated.deployed import Deployed
from dpfed_kan.federated.server import Server, SumOverSites, rounds
from dpfed_kan.models import port
from dpfed_kan.privacy.accounting.running import RunningAccount
from dpfed_kan.privacy.accounting.sites import records_of_account
from dpfed_kan.privacy.clipping import Vector
from dpfed_kan.privacy.ledger import Ledger
from dpfed_kan.run_directory import Checkpoints, RunDirectory
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
class PreparedRun:
    """What a run is made of, checked and calibrated.

    Args:
        experiment: What to run.
        streams: Its secret streams.
        sites: Its simulated sites.
        server: Mechanism, update rule and site sizes.
    """

    experiment: Experiment
    streams: Streams
    sites: SimulatedSites
    server: Server

    @classmethod
    def of(cls, experiment: Experiment, streams: Streams) -> PreparedRun:
        """Load, check, calibrate: all that can fail before anything is written.

        Raises:
            ValueError: If the experiment cannot keep its promises.
        """
        if isinstance(experiment.runtime, Deployed):
            raise ValueError(
                "runtime=deployed waits for sites that are processes of their own: start it with "
                "`dpfed-kan pilot run` or `flwr run`, or simulate with runtime=in_process"
            )
        sites = SimulatedSites(experiment, streams)
        server = plan_server(experiment, sites.num_records)
        return cls(experiment=experiment, streams=streams, sites=sites, server=server)

    def start(self, directory: RunDirectory) -> UpdateState:
        """Return the last checkpoint of a run, or its start."""
        return directory.load_checkpoint() or self.experiment.update.start(
            self.sites.params.trainable, num_rounds=self.experiment.num_rounds
        )

    def scores(self, state: UpdateState) -> Vector:
        """Return f(x) of the held-out records."""
        return port.decisions(
            self.sites.model,
            state.model_params,
            self.sites.params.frozen,
            self.sites.federation.held_out.features,
        )

    @property
    def labels_are(self) -> dict[str, Any]:
        """What the held-out labels are measured as."""
        model = self.sites.model
        return {"loss": model.loss, "huber_delta": model.huber_delta}

    def training(
        self,
        state: UpdateState,
        *,
        directory: RunDirectory,
        ledger: Ledger,
        sum_over_sites: SumOverSites,
        stop_after: int | None = None,
    ) -> Generator[tuple[UpdateState, Progress]]:
        """Run the rounds that are left, one an iteration, and write down what comes of them.

        Args:
            state: Where to start.
            directory: Of the run; when the iteration ends it holds the last state.
            ledger: Of the run.
            sum_over_sites: The way to the sites.
            stop_after: Stop once this many rounds are over.

        Yields:
            The state after each round, and what it has come to.
        """
        experiment, sites = self.experiment, self.sites
        checkpoints = Checkpoints(
            directory,
            frozen=sites.params.frozen,
            layout=port.layout(sites.model, sites.input_dim),
        )
        left = rounds(
            self.server, state, sum_over_sites=sum_over_sites, streams=self.streams, ledger=ledger
        )
        try:
            for state in left:
                last = state.num_steps in (experiment.num_rounds, stop_after)
                due = last or state.num_steps % experiment.evaluation_interval == 0
                progress = Progress(
                    num_rounds=state.num_steps,
                    planned_rounds=experiment.num_rounds,
                    epsilon=self.spent.epsilon(state.num_steps) if due else None,
                    utility=self._utility(state) if due else None,
                )
                directory.append_metrics(_metrics_row(progress, state))
                checkpoints.offer(state)
                yield state, progress
                if state.num_steps == stop_after:
                    return
        finally:
            checkpoints.save()
            ledger.settle()

    def _utility(self, state: UpdateState) -> Utility:
        labels = self.sites.federation.held_out.labels
        return evaluate(self.scores(state), labels, **self.labels_are)

    @cached_property
    def spent(self) -> RunningAccount:
        """Return ε so far at the worst site, the one that samples its records most often."""
        server = self.server
        smallest = min(server.num_records, key=lambda site: server.num_records[site])
        return RunningAccount(
            server.mechanism.at_site(server.num_records[smallest]),
            delta=self.experiment.privacy.target_delta,
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
