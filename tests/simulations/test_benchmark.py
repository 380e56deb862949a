"""The benchmark runs, its bare loop does the product's maths, and it writes what it prints."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpfed_kan.privacy.noising import NoNoise
from dpfed_kan.privacy.sampling import FullBatch
from dpfed_kan.training import PreparedRun
from simulations.benchmark import __main__ as benchmark
from simulations.benchmark import loops


def test_every_quick_part_is_measured_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "found.json"
    arguments = "--parts fused messages kernels --dims 5 --sites 4 --rounds 20 --out".split()
    monkeypatch.setattr("sys.argv", ["benchmark", *arguments, str(out)])
    benchmark.main()
    found = json.loads(out.read_text())
    assert found["fused"][0]["ratio"] > 0.2
    assert found["messages"][0]["arithmetic_us_a_site"] > 0
    assert found["kernels"][0]["kernel"] == "sgd"
    assert found["kernels"][0]["ratio"] == 1.0


def test_the_bare_loop_takes_the_products_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """At q = 1 and κ = 0 both take the full clipped gradient, over the same constant B."""
    monkeypatch.setattr(loops, "BATCH", loops.RECORDS)
    monkeypatch.setattr(loops, "KAPPA", 0.0)
    planned = loops.job(dim=5, num_sites=4, num_rounds=3)
    planned = replace(planned, sampling=FullBatch(), noise=NoNoise())
    plan = PreparedRun.of(planned, planned.streams())
    moved = []
    bare = loops.bare_loop(planned, plan.sites, seen=moved.append)
    for _ in range(3):
        next(bare)
    state = planned.update.start(plan.sites.params.trainable)
    fused = plan.sites.fused()
    for expected in moved:
        total = fused(loops.Broadcast(round_index=state.num_steps, params=state.params))
        release = plan.server.mechanism.privatize(
            total, round_index=state.num_steps, streams=plan.streams
        )
        state = planned.update.step(state, release, batch_size=plan.server.batch_size)
        np.testing.assert_allclose(expected, state.params, rtol=0, atol=1e-10)
