"""Job J in pfl-research 0.6, as its users would write it and in its best form.

    python -m simulations.benchmark.pfl_job [--dim 784] [--sites 4] [--rounds 100] [--form best]

pfl 0.6.0 wants dp-accounting < 0.6 and this package 0.6, so pip installs no environment with both
and there is no extra for it. In an environment of its own, beside this package:

    pip install -e '.[benchmark]' && pip install --no-deps pfl==0.6.0

(`pip check` then complains; the job uses no accountant.) Importing pfl sets the start method of
torch's multiprocessing to forkserver, so run it in a process of its own.

Both forms: every site is a pfl user, all K are in each cohort (`SimulatedBackend`), a user draws
its records by Poisson and answers with the sum of their clipped gradients, pfl's central Gaussian
mechanism adds the noise to the sum over users, and the server takes the step. No evaluation.

- `user`: `PyTorchModel` and `FederatedAveraging` whose local step is one step of SGD on the sum
  of per-record gradients by `torch.func.vmap`; metrics are printed as by default, here to nowhere.
- `best`: the basis computed once per user, the factored sum as the user's statistics instead of a
  local step, so that no parameters are copied out and back; a user who drew nobody sends nothing;
  users in a list instead of a sampler; sums in place; no metrics printed.

What differs from the product: pfl clips users, not records. Its mechanism's own clipping is made
idle (a bound no user can reach in `user`; skipped in `best`), the record's clipping is the local
step's, and nothing checks that the two fit. Arithmetic and sums are float32, noise is independent
from round to round (no λ) and from one generator, and there is no projection, ledger or refusal
of wrong replies.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from simulations.benchmark.peer_job import (
    Between,
    Measurement,
    PeerJob,
    PeerProblem,
    Stopwatch,
    Vector,
    check_form,
    command,
    one_thread,
)
from simulations.benchmark.torch_kan import (
    LinearKAN,
    TorchKAN,
    logistic_loss,
    scaled_basis,
)

try:
    from pfl.aggregate.base import SumAggregator
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset, FederatedDatasetBase
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel
    from pfl.privacy import CentrallyAppliedPrivacyMechanism, GaussianMechanism
    from pfl.stats import MappedVectorStatistics
except ImportError as error:
    raise ImportError(
        "this job needs pfl-research: pip install -e '.[benchmark]' && "
        "pip install --no-deps pfl==0.6.0, in an environment of its own"
    ) from error

_NEVER = 10**9


def seconds_per_round(*, dim: int, num_sites: int, num_rounds: int, form: str) -> list[float]:
    """Return the wall seconds of each round after start-up; `measure` tells the start-up too."""
    return measure(PeerJob(dim=dim, num_sites=num_sites), num_rounds=num_rounds, form=form).wall_s


def measure(
    job: PeerJob, *, num_rounds: int, form: str, between: Between | None = None
) -> Measurement:
    """Run one round to start and `num_rounds` more.

    Args:
        job: What to run.
        num_rounds: How many rounds to time, at least 0.
        form: "user" or "best".
        between: Called after each timed round, outside its time.
    """
    check_form(form)
    watch = Stopwatch(between)
    with one_thread(), _event_loop(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="To copy construct from a tensor")
        problem = job.load()
        run = _run_as_user if form == "user" else _run_best
        trainable = run(job, problem, num_rounds=num_rounds + 1, laps=_Laps(watch))
    return watch.measurement(trainable)


def _run_as_user(job: PeerJob, problem: PeerProblem, *, num_rounds: int, laps: _Laps) -> Vector:
    users = {
        str(site): (problem.tensor(features), problem.tensor(labels))
        for site, (features, labels) in enumerate(
            zip(problem.features, problem.labels, strict=True)
        )
    }
    data = FederatedDataset(
        lambda user: PyTorchTensorDataset(users[user], user_id=user),
        get_user_sampler("minimize_reuse", list(users)),
    )
    module = _UserModule(problem)
    out_of_reach = job.num_records * job.l2_clip_norm
    model = PyTorchModel(
        module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(  # FederatedAveraging divides the sum by K
            module.parameters(), lr=job.learning_rate * job.num_sites / job.batch_size
        ),
    )
    mechanism = GaussianMechanism(out_of_reach, job.noise_multiplier / job.num_records)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        _RecordLevelAveraging(job).run(
            _algorithm_params(job, num_rounds),
            SimulatedBackend(data, None, [CentrallyAppliedPrivacyMechanism(mechanism)]),
            model,
            NNTrainHyperParams(local_num_epochs=1, local_learning_rate=1.0, local_batch_size=None),
            NNEvalHyperParams(local_batch_size=None),
            callbacks=[laps],
        )
    return module.flat().to(torch.float64).numpy()


class _UserModule(TorchKAN):
    """The network with the two methods that `PyTorchModel` asks for."""

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return logistic_loss(self(x), y).mean()

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        with torch.no_grad():
            return {"loss": Weighted(float(logistic_loss(self(x), y).sum()), len(y))}


class _RecordLevelAveraging(FederatedAveraging):  # type: ignore[misc]
    """Federated averaging with one local step of per-record clipped SGD."""

    def __init__(self, job: PeerJob) -> None:
        super().__init__()
        self._job = job

    def train_one_user(
        self, initial_model_state: Any, model: Any, user_dataset: Any, central_context: Any
    ) -> tuple[Any, Any]:
        model.do_multiple_epochs_of(user_dataset, central_context.model_train_params, self._step)
        return model.get_model_difference(initial_model_state), Metrics()

    def _step(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        batch: list[Tensor],
        train_kwargs: dict[str, Any],
        step_args: Any,
    ) -> None:
        x, y = batch
        drawn = torch.rand(len(y)) < self._job.sampling_prob
        if not drawn.any():
            return
        trained = {n: p.detach() for n, p in module.named_parameters() if p.requires_grad}

        def loss(params: dict[str, Tensor], record: Tensor, label: Tensor) -> Tensor:
            score = functional_call(module, params, (record[None],))
            return logistic_loss(score, label[None]).sum()

        grads = vmap(grad(loss), in_dims=(None, 0, 0))(trained, x[drawn], y[drawn])
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
        factors = (self._job.l2_clip_norm / norms).clamp(max=1.0)
        for name, param in module.named_parameters():
            if param.requires_grad:
                param.grad = torch.einsum("i,i...->...", factors, grads[name])
        optimizer.step()


def _run_best(job: PeerJob, problem: PeerProblem, *, num_rounds: int, laps: _Laps) -> Vector:
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
            _algorithm_params(job, num_rounds),
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


class _Laps(TrainingProcessCallback):  # type: ignore[misc]
    """Tells a stopwatch when a round has ended."""

    def __init__(self, watch: Stopwatch) -> None:
        super().__init__()
        self._watch = watch

    def after_central_iteration(
        self, aggregate_metrics: Any, model: Any, *, central_iteration: int
    ) -> tuple[bool, Any]:
        self._watch.lap()
        return False, Metrics()


def _algorithm_params(job: PeerJob, num_rounds: int) -> Any:
    return NNAlgorithmParams(
        central_num_iterations=num_rounds,
        evaluation_frequency=_NEVER,
        train_cohort_size=job.num_sites,
        val_cohort_size=None,
    )


@contextlib.contextmanager
def _event_loop() -> Iterator[None]:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        yield
    finally:
        loop.close()
        asyncio.set_event_loop(None)


if __name__ == "__main__":
    command("pfl-research", measure)
