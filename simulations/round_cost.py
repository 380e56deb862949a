"""Time of a federated round beside the bare loop of the same maths, as a ratio in one process.

    python -m simulations.round_cost [--dim 784] [--sites 4] [--rounds 200]

Both do Poisson batches of 125 of 5,000 records, m=32, p=8, clipped sums in float64, λ noise
and the projected step. The bare loop knows no site, message, ledger or check: one batch drawn
from all records, one sum. Machines are noisy: read the ratio, not the milliseconds.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

from dpfed_kan.data.federation import IID, FederatedData
from dpfed_kan.data.synthetic import SyntheticLogistic
from dpfed_kan.experiment import Experiment, PrivacySettings
from dpfed_kan.federated.runtimes import InProcess
from dpfed_kan.federated.server import Server, rounds
from dpfed_kan.flower.client_app import client_app
from dpfed_kan.flower.exchange import meet_sites
from dpfed_kan.flower.grid import InProcessGrid
from dpfed_kan.kan import TwoLayerKAN
from dpfed_kan.models import port
from dpfed_kan.privacy.ledger import Ledger
from dpfed_kan.privacy.noising import GaussianNoise
from dpfed_kan.privacy.sampling import Poisson
from dpfed_kan.simulated_sites import SimulatedSites
from dpfed_kan.streams import Streams
from dpfed_kan.update.sgd import ProjectedSGD

_RECORDS, _PROB, _CLIP, _KAPPA, _LAMBDA, _ETA = 5000, 0.025, 0.5, 6.3, 0.5, 1.0


def experiment(*, dim: int, num_sites: int, num_rounds: int) -> Experiment:
    """Return job J of the design notes."""
    source = SyntheticLogistic(num_records=round(_RECORDS / 0.8), input_dim=dim)
    return Experiment(
        data=FederatedData(source=source, partition=IID(num_sites=num_sites)),
        model=TwoLayerKAN(hidden_width=32, num_basis=8, input_grid=None),
        sampling=Poisson(sampling_prob=_PROB),
        noise=GaussianNoise(noise_multiplier=_KAPPA, correlation=_LAMBDA),
        privacy=PrivacySettings(l2_clip_norm=_CLIP, target_epsilon=None, target_delta=1e-5),
        update=ProjectedSGD(learning_rate=_ETA, projection_radius=100.0),
        runtime=InProcess(),
        num_rounds=num_rounds,
        seed=0,
    )


def federated_rounds(
    job: Experiment, sites: SimulatedSites, ledger_path: Path | None
) -> Iterator[None]:
    """Run the product's rounds, message by message."""
    mechanism = job.mechanism(sites.num_records)
    server = Server(
        mechanism=mechanism,
        update_rule=job.update,
        num_records=sites.num_records,
        batch_size=_PROB * _RECORDS,
    )
    exchange = meet_sites(
        InProcessGrid(client_app(sites), len(sites.num_records)),
        num_records=sites.num_records,
        num_params=len(sites.params.trainable),
        settings=sites.settings,
        timeout=60.0,
    )
    state = job.update.start(sites.params.trainable)
    ledger = Ledger(mechanism=mechanism, num_records=sites.num_records, path=ledger_path)
    total = server.over(exchange)
    for _ in rounds(server, state, sum_over_sites=total, streams=job.streams(), ledger=ledger):
        yield


def bare_rounds(job: Experiment, sites: SimulatedSites) -> Iterator[None]:
    """Run the same maths over all records at once, with numpy's default generator."""
    shards = sites.federation.shards.values()
    gradients = port.gradients(
        sites.model,
        frozen=sites.params.frozen,
        features=np.concatenate([shard.features for shard in shards]),
        labels=np.concatenate([shard.labels for shard in shards]),
        device=job.runtime.device,
    )
    rng = np.random.default_rng(0)
    start = params = sites.params.trainable
    previous = np.zeros_like(params)
    for _ in range(job.num_rounds):
        batch = np.flatnonzero(rng.random(_RECORDS) < _PROB)
        (block,) = gradients.blocks(params, batch)
        norms = np.linalg.norm(block.left, axis=1) * np.linalg.norm(block.right, axis=1)
        factors = np.minimum(1.0, _CLIP / norms)
        total = ((block.left * factors[:, None]).T @ block.right).ravel()
        noise = rng.standard_normal(len(params))
        total += _CLIP * _KAPPA * (noise - _LAMBDA * previous)
        previous = noise
        params = params - (_ETA / (_PROB * _RECORDS)) * total
        offset = params - start
        norm = math.sqrt(float(offset @ offset))
        if norm > 100.0:
            params = start + (100.0 / norm) * offset
        yield


def main() -> None:
    """Interleave both loops round by round and print the ratio of their medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dim", type=int, default=784, help="input dimension d")
    parser.add_argument("--sites", type=int, default=4, help="number of sites K")
    parser.add_argument("--rounds", type=int, default=200, help="rounds to time")
    parser.add_argument("--in-memory", action="store_true", help="do not flush the ledger to disk")
    options = parser.parse_args()
    job = experiment(dim=options.dim, num_sites=options.sites, num_rounds=options.rounds)
    sites = SimulatedSites(job, Streams.from_seed(0))
    with tempfile.TemporaryDirectory() as scratch, threadpool_limits(1):
        ledger_path = None if options.in_memory else Path(scratch) / "ledger.jsonl"
        loops = {
            "bare loop": bare_rounds(job, sites),
            "federated": federated_rounds(job, sites, ledger_path),
        }
        seconds: dict[str, list[float]] = {name: [] for name in loops}
        for _ in range(options.rounds):
            for name, loop in loops.items():
                start = time.perf_counter()
                next(loop)
                seconds[name].append(time.perf_counter() - start)
    table = Table(title=f"d={options.dim}, m=32, p=8, B=125, K={options.sites}")
    for column in ("loop", "median ms", "10th percentile ms", "ratio"):
        table.add_column(column, justify="left" if column == "loop" else "right")
    base = np.median(seconds["bare loop"])
    for name, taken in seconds.items():
        median, low = np.median(taken), np.percentile(taken, 10)
        ratio = f"{median / base:.2f}"
        table.add_row(name, f"{1e3 * median:.2f}", f"{1e3 * low:.2f}", ratio)
    Console().print(table)


if __name__ == "__main__":
    main()
