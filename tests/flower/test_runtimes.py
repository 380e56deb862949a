from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from dpfed_kan.federated.runtimes import InProcess, Ray
from dpfed_kan.flower import runtimes

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("runtime", [InProcess, Ray])
@pytest.mark.parametrize("setting", [{"num_threads": 0}, {"timeout": 0.0}, {"timeout": -1.0}])
def test_a_setting_out_of_range_is_refused_and_named(runtime, setting):
    with pytest.raises(ValueError, match=next(iter(setting))):
        runtime(**setting)


def test_in_process_gives_main_a_grid_of_the_sites_and_its_number_of_threads(federation):
    seen = []

    def main(grid):
        seen.extend(federation.meet(grid).nodes)
        seen.append({pool["num_threads"] for pool in threadpool_info()})

    with threadpool_limits(2):
        runtimes.start(InProcess(), federation.build_site, num_sites=3, main=main)
        after = {pool["num_threads"] for pool in threadpool_info()}
    assert seen == [*federation.sizes, {1}]
    assert after == {2}


def test_what_main_raises_comes_out_of_in_process(federation):
    def main(grid):
        raise KeyError("round 3")

    with pytest.raises(KeyError):
        runtimes.start(InProcess(), federation.build_site, num_sites=3, main=main)


# Ray, in processes of its own: it is asked to leave none behind.

_PREAMBLE = """
import os, sys, threading, time
from pathlib import Path
import numpy as np
from threadpoolctl import threadpool_info
from dpfed_kan.federated.server import RoundRefused, Server, rounds
from dpfed_kan.federated.site import Site
from dpfed_kan.flower._compat import child_processes
from dpfed_kan.flower.exchange import meet_sites
from dpfed_kan.federated.runtimes import Ray
from dpfed_kan.flower import runtimes
from dpfed_kan.privacy.clipping import GradientBlock
from dpfed_kan.privacy.ledger import Ledger
from dpfed_kan.privacy.mechanism import Mechanism
from dpfed_kan.privacy.noising import NoNoise
from dpfed_kan.privacy.sampling import FullBatch
from dpfed_kan.streams import Streams
from dpfed_kan.update.sgd import ProjectedSGD

SIZES = {"site-1": 5, "site-2": 5, "site-3": 5}

class Gradients:
    num_params = 2
    def __init__(self, name):
        self.name = name
    def blocks(self, params, indices):
        if {pool["num_threads"] for pool in threadpool_info()} != {1}:
            raise RuntimeError("more threads than one")
        work(self.name, params)
        return (GradientBlock(left=np.ones((len(indices), 1)), right=np.ones((len(indices), 2))),)

def build_site(settings, partition_id):
    name = f"site-{partition_id + 1}"
    return Site(name=name, num_records=5, gradients=Gradients(name), sampling=FullBatch(),
                l2_clip_norm=1.0, streams=Streams.from_seed(0).for_site(name))

def main(grid):
    mechanism = Mechanism(sampling=FullBatch(), noise=NoNoise(), l2_clip_norm=1.0, num_rounds=5)
    rule = ProjectedSGD(learning_rate=1.0)
    server = Server(mechanism=mechanism, update_rule=rule, num_records=SIZES, batch_size=15)
    exchange = meet_sites(grid, num_records=SIZES, num_params=2, settings="", timeout=60.0)
    ledger = Ledger(mechanism=mechanism, num_records=SIZES)
    pids = [process.pid for process in child_processes()]
    Path("pids").write_text(" ".join(map(str, pids)))
    for state in rounds(server, rule.start(np.zeros(2)), sum_over_sites=server.over(exchange),
                        streams=Streams.from_seed(0), ledger=ledger):
        print("round", state.num_steps, flush=True)

def train():
    try:
        runtimes.start(Ray(num_workers=2), build_site, num_sites=3, main=main)
    except RoundRefused as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
"""

_RAISES = """
def work(name, params):
    if name == "site-2" and params[0] < 0:  # in round 1
        raise ValueError("CANARY patient 31415.9")
"""
_DIES = """
def work(name, params):
    if name == "site-2" and params[0] < 0:
        os.kill(os.getpid(), 9)
"""
_WAITS = """
def work(name, params):
    time.sleep(0.5 if params[0] < 0 else 0)
"""


@pytest.fixture
def start(tmp_path):
    """Start a script whose sites do their work as told."""
    pytest.importorskip("ray", reason="needs the extra: dpfed-kan[ray]")
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "2"}

    def popen(work: str) -> subprocess.Popen[str]:
        script = tmp_path / "script.py"
        script.write_text(_PREAMBLE + work + "\nif __name__ == '__main__':\n    train()\n")
        return subprocess.Popen(
            [sys.executable, str(script)], cwd=tmp_path, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
        )  # fmt: skip

    return popen


def assert_ended(pids: str) -> None:
    assert pids.split()
    states = subprocess.run(
        ["ps", "-o", "stat=,args=", "-p", pids.replace(" ", ",")], capture_output=True, text=True
    ).stdout.splitlines()
    assert not [state for state in states if not state.startswith("Z")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "told"),
    [
        (_RAISES, "round 1: have 2 sound replies, need 3; site-2: ValueError at script.py:"),
        (_DIES, "site-2: its worker process may have died"),
    ],
    ids=["raises", "dies"],
)
def test_a_failing_site_on_ray_is_named_without_its_text_and_no_process_is_left(
    start, tmp_path, work, told
):
    process = start(work)
    output, errors = process.communicate(timeout=180)
    assert process.returncode == 1
    assert told in errors
    assert "CANARY" not in output + errors
    assert "round 1" in output.splitlines()
    assert "round 2" not in output.splitlines()
    assert len(errors.splitlines()) <= 3, errors
    assert_ended((tmp_path / "pids").read_text())


@pytest.mark.slow
def test_an_interrupt_ends_ray_and_leaves_no_process(start, tmp_path):
    process = start(_WAITS)
    while process.stdout.readline() != "round 1\n":
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert_ended((tmp_path / "pids").read_text())


@pytest.mark.slow
def test_ray_ends_with_the_files_of_an_in_process_run_bit_for_bit(tmp_path):
    pytest.importorskip("ray", reason="needs the extra: dpfed-kan[ray]")
    outputs = {}
    for runtime in ("in_process", "ray"):
        command = [sys.executable, "-m", "simulations.run", f"runtime={runtime}", "seed=0"]
        command += ["num_rounds=6", f"hydra.run.dir={tmp_path / runtime}"]
        many_threads = {name: "2" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
        result = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=240,
            env={**os.environ, **(many_threads if runtime == "ray" else {})},
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
        outputs[runtime] = result
    for name in ("checkpoint.npz", "ledger.jsonl", "metrics.jsonl"):
        own, over = ((tmp_path / runtime / name).read_bytes() for runtime in outputs)
        assert own == over
    assert not outputs["ray"].stderr
    lines = {runtime: result.stdout.splitlines() for runtime, result in outputs.items()}
    assert len(lines["ray"]) == len(lines["in_process"])
