"""Trials F04, F05, O02, P01, P06, P07, P14 from a configuration to what a run leaves behind."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfed_kan.config import to_config
from dpfed_kan.data.federation import FederatedData
from dpfed_kan.data.files import CSVFiles, SiteFile
from dpfed_kan.data.partition import Natural
from dpfed_kan.federated.server import Server, rounds
from dpfed_kan.federated.site import Reply
from dpfed_kan.privacy.accounting import account
from dpfed_kan.privacy.calibration import calibrate
from dpfed_kan.privacy.clipping import ClippedSum
from dpfed_kan.privacy.ledger import Ledger
from dpfed_kan.privacy.mechanism import Mechanism
from dpfed_kan.privacy.noising import GaussianNoise
from dpfed_kan.privacy.sampling import FullBatch, Poisson
from dpfed_kan.report import as_json
from dpfed_kan.run import resume, run
from dpfed_kan.schema_file import load_schema
from dpfed_kan.simulated_sites import SimulatedSites
from dpfed_kan.streams import Streams
from dpfed_kan.update.sgd import ProjectedSGD
from tests.conftest import ROOT
from tests.federated.test_site_trials import PARAMS, records, site
from tests.system.pilot_outside import listed
from tests.system.test_hospitals import FIXTURES, hospitals

Make = Callable[..., Any]


def final(directory: Path) -> bytes:
    with np.load(directory / "checkpoint.npz") as saved:
        return bytes(saved["params"].tobytes())


def test_an_empty_site_leaves_the_model_of_the_other_alone(
    tmp_path: Path, experiment: Make
) -> None:
    """Trial F04: the same model as of A alone, and the report says who was left out."""
    alone = run(experiment(data=hospitals("base_site_a")), tmp_path / "alone")
    both = hospitals("base_site_a", "f04_header_only") | {"small_sites": "leave_out"}
    found = run(experiment(data=both), tmp_path / "both")
    assert final(tmp_path / "both") == final(tmp_path / "alone")
    assert alone.left_out == {}
    assert "0 records" in found.left_out["f04_header_only"]


@pytest.mark.parametrize("name", ["f05_five_rows", "f05_one_row"])
def test_a_site_smaller_than_its_batch_runs_at_q_1_where_that_is_said(  # F05
    tmp_path: Path, experiment: Make, name: str
) -> None:
    changes = {
        "sampling": {
            "_target_": "dpfed_kan.privacy.sampling.PoissonBatch",
            "site_batch_size": 16,
        },
        "noise__noise_multiplier": 1.5,
        "noise__correlation": 0.0,
        "privacy__target_delta": 1e-5,
    }
    with pytest.raises(ValueError, match=rf"{name} has \d records"):
        run(experiment(data=hospitals("base_site_a", name), **changes), tmp_path / "refused")
    assert not (tmp_path / "refused" / "ledger.jsonl").exists()
    said = hospitals("base_site_a", name, min_records=1)
    found = run(experiment(data=said, **changes), tmp_path / "run")
    assert found.epsilon_per_site[name] == pytest.approx(10.67, rel=0.01)
    assert np.isfinite(np.frombuffer(final(tmp_path / "run"))).all()


def test_a_stopped_run_says_its_epsilon_when_it_is_resumed_and_at_the_end(  # P06
    tmp_path: Path, experiment: Make
) -> None:
    changes = {"num_rounds": 20, "noise__noise_multiplier": 1.2, "noise__correlation": 0.0}
    changes |= {"sampling__sampling_prob": 0.1, "privacy__target_delta": 1e-5}
    stopped = run(experiment(**changes), tmp_path / "run", stop_after=10)
    assert stopped.guarantee.epsilon == pytest.approx(1.98, abs=0.01)
    told: list[Any] = []
    ended = resume(tmp_path / "run", listener=told.append)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert rows[9]["epsilon"] == pytest.approx(1.98, abs=0.01)
    assert 1.98 < rows[10]["epsilon"] < 2.1
    assert [row["round"] for row in rows] == list(range(1, 21))
    assert told[0].num_rounds == 11
    assert ended.guarantee.epsilon == pytest.approx(2.52, abs=0.01)
    unbroken = run(experiment(**changes), tmp_path / "unbroken")
    assert ended.guarantee.epsilon == unbroken.guarantee.epsilon


def same_file_four_times() -> Any:
    files = tuple(SiteFile(site=f"client-{k}", path="base_site_a.csv") for k in range(4))
    source = CSVFiles(root=str(FIXTURES), files=files, schema=load_schema(FIXTURES / "schema.yaml"))
    return to_config(FederatedData(source=source, partition=Natural()))


def test_four_clients_of_one_file_draw_other_rows_and_a_seeded_run_says_so(  # P07
    tmp_path: Path, experiment: Make
) -> None:
    job = experiment(data=same_file_four_times(), seed=0)
    sites = SimulatedSites(job, job.streams())
    built = [sites(sites.settings, place) for place in range(4)]
    for t in range(10):
        drawn = [tuple(site.draw(t)) for site in built]
        assert len(set(drawn)) == 4
    flat = Mechanism(
        sampling=FullBatch(),
        noise=GaussianNoise(noise_multiplier=1.0),
        l2_clip_norm=1.0,
        num_rounds=2,
    )
    noise = [released(flat, t, job.streams(), dimension=40_000) for t in range(2)]
    tensors = np.concatenate([vector.reshape(4, 10_000) for vector in noise])
    correlations = np.corrcoef(tensors) - np.eye(8)
    assert np.abs(correlations).max() < 0.05
    seeded = run(job, tmp_path / "seeded", stop_after=1)
    assert as_json(seeded)["guarantee"]["noise_source"] == "seeded"
    fresh = experiment(data=same_file_four_times(), seed=None)
    for name in ("one", "two"):
        told = as_json(run(fresh, tmp_path / name, stop_after=1))
        assert told["guarantee"]["noise_source"] == "operating system entropy"
    assert final(tmp_path / "one") != final(tmp_path / "two")


def released(mechanism: Mechanism, t: int, streams: Streams, *, dimension: int) -> Any:
    zeros = ClippedSum(value=np.zeros(dimension), l2_sensitivity=mechanism.l2_clip_norm)
    return mechanism.privatize(zeros, round_index=t, streams=streams).value


def test_the_step_of_zero_gradients_has_the_noise_of_the_mean(tmp_path: Path) -> None:  # P14
    def std(clip: float) -> float:
        mechanism = Mechanism(
            sampling=Poisson(sampling_prob=0.25),
            noise=GaussianNoise(noise_multiplier=1.0),
            l2_clip_norm=clip,
            num_rounds=1,
        )
        rule = ProjectedSGD(learning_rate=1.0)
        server = Server(
            mechanism=mechanism, update_rule=rule, num_records={"a": 40}, batch_size=10.0
        )
        reply = Reply(site="a", round_index=0, value=np.zeros(10_000))
        (state,) = rounds(
            server,
            rule.start(np.zeros(10_000)),
            sum_over_sites=server.over(lambda broadcast: [reply]),
            streams=Streams.from_seed(0),
            ledger=Ledger(mechanism=mechanism, num_records={"a": 40}),
        )
        return float(state.params.std())

    assert std(1.0) == pytest.approx(1.0 / 10, rel=0.03)
    assert std(2.0) == pytest.approx(2.0 / 10, rel=0.03)
    plan = Mechanism(
        sampling=Poisson(sampling_prob=0.25),
        noise=GaussianNoise(noise_multiplier=None),
        l2_clip_norm=1.0,
        num_rounds=10,
    )
    spent = [
        account(replace(plan, noise=GaussianNoise(noise_multiplier=sigma)), delta=1e-5).epsilon
        for sigma in (0.5, 1.0, 2.0, 4.0, 8.0)
    ]
    assert all(more > less for more, less in itertools.pairwise(spent))
    two, eight = (
        calibrate(plan, target_epsilon=target, target_delta=1e-5).noise.noise_multiplier
        for target in (2.0, 8.0)
    )
    assert two > eight > 0


def test_rounds_of_an_empty_batch_are_ordinary_rounds() -> None:  # P01
    of = records("p01_site_4rows")
    sampling = Poisson(sampling_prob=0.05)
    plan = Mechanism(
        sampling=sampling,
        noise=GaussianNoise(noise_multiplier=1.5),
        l2_clip_norm=1.0,
        num_rounds=60,
    )
    one = site(of, sampling)
    rule = ProjectedSGD(learning_rate=1.0)
    server = Server(mechanism=plan, update_rule=rule, num_records={"a": 4}, batch_size=0.2)
    ledger = Ledger(mechanism=plan, num_records={"a": 4})
    start = rule.start(PARAMS.trainable)
    params = [start.params]
    for state in rounds(
        server,
        start,
        sum_over_sites=server.over(lambda broadcast: [one.work(broadcast)]),
        streams=Streams.from_seed(7),
        ledger=ledger,
    ):
        params.append(state.params)
    steps = -np.diff(np.array(params), axis=0) * 0.2  # each release: sum plus noise
    empty = [t for t in range(60) if not len(one.draw(t))]
    assert len(empty) == pytest.approx(60 * 0.95**4, abs=12)
    assert np.isfinite(steps).all()
    noise = steps[empty]
    assert noise.std() == pytest.approx(1.5, rel=0.03)
    each = noise.std(axis=1)
    assert (np.abs(each / 1.5 - 1) < 5 / np.sqrt(2 * noise.shape[1])).all()
    assert len(ledger.events) == 60
    assert ledger.spent(delta=1e-5).num_rounds == 60


@pytest.mark.slow
def test_ten_simulations_in_one_process_leave_no_process_and_no_memory(  # O01
    tmp_path: Path, experiment: Make
) -> None:
    script = tmp_path / "ten.py"
    script.write_text(_TEN)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(rows) == 10
    assert {children for children, _ in rows} == {0}
    resident = [kib for _, kib in rows]
    assert resident[-1] - resident[4] < 20_000, resident  # KiB


_TEN = """
import multiprocessing, sys
from pathlib import Path
from dataclasses import replace
from dpfed_kan.federated.runtimes import Workers
from dpfed_kan.run import run
from tests.system.conftest import _experiment

