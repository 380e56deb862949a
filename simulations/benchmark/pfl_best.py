"""Job J in pfl-research's best form: see `pfl_job`, which runs it and says what it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from pfl.aggregate.base import SumAggregator
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDatasetBase
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from pfl.privacy import CentrallyAppliedPrivacyMechanism, GaussianMechanism
from pfl.stats import MappedVectorStatistics
from torch import Tensor

from simulations.benchmark.peer_job import PeerJob, PeerProblem, Vector
from simulations.benchmark.torch_kan import LinearKAN, logistic_loss, scaled_basis

_NEVER = 10**9


def run_best(job: PeerJob, problem: PeerProblem, *, num_rounds: int, laps: Any) -> Vector:
    """Train and return W, shape (m·d·p,).

    Args:
        job: What to run.
        problem: Its records and start.
        num_rounds: How many rounds.
        laps: pfl's callback that is told when a round has ended.
    """
    users = [
        PyTorchTensorDataset((scaled_basis(problem, features), problem.tensor(labels)))
        for features, labels in zip(problem.features, problem.labels, strict=True)
    ]
    module = _BestModule(problem)
    model = PyTorchModel(
        module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),  # idle
    )
    mechanism = _IdleClipping(job.l2_clip_norm, job.noise_multiplier)
    backend = SimulatedBackend(
        _Everybody(users), None, [CentrallyAppliedPrivacyMechanism(mechanism)], _InPlaceSum()
    )
    with torch.no_grad():
        _FactoredSums(job).run(
            algorithm_params(job, num_rounds),
            backend,
            model,
            NNTrainHyperParams(local_num_epochs=1, local_learning_rate=1.0, local_batch_size=None),
            callbacks=[laps],
            send_metrics_to_platform=False,
        )
    return module.flat().to(torch.float64).numpy()


class _BestModule(LinearKAN):
    """As `PyTorchModel` asks; neither method is called."""

    def loss(self, phi: Tensor, y: Tensor) -> Tensor:
        return logistic_loss(self(phi), y).mean()

    def metrics(self, phi: Tensor, y: Tensor) -> dict[str, Any]:
        return {}


class _FactoredSums(FederatedAveraging):  # type: ignore[misc]
    """A user's statistics are the sum of its drawn records' clipped gradients."""

    def __init__(self, job: PeerJob) -> None:
        super().__init__()
        self._job = job
        self._rng = np.random.default_rng()

    def simulate_one_user(
        self, model: Any, user_dataset: Any, central_context: Any
    ) -> tuple[Any, Any]:
        basis, labels = user_dataset.raw_data
        drawn = np.flatnonzero(self._rng.random(len(labels)) < self._job.sampling_prob)
        if not len(drawn):
            return None, Metrics()
        rows = torch.from_numpy(drawn)
        module = model.pytorch_model
        phi, y = basis.index_select(0, rows), labels.index_select(0, rows)
        scores, slopes = module.head(phi @ module.first.weight.T)
        left = slopes.mul_((-y * torch.sigmoid(-y * scores))[:, None])
        norms = left.norm(dim=1).mul_(phi.norm(dim=1))
        left.mul_((self._job.l2_clip_norm / norms).clamp_(max=1.0)[:, None])
        return MappedVectorStatistics({"first": left.T @ phi}), Metrics()

    def process_aggregated_statistics(
        self, central_context: Any, aggregate_metrics: Any, model: Any, statistics: Any
    ) -> tuple[Any, Any]:
        step = -self._job.learning_rate / self._job.batch_size
        model.pytorch_model.first.weight.add_(statistics["first"], alpha=step)
        return model, Metrics()


class _IdleClipping(GaussianMechanism):  # type: ignore[misc]
    """Noise sized from one record's bound; the records were clipped by the user."""

    def constrain_sensitivity(
        self, statistics: Any, name_formatting_fn: Any = None, seed: int | None = None
    ) -> tuple[Any, Any]:
        return statistics, Metrics()


class _Everybody(FederatedDatasetBase):  # type: ignore[misc]
    """Every user, every round, in one order."""

    def __init__(self, users: list[Any]) -> None:
        super().__init__()
        self._users = users

    def __next__(self) -> tuple[Any, int]:
        raise StopIteration

    def get_cohort(self, cohort_size: int) -> Iterator[tuple[Any, int]]:
        return ((user, 0) for user in self._users)


class _InPlaceSum(SumAggregator):  # type: ignore[misc]
    """pfl's sum without a new array for each user."""

    def accumulate(self, *, accumulated: Any, user_stats: Any) -> Any:
        if accumulated is None:
            return user_stats
        accumulated["first"].add_(user_stats["first"])
        return accumulated


def algorithm_params(job: PeerJob, num_rounds: int) -> Any:
    """Return pfl's settings: all users in each round, evaluation never (but in round 0)."""
    return NNAlgorithmParams(
        central_num_iterations=num_rounds,
        evaluation_frequency=_NEVER,
        train_cohort_size=job.num_sites,
        val_cohort_size=None,
    )
