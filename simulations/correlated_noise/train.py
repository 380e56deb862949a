"""One training of the paper's job through the product's own server, sites and noise."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from dpfed_kan.data.federation import IID, FederatedData
from dpfed_kan.data.mnist import MNIST
from dpfed_kan.data.synthetic import SyntheticLogistic
from dpfed_kan.evaluation import evaluate
from dpfed_kan.experiment import Experiment, PrivacySettings
from dpfed_kan.federated.fused import FusedSites
from dpfed_kan.federated.runtimes import Fused
from dpfed_kan.federated.server import Server, rounds
from dpfed_kan.kan import KANGradients, TwoLayerKAN
from dpfed_kan.models import port
from dpfed_kan.privacy.clipping import Vector
from dpfed_kan.privacy.joint_sampling import FixedSize, at_site, total_batch_size
from dpfed_kan.privacy.ledger import Ledger
from dpfed_kan.privacy.mechanism import Mechanism
from dpfed_kan.privacy.noising import GaussianNoise, NoNoise
from dpfed_kan.simulated_sites import SimulatedSites
from dpfed_kan.update.sgd import ProjectedSGD

RECORDS, BATCH, ROUNDS, CLIP, ETA, DELTA = 5000, 125, 400, 0.5, 1.0, 1e-5
DATA_SETS = ("synthetic", "mnist")
_EVERY, _TEST = 10, 1000


def job(data: str, *, mnist_root: Path | None, seed: int, **changes: Any) -> Experiment:
    """Return the job of Figure 2 without noise: n=5000, B=125, T=400, C=.5, η=1, m=32, p=8.

    Args:
        data: synthetic (d = 20, ours: the paper's generator is not published) or mnist (8 against
            3, pixels in [0, 1] on the paper's grid).
        mnist_root: The folder of the MNIST files.
        seed: Of data, start, batches and noise.
        changes: Of the experiment.

    Raises:
        ValueError: If MNIST is asked for without its folder.
    """
    if data == "synthetic":
        federated = FederatedData(
            source=SyntheticLogistic(num_records=RECORDS + _TEST),
            partition=IID(num_sites=4),
            test_fraction=_TEST / (RECORDS + _TEST),
        )
    elif mnist_root is None:
        raise ValueError("mnist needs the folder of its files: --mnist-root DIR")
    else:
        federated = FederatedData(
            source=MNIST(root=str(mnist_root), num_train=RECORDS),
            partition=IID(num_sites=4),
            test_fraction=None,
        )
    made = Experiment(
        data=federated,
        model=TwoLayerKAN(
            hidden_width=32, num_basis=8, input_grid=1.0 if data == "mnist" else None
        ),
        sampling=FixedSize(batch_size=BATCH),
        noise=NoNoise(),
        privacy=PrivacySettings(l2_clip_norm=CLIP, target_epsilon=None, target_delta=DELTA),
        update=ProjectedSGD(learning_rate=ETA),
        runtime=Fused(),
        num_rounds=ROUNDS,
        seed=seed,
    )
    return replace(made, **changes)


def at_noise(kappa: float, correlation: float) -> GaussianNoise | NoNoise:
    """Return λ-correlated noise of multiplier κ; none at κ = 0."""
    if kappa == 0:
        return NoNoise()
    return GaussianNoise(noise_multiplier=kappa, correlation=correlation)


def train(experiment: Experiment, sites: SimulatedSites, mechanism: Mechanism) -> dict[str, float]:
    """Train, and return losses on the training records and figures on the test records.

    The averaged loss is the mean over every tenth iterate, the start left out.

    Args:
        experiment: Its update rule, clip and streams are used.
        sites: Of the same data, model and seed; φ is computed once for several trainings.
        mechanism: Sampling, noise and horizon.
    """
    server = Server(
        mechanism=mechanism,
        update_rule=experiment.update,
        num_records=sites.num_records,
        batch_size=total_batch_size(mechanism.sampling, list(sites.num_records.values())),
    )
    fused = fused_under(sites, mechanism)
    states = rounds(
        server,
        experiment.update.start(sites.params.trainable, num_rounds=mechanism.num_rounds),
        sum_over_sites=fused,
        streams=experiment.streams(),
        ledger=Ledger(mechanism=mechanism, num_records=sites.num_records),
    )
    losses = []
    with threadpool_limits(experiment.runtime.num_threads):
        for state in states:
            if state.num_steps % _EVERY == 0:
                losses.append(_training_loss(fused, state.params))
        held_out = sites.federation.held_out
        frozen = sites.params.frozen
        scores = port.decisions(sites.model, state.model_params, frozen, held_out.features)
        found = evaluate(scores, held_out.labels)
        return {
            "averaged_loss": float(np.mean(losses)),
            "final_loss": losses[-1],
            "test_accuracy": float("nan") if found.accuracy is None else found.accuracy,
            "test_loss": found.loss,
            "share_projected": state.num_projected / state.num_steps,
        }


def fused_under(sites: SimulatedSites, mechanism: Mechanism) -> FusedSites:
    """Return all sites under a mechanism; what was computed of the records is shared."""
    base = union(sites)
    return replace(
        base,
        sites={
            name: replace(site, sampling=at_site(mechanism.sampling, site.num_records))
            for name, site in base.sites.items()
        },
        l2_clip_norm=mechanism.l2_clip_norm,
    )


@lru_cache(maxsize=1)
def union(sites: SimulatedSites) -> FusedSites:
    """Return all sites as one; what was computed of the records is kept until other sites come."""
    return sites.fused()


def _training_loss(fused: FusedSites, params: Vector) -> float:
    if not isinstance(fused.gradients, KANGradients):
        raise TypeError("expected a KAN")
    return fused.gradients.loss_and_scores(params)[0]
