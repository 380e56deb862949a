"""Job J in Opacus 1.6 at a single site, as its users would write it and in its best form.

    python -m simulations.benchmark.opacus_job [--dim 784] [--rounds 100] [--form best]

Needs `pip install -e '.[benchmark]'`. Opacus knows no federation: one site holds all records.

Both forms: `PrivacyEngine.make_private`, its Poisson `DPDataLoader`, flat clipping of each record
and torch's SGD. Its accountant only counts steps; ε is not asked for.

- `user`: the network as a torch module and the default settings. The spline layer has no
  registered sampler, so its per-record gradients come from functorch and are kept in full.
- `best`: the basis computed once, so that what is trained is a `Linear` without bias, the frozen
  rest one function with its own derivative, ghost clipping (no per-record gradient is kept, but
  there are two backward passes), and whole batches taken from one tensor instead of collated.

What differs from the product: arithmetic and sums are float32 unless `--precision float64`, a
record's clip factor is C/(norm + 1e-6), noise is independent from round to round (no λ) and from
torch's own generator, and there is no projection and no durable ledger.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

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
from simulations.benchmark.torch_kan import LinearKAN, TorchKAN, logistic_loss, scaled_basis

try:
    from opacus import PrivacyEngine
except ImportError as error:
    raise ImportError("this job needs Opacus: pip install -e '.[benchmark]'") from error


def seconds_per_round(*, dim: int, num_sites: int, num_rounds: int, form: str) -> list[float]:
    """Return the wall seconds of each round after start-up; `measure` tells the start-up too."""
    return measure(PeerJob(dim=dim, num_sites=num_sites), num_rounds=num_rounds, form=form).wall_s


def measure(
    job: PeerJob, *, num_rounds: int, form: str, between: Between | None = None
) -> Measurement:
    """Run one round to start and `num_rounds` more.

    Args:
        job: What to run, at one site.
        num_rounds: How many rounds to time, at least 0.
        form: "user" or "best".
        between: Called after each timed round, outside its time.

    Raises:
        ValueError: If there is more than one site.
    """
    check_form(form)
    if job.num_sites != 1:
        raise ValueError(f"expected num_sites={job.num_sites} to be 1: Opacus has no federation")
    watch = Stopwatch(between)
    with one_thread(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Secure RNG turned off")
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        problem = job.load()
        run = _run_as_user if form == "user" else _run_best
        trainable = run(job, problem, num_rounds=num_rounds + 1, lap=watch.lap)
    return watch.measurement(trainable)


def _run_as_user(
    job: PeerJob, problem: PeerProblem, *, num_rounds: int, lap: Callable[[], None]
) -> Vector:
    network = TorchKAN(problem)
    dataset = TensorDataset(problem.tensor(problem.features[0]), problem.tensor(problem.labels[0]))
    model, optimizer, loader = PrivacyEngine().make_private(
        module=network,
        optimizer=_sgd(network, job),
        data_loader=DataLoader(dataset, batch_size=round(job.batch_size)),
        noise_multiplier=job.noise_multiplier,
        max_grad_norm=job.l2_clip_norm,
    )
    for x, y in _batches(loader, num_rounds):
        optimizer.zero_grad()
        logistic_loss(model(x), y).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        lap()
    return network.flat().to(torch.float64).numpy()


def _run_best(
    job: PeerJob, problem: PeerProblem, *, num_rounds: int, lap: Callable[[], None]
) -> Vector:
    network = LinearKAN(problem)
    dataset = _Rows(
        scaled_basis(problem, problem.features[0]),
        problem.tensor(problem.labels[0]),
    )
    model, optimizer, criterion, loader = PrivacyEngine().make_private(
        module=network,
        optimizer=_sgd(network, job),
        criterion=_Logistic(),
        data_loader=DataLoader(
            dataset, batch_size=round(job.batch_size), collate_fn=lambda batch: batch
        ),
        noise_multiplier=job.noise_multiplier,
        max_grad_norm=job.l2_clip_norm,
        grad_sample_mode="ghost",
    )
    for phi, y in _batches(loader, num_rounds):
        optimizer.zero_grad(set_to_none=True)
        criterion(model(phi), y).backward()
        optimizer.step()
        lap()
    return network.flat().to(torch.float64).numpy()


class _Logistic(nn.Module):
    """The loss in the shape that ghost clipping asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.reduction = "mean"

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        losses = logistic_loss(scores, labels)
        return losses if self.reduction == "none" else losses.mean()


class _Rows(Dataset[tuple[Tensor, Tensor]]):
    """Hands out a batch by one selection of rows."""

    def __init__(self, basis: Tensor, labels: Tensor) -> None:
        self._basis, self._labels = basis, labels

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._basis[index], self._labels[index]

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        rows = torch.tensor(indices, dtype=torch.int64)
        return self._basis.index_select(0, rows), self._labels.index_select(0, rows)


def _sgd(network: nn.Module, job: PeerJob) -> torch.optim.Optimizer:
    trained = [param for param in network.parameters() if param.requires_grad]
    return torch.optim.SGD(trained, lr=job.learning_rate)


def _batches(loader: Any, num_rounds: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches over as many epochs as are needed."""
    left = num_rounds
    while left > 0:
        for batch in loader:
            yield batch
            left -= 1
            if left == 0:
                return


if __name__ == "__main__":
    command("opacus", measure, sites=[1])
