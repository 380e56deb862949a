"""Worker processes give what one process gives, end with it, and are named when they fail."""

import multiprocessing
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfed_kan.federated.runtimes import Fused, Workers
from dpfed_kan.federated.server import RoundRefused
from dpfed_kan.federated.site import Broadcast
from dpfed_kan.run import run
from dpfed_kan.simulated_sites import SimulatedSites
from dpfed_kan.worker_pool import pooled

SETTINGS = {
    "fixed_size": {
        "sampling": {
            "_target_": "dpfed_kan.privacy.joint_sampling.FixedSize",
            "batch_size": 20,
        }
    },
    "macadam": {
        "update": {"_target_": "dpfed_kan.update.macadam.DPMacAdam", "learning_rate": 0.01}
    },
}


@pytest.mark.parametrize("changes", list(SETTINGS))
def test_a_run_over_workers_is_the_run_in_one_process(
    tmp_path: Path, experiment: Any, changes: str
) -> None:
    results = [
        run(replace(experiment(**SETTINGS[changes]), runtime=runtime), tmp_path / str(number))
        for number, runtime in enumerate([Fused(), Workers(num_workers=2, timeout=120.0)])
    ]
    one, two = (result.directory.load_checkpoint() for result in results)
    np.testing.assert_allclose(one.params, two.params, rtol=0, atol=1e-12)
    assert results[0].epsilon_per_site == results[1].epsilon_per_site
    assert not multiprocessing.active_children()


def test_a_worker_that_dies_is_named_and_the_others_end(experiment: Any) -> None:
    job = experiment()
    sites = SimulatedSites(job, job.streams())
    with pooled(sites, Workers(num_workers=2, timeout=120.0)) as total:
        first = Broadcast(round_index=0, params=sites.params.trainable)
        assert np.isfinite(total(first).value).all()
        children = multiprocessing.active_children()
        assert len(children) == 2
        os.kill(next(c.pid for c in children if c.pid), signal.SIGKILL)
        with pytest.raises(RoundRefused, match=r"round 1: the worker of site-\d.* died"):
            for _ in range(3):
                total(replace(first, round_index=1))
    assert not multiprocessing.active_children()
