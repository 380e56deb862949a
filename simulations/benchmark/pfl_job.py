"""Job J in pfl-research 0.6, as its users would write it and in its best form.

    python -m simulations.benchmark.pfl_job [--dim 784] [--sites 4] [--rounds 100] [--form best]

pfl 0.6.0 wants dp-accounting < 0.6 and this package 0.6, so pip installs no environment with both
and there is no extra for it. In an environment of its own, beside this package:

    pip install -e '.[benchmark]' && pip install --no-deps pfl==0.6.0

(`pip check` then complains; the job uses no accountant.) Importing pfl sets the start method of
torch's multiprocessing to forkserver, so run it in a process of its own.

Both forms: every site is a pfl user, all K are in each cohort (`SimulatedBackend`), a user draws
its records by Poisson and answers with the sum of their clipped gradients, pfl's central Gaussian
mechanism adds the noise to the sum over users, and the server takes the step. No evaluation, but
for pfl's own in round 0 of `user`.

- `user`: `PyTorchModel` and `FederatedAveraging` whose local step is one step of SGD on the sum
  of per-record gradients by `torch.func.vmap`; metrics are printed as by default, here to nowhere.
- `best` (in `pfl_best`): the basis computed once per user, the factored sum as the user's
  statistics instead of a local step, so that no parameters are copied out and back; a user who
  drew nobody sends nothing; users in a list instead of a sampler; sums in place; no metrics
  printed.

What differs from the product: pfl clips users, not records. Its mechanism's own clipping is made
idle (a bound no user can reach in `user`; skipped in `best`), the record's clipping is the local
step's, and nothing checks that the two fit. Arithmetic and sums are float32 (with
`--precision float64` noise, and in `user` the users' sums, stay float32), noise is independent from
round to round (no λ) and from one generator, and there is no projection, ledger or refusal of wrong
replies. One user-level idea is not used: users that answer with factors for the server to multiply
would be one batch by another name, not a federation's messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import Any

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
from simulations.benchmark.torch_kan import TorchKAN, logistic_loss

try:
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel
    from pfl.privacy import CentrallyAppliedPrivacyMechanism, GaussianMechanism

    from simulations.benchmark.pfl_best import algorithm_params, run_best
except ImportError as error:
    raise ImportError(
        "this job needs pfl-research: pip install -e '.[benchmark]' && "
        "pip install --no-deps pfl==0.6.0, in an environment of its own"
    ) from error


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
        run = _run_as_user if form == "user" else run_best
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
            algorithm_params(job, num_rounds),
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
