"""Job J as loops that are stepped round by round: the bare one, and each runtime of the product.

J: n = 5,000 records over K sites (n = K where K is larger), Poisson batches of 125 expected,
KAN m = 32, p = 8, logistic, C = 0.5, κ = 6.3, projected SGD.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dpfed_kan.data.federation import IID, FederatedData
from dpfed_kan.data.synthetic import SyntheticLogistic
from dpfed_kan.experiment import Experiment, PrivacySettings
from dpfed_kan.federated.runtimes import Fused, InProcess, Precision
from dpfed_kan.federated.server import RoundRefused, SumOverSites
from dpfed_kan.federated.site import Broadcast, clipped_sum
from dpfed_kan.flower.client_app import client_app
from dpfed_kan.flower.exchange import meet_sites
from dpfed_kan.flower.grid import InProcessGrid
from dpfed_kan.kan import TwoLayerKAN
from dpfed_kan.models import port
from dpfed_kan.privacy.clipping import Vector
from dpfed_kan.privacy.ledger import Ledger
from dpfed_kan.privacy.noising import GaussianNoise
from dpfed_kan.privacy.sampling import Poisson
from dpfed_kan.run import RESERVED_AHEAD
from dpfed_kan.run_directory import RunDirectory
from dpfed_kan.simulated_sites import SimulatedSites
from dpfed_kan.training import PreparedRun
from dpfed_kan.update.sgd import ProjectedSGD

RECORDS, BATCH, CLIP, KAPPA, ETA, RADIUS = 5000, 125, 0.5, 6.3, 1.0, 100.0
_HELD_OUT = 200


def job(
    *,
    dim: int,
    num_sites: int,
    num_rounds: int,
    correlation: float = 0.5,
    update: Any = None,
    precision: Precision = "float64",
) -> Experiment:
    """Return job J of the design notes."""
    records = max(RECORDS, num_sites)
    source = SyntheticLogistic(num_records=records + _HELD_OUT, input_dim=dim)
    return Experiment(
        data=FederatedData(
            source=source,
            partition=IID(num_sites=num_sites),
            test_fraction=_HELD_OUT / (records + _HELD_OUT),
            min_records=1,
        ),
        model=TwoLayerKAN(hidden_width=32, num_basis=8, input_grid=None),
        sampling=Poisson(sampling_prob=BATCH / records),
        noise=GaussianNoise(noise_multiplier=KAPPA, correlation=correlation),
        privacy=PrivacySettings(l2_clip_norm=CLIP, target_epsilon=None, target_delta=1e-6),
        update=update or ProjectedSGD(learning_rate=ETA, projection_radius=RADIUS),
        runtime=Fused(precision=precision),
        num_rounds=num_rounds,
        seed=0,
    )


def bare_loop(
    planned: Experiment, sites: SimulatedSites, *, seen: Callable[[Vector], None] | None = None
) -> Iterator[None]:
    """The same maths over all records at once: no site, ledger, check or framework.

    Args:
        planned: Job J.
        sites: Its records.
        seen: Told the params after each round, for tests.
    """
    shards = sites.federation.shards.values()
    gradients = port.gradients(
        sites.model,
        frozen=sites.params.frozen,
        features=np.concatenate([shard.features for shard in shards]),
        labels=np.concatenate([shard.labels for shard in shards]),
        device="cpu",
    )
    rng = np.random.default_rng(0)
    records = sum(len(shard) for shard in shards)
    correlation = planned.noise.correlation
    start = params = sites.params.trainable
    previous = np.zeros_like(params)
    while True:
        batch = np.flatnonzero(rng.random(records) < BATCH / records)
        (block,) = gradients.blocks(params, batch)
        norms = np.linalg.norm(block.left, axis=1) * np.linalg.norm(block.right, axis=1)
        factors = np.minimum(1.0, CLIP / norms)
        total = ((block.left * factors[:, None]).T @ block.right).ravel()
        noise = rng.standard_normal(len(params))
        total += CLIP * KAPPA * (noise - correlation * previous if correlation else noise)
        previous = noise
        params = params - (ETA / BATCH) * total
        offset = params - start
        norm = math.sqrt(float(offset @ offset))
        if norm > RADIUS:
            params = start + (RADIUS / norm) * offset
        if seen is not None:
            seen(params)
        yield


def product_loop(plan: PreparedRun, scratch: Path, *, by_messages: bool) -> Generator[None]:
    """The product's rounds as `run` has them: ledger and metrics on disk, checkpoints, account."""
    directory = RunDirectory.create(scratch, experiment=plan.experiment, streams=plan.streams)
    ledger = Ledger(
        mechanism=plan.server.mechanism,
        num_records=plan.server.num_records,
        path=directory.ledger_path,
        reserve_ahead=RESERVED_AHEAD,
    )
    total = messages(plan) if by_messages else plan.sites.fused()
    steps = plan.training(
        plan.start(directory), directory=directory, ledger=ledger, sum_over_sites=total
    )
    with contextlib.closing(steps):
        for _ in steps:
            yield


def messages(plan: PreparedRun) -> SumOverSites:
    """Return the sum over sites by Flower messages in this process."""
    num_sites = len(plan.server.num_records)
    exchange = meet_sites(
        InProcessGrid(client_app(plan.sites, local=True), num_sites),
        num_records=plan.server.num_records,
        num_params=len(plan.sites.params.trainable),
        settings=plan.sites.settings,
        timeout=InProcess().timeout,
    )
    return plan.server.over(exchange)


def own_arithmetic(plan: PreparedRun) -> SumOverSites:
    """Return the sum over sites without a message: each clipped sum, its length, the addition."""
    names = sorted(plan.server.num_records)
    sites = [plan.sites(plan.sites.settings, k) for k in range(len(names))]

    def total(broadcast: Broadcast) -> Any:
        value = np.zeros(len(broadcast.params))
        for site in sites:
            answer = clipped_sum(
                site.gradients,
                broadcast,
                site.draw(broadcast.round_index),
                l2_clip_norm=site.l2_clip_norm,
                patients=None,
                rows_at_once=None,
            )
            if not math.isfinite(answer @ answer):
                raise RoundRefused(site.name)
            value += answer
        return value

    return total