def resident():
    text = Path("/proc/self/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0])

if __name__ == "__main__":
    for k in range(10):
        job = _experiment()
        if k % 4 == 0:
            job = replace(job, runtime=Workers(num_workers=2, timeout=60.0))
        run(job, Path(sys.argv[1]) / str(k))
        print(len(multiprocessing.active_children()), resident(), flush=True)
"""


@pytest.mark.slow
def test_an_interrupt_in_round_3_of_four_clients_ends_all_of_them(tmp_path: Path) -> None:  # O01
    words = [*TINY, "partition.num_sites=4", "runtime=workers", "num_rounds=1000000"]
    running = started(tmp_path, *words)
    (ledger,) = await_files(tmp_path, "outputs/*/*/ledger.jsonl", lines=4)
    children = below(running.pid)
    assert len(children) >= 2
    begun = time.monotonic()
    running.send_signal(signal.SIGINT)
    running.wait(timeout=60)
    assert running.returncode == 130
    assert time.monotonic() - begun < 20
    assert not alive(children)
    rows = [json.loads(line) for line in ledger.read_text().splitlines()]  # none is torn
    count = sum("release" in row for row in rows)
    assert resume(ledger.parent, stop_after=count).guarantee.num_rounds == count


@pytest.mark.slow
def test_an_interrupt_in_job_2_of_4_starts_no_other_job(tmp_path: Path) -> None:  # O01
    running = started(tmp_path, "-m", *TINY, "num_rounds=3,1000000,3,3")
    await_files(tmp_path, "multirun/*/*/1/ledger.jsonl", lines=4)
    running.send_signal(signal.SIGINT)
    running.wait(timeout=60)
    assert running.returncode == 130
    made = {path.name for path in tmp_path.glob("multirun/*/*/[0-9]")}
    assert made == {"0", "1"}


TINY = [
    "data=synthetic",
    "data.source.num_records=150",
    "data.source.input_dim=2",
    "privacy.target_epsilon=null",
    "noise.noise_multiplier=4",
]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def started(cwd: Path, *words: str) -> subprocess.Popen[bytes]:
    with (cwd / "said").open("wb") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "simulations.run", *words],
            cwd=cwd,
            env=environment(),
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def await_files(directory: Path, pattern: str, *, lines: int) -> list[Path]:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        found = list(directory.glob(pattern))
        if found and found[0].read_text().count("\n") >= lines:
            return found
        time.sleep(0.02)
    raise AssertionError((directory / "said").read_text())


def below(pid: int) -> list[int]:
    """The processes of a session but its leader."""
    return [number for number, session, _ in listed() if session == pid and number != pid]


def alive(pids: Sequence[int]) -> list[int]:
    deadline = time.monotonic() + 20
    while (left := [pid for pid, _, _ in listed() if pid in pids]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


@pytest.mark.slow
def test_a_disk_that_is_full_stops_the_run_with_all_that_was_released(
    tmp_path: Path,
) -> None:  # O02
    """A limit on the size of a file is what the process sees of a disk with 40 kB left."""
    limited = (
        "import resource, runpy; resource.setrlimit(resource.RLIMIT_FSIZE, (40_000,) * 2); "
        "runpy.run_module('simulations.run', run_name='__main__', alter_sys=True)"
    )
    done = subprocess.run(
        [sys.executable, "-c", limited, *TINY, "num_rounds=2000"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode not in (0, 130)
    print(done.stderr[-600:])
    assert "File too large" in done.stderr
    (directory,) = tmp_path.glob("outputs/*/*")
    assert not (directory / "report.json").exists()
    rows = [
        json.loads(line)
        for line in (directory / "ledger.jsonl").read_text().splitlines(keepends=True)
        if line.endswith("\n")
    ]
    count = sum("release" in row for row in rows)
    assert count > 20
    with np.load(directory / "checkpoint.npz") as saved:
        assert np.isfinite(saved["params"]).all()
    assert resume(directory, stop_after=count + 5).guarantee.num_rounds >= count + 5


def test_a_directory_that_cannot_be_written_to_is_named_before_any_data_is_read(  # O02
    tmp_path: Path,
) -> None:
    (tmp_path / "blocked").write_text("")
    directory = tmp_path / "blocked" / "run"
    words = ["data=heart", "data.root=nowhere", f"hydra.run.dir={directory}"]
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "simulations.run", *words],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode not in (0, 130)
    print(done.stderr[-500:])
    assert str(tmp_path / "blocked") in done.stderr
    assert "processed.cleveland" not in done.stderr  # no data were looked for
    assert time.monotonic() - begun < 10
