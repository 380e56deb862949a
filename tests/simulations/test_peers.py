"""Job J in other packages is the same job: one round without noise moves W as ours does."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

from dpfed_kan.kan import KANGradients
from dpfed_kan.privacy.clipping import clip_and_sum, squared_norms
from simulations.benchmark.peer_job import FORMS, PeerJob

CASES = [("pfl_job", 1), ("pfl_job", 3), ("opacus_job", 1)]


def peer(name: str) -> Any:
    try:
        return importlib.import_module(f"simulations.benchmark.{name}")
    except ImportError as error:
        pytest.skip(str(error))


@pytest.mark.filterwarnings("ignore:::pfl", "ignore:::opacus", "ignore:::torch")
@pytest.mark.parametrize(
    ("form", "precision", "tolerance"),
    [("user", "float32", 1e-4), ("best", "float32", 1e-4), ("best", "float64", 1e-5)],
)
@pytest.mark.parametrize(("name", "num_sites"), CASES)
def test_the_clipped_sum_of_a_peer_is_ours(
    name: str,
    num_sites: int,
    form: str,
    precision: Literal["float32", "float64"],
    tolerance: float,
) -> None:
    measure = peer(name).measure
    job = PeerJob(
        dim=5,
        num_sites=num_sites,
        num_records=90,
        sampling_prob=1.0,
        noise_multiplier=0.0,
        precision=precision,
    )
    problem = job.load()
    gradients = KANGradients(
        model=problem.model,
        frozen=problem.frozen,
        features=np.concatenate(problem.features),
        labels=np.concatenate(problem.labels),
    )
    blocks = gradients.blocks(problem.trainable, np.arange(90))
    bound = float(np.median(np.sqrt(squared_norms(blocks))))  # half of the records are clipped
    expected = clip_and_sum(blocks, l2_clip_norm=bound).value
    job = replace(job, l2_clip_norm=bound, learning_rate=job.batch_size)
    moved = problem.trainable - measure(job, num_rounds=0, form=form).trainable
    assert np.linalg.norm(moved - expected) <= tolerance * np.linalg.norm(expected)


@pytest.mark.filterwarnings("ignore:::pfl", "ignore:::opacus", "ignore:::torch")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("name", "num_sites"), CASES)
def test_a_peer_adds_noise_of_the_jobs_size(name: str, num_sites: int, form: str) -> None:
    measure = peer(name).measure
    job = PeerJob(dim=20, num_sites=num_sites, num_records=300, sampling_prob=0.1)
    job = replace(job, noise_multiplier=1000.0)
    taken = measure(job, num_rounds=1, form=form)
    assert len(taken.wall_s) == 1
    moved = (taken.trainable - job.load().trainable) * job.batch_size / job.learning_rate
    expected = job.noise_multiplier * job.l2_clip_norm * np.sqrt(2)  # of two rounds
    assert moved.std() == pytest.approx(expected, rel=0.05)
