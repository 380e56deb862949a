"""Job J as other packages are given it: the records, the start, and how a round is timed.

Used by `pfl_job` and `opacus_job`; it imports neither package.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed_kan.data.federation import IID, FederatedData
from dpfed_kan.data.synthetic import SyntheticLogistic
from dpfed_kan.kan import TwoLayerKAN
from dpfed_kan.streams import Streams

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Between = Callable[[], None]

FORMS = ("user", "best")
Precision = Literal["float32", "float64"]
_HELD_OUT = 0.2


@dataclass(frozen=True, kw_only=True)
class PeerJob:
    """Job J without λ: no peer offers correlated noise, so theirs is independent.

    Args:
        dim: d.
        num_sites: K; 1 for a package without federation.
        num_records: n, over all sites.
        sampling_prob: q.
        l2_clip_norm: C, of one record's gradient.
        noise_multiplier: κ; 0 for none.
        learning_rate: η.
        precision: Of the peer's arithmetic; float32 is what both are used with.
    """

    dim: int
    num_sites: int
    num_records: int = 5000
    sampling_prob: float = 0.025
    l2_clip_norm: float = 0.5
    noise_multiplier: float = 6.3
    learning_rate: float = 1.0
    precision: Precision = "float32"

    @property
    def batch_size(self) -> float:
        """B = qn, expected and public."""
        return self.sampling_prob * self.num_records

    def load(self) -> PeerProblem:
        """Draw the records and the starting parameters that the product would draw."""
        streams = Streams.from_seed(0)
        data = FederatedData(
            source=SyntheticLogistic(
                num_records=round(self.num_records / (1.0 - _HELD_OUT)), input_dim=self.dim
            ),
            partition=IID(num_sites=self.num_sites),
            test_fraction=_HELD_OUT,
            min_records=1,
        )
        shards = data.load(streams).shards.values()
        model = TwoLayerKAN(hidden_width=32, num_basis=8, input_grid=None).for_inputs(self.dim)
        params = model.initialize(self.dim, streams.generator("initial_params"))
        return PeerProblem(
            model=model,
            features=[shard.features for shard in shards],
            labels=[shard.labels for shard in shards],
            trainable=params.trainable,
            frozen=params.frozen,
            dtype=getattr(torch, self.precision),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class PeerProblem:
    """The records of each site, in one order, and where training starts.

    Args:
        model: The network's public shape.
        features: Per site, shape (n_k, d).
        labels: Per site, shape (n_k,): -1 or +1.
        trainable: W, shape (m·d·p,).
        frozen: c, shape (m·p,).
        dtype: Of the peer's arithmetic.
    """

    model: TwoLayerKAN
    features: list[Matrix]
    labels: list[Vector]
    trainable: Vector
    frozen: Vector
    dtype: torch.dtype

    def tensor(self, array: NDArray[np.float64]) -> Tensor:
        """Return a copy as a tensor of the peer's precision."""
        return torch.tensor(array, dtype=self.dtype)


@dataclass(frozen=True, kw_only=True, eq=False)
class Measurement:
    """What a peer's run took.

    Args:
        startup_s: Wall seconds from the call to the end of its first round, records included,
            imports not.
        wall_s: Wall seconds of each later round.
        cpu_s: CPU seconds of each later round, all threads.
        trainable: W after the last round, shape (m·d·p,).
    """

    startup_s: float
    wall_s: list[float]
    cpu_s: list[float]
    trainable: Vector


class Measure(Protocol):
    """What each peer's module offers as `measure`."""

    def __call__(
        self, job: PeerJob, *, num_rounds: int, form: str, between: Between | None = None
    ) -> Measurement:
        """Run one round to start and `num_rounds` more that are timed."""
        ...


@dataclass(eq=False)
class Stopwatch:
    """Times rounds; the first closes the start-up.

    Args:
        between: Called after each timed round, outside its time: room for another loop whose
            rounds are to be interleaved with these.
    """

    between: Between | None
    startup_s: float | None = None
    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._start()

    def lap(self) -> None:
        """Say that a round has ended."""
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        if self.startup_s is None:
            self.startup_s = wall
        else:
            self.wall_s.append(wall)
            self.cpu_s.append(cpu)
            if self.between is not None:
                self.between()
        self._start()

    def measurement(self, trainable: Vector) -> Measurement:
        """Return the times.

        Raises:
            RuntimeError: If no round has ended.
        """
        if self.startup_s is None:
            raise RuntimeError("no round has ended")
        return Measurement(
            startup_s=self.startup_s, wall_s=self.wall_s, cpu_s=self.cpu_s, trainable=trainable
        )

    def _start(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()


@contextmanager
def one_thread() -> Iterator[None]:
    """Give torch one thread for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def check_form(form: str) -> None:
    """Refuse a form that no peer has.

    Raises:
        ValueError: If it is not one of `FORMS`.
    """
    if form not in FORMS:
        raise ValueError(f"expected form={form!r} in {FORMS}")


def report(peer: str, form: str, job: PeerJob, taken: Measurement) -> dict[str, str | float | int]:
    """Return one line of the benchmark's table; the memory is the whole process's so far."""
    wall = 1e3 * np.array(taken.wall_s)
    return {
        "peer": peer,
        "form": form,
        "precision": job.precision,
        "dim": job.dim,
        "num_sites": job.num_sites,
        "median_ms": round(float(np.median(wall)), 4),
        "p10_ms": round(float(np.percentile(wall, 10)), 4),
        "cpu_median_ms": round(1e3 * float(np.median(taken.cpu_s)), 4),
        "startup_s": round(taken.startup_s, 3),
        "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }


def command(peer: str, measure: Measure, *, sites: Sequence[int] | None = None) -> None:
    """Measure one peer from the command line and print one line of JSON.

    Args:
        peer: Its name.
        measure: Its function.
        sites: The numbers of sites it can do; None for any.
    """
    parser = argparse.ArgumentParser(description=f"Job J in {peer}.")
    parser.add_argument("--dim", type=int, default=784, help="input dimension d")
    parser.add_argument("--sites", type=int, default=1 if sites else 4, choices=sites, help="K")
    parser.add_argument("--rounds", type=int, default=100, help="rounds to time")
    parser.add_argument("--form", choices=FORMS, default="user")
    parser.add_argument("--precision", choices=("float32", "float64"), default="float32")
    options = parser.parse_args()
    job = PeerJob(dim=options.dim, num_sites=options.sites, precision=options.precision)
    taken = measure(job, num_rounds=options.rounds, form=options.form)
    print(json.dumps(report(peer, options.form, job, taken)))
