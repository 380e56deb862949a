"""`on_bad_reply=zero` with real processes: a hospital is stopped or killed, and the run goes on.

What must have happened is computed again in this process: the same seed, the same rounds, zeros
exactly where the ledger says. Equal bits then mean that neither noise nor divisor was touched.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from dpfed_kan.federated.server import rounds
from dpfed_kan.federated.site import Broadcast, Reply
from dpfed_kan.flower_app import compose
from dpfed_kan.pilot.trial import write_trial
from dpfed_kan.privacy.ledger import Ledger
from dpfed_kan.server_plan import plan_server
from dpfed_kan.simulated_sites import SimulatedSites
from tests.conftest import ROOT
from tests.system.pilot_outside import (
    await_that,
    clients,
    end,
    events,
    num_released,
    pilot,
    run_name,
    start,
    zeros,
)
from tests.system.test_pilot import final_params, free_ports, report
from tests.system.test_random_kills import SITES, answered

pytestmark = [pytest.mark.trial, pytest.mark.xdist_group("pilot")]
FIXTURES = ROOT / "tests" / "data" / "fixtures"
STUDY = ["seed=11", "privacy.target_epsilon=null", "noise.noise_multiplier=4.0"]
ZERO = "runtime.on_bad_reply=zero"
F01 = ("base_site_a", "base_site_b", "base_site_c", "p05_site_n200")


def changed(path: Path, **changes: Any) -> None:
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | changes))


def with_ledgers(directory: Path) -> None:
    """Three invented hospitals, each with a ledger whose budget is no matter here."""
    write_trial(directory)
    changed(directory / "pilot.yaml", port=free_ports(5))
    changed(directory / "policy.yaml", budget_epsilon=1e6, budget_delta=0.9)


def of_the_trial(directory: Path) -> None:
    """The four sites of trial F01."""
    shutil.copy(FIXTURES / "schema.yaml", directory)
    for name in F01:
        shutil.copy(FIXTURES / f"{name}.csv", directory)
    sites = [
        {"site": name, "data": f"{name}.csv", "schema": "schema.yaml", "allow_seed": True}
        for name in F01
    ]
    text = yaml.safe_dump({"port": free_ports(6), "sites": sites})
    (directory / "pilot.yaml").write_text(text)


@pytest.fixture
def up(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "pilot"
    directory.mkdir()
    request.param(directory)
    done = pilot("up", str(directory))
    assert done.returncode == 0, done.stderr
    yield directory
    pilot("down", str(directory))


def again(directory: Path, output_dir: Path, *overrides: str) -> tuple[Any, Ledger]:
    """Return params and ledger of the run as it has to be with the zeros that were recorded."""
    zeroed = set(zeros(output_dir))
    sites = yaml.safe_load((directory / "pilot.yaml").read_text())["sites"]
    files = ",".join(f"{{site: {site['site']}, path: {site['data']}}}" for site in sites)
    experiment = compose(
        f"data=csv data.held_out_by=site data.source.root={directory} data.source.schema="
        f"{directory / 'schema.yaml'} 'data.source.files=[{files}]' runtime=in_process "
        + " ".join(overrides)
    )
    streams = experiment.streams()
    simulated = SimulatedSites(experiment, streams)
    names = sorted(simulated.num_records)

    def exchange(broadcast: Broadcast) -> Sequence[Reply]:
        replies = []
        for place, name in enumerate(names):
            if (broadcast.round_index, name) in zeroed:
                value = np.zeros(len(broadcast.params))
                reply = Reply(site=name, round_index=broadcast.round_index, value=value)
            else:
                reply = simulated(simulated.settings, place).work(broadcast)
            replies.append(reply)
        return replies

    server = plan_server(experiment, simulated.num_records)
    ledger = Ledger(mechanism=server.mechanism, num_records=simulated.num_records)
    state = experiment.update.start(simulated.params.trainable, num_rounds=experiment.num_rounds)
    *_, last = rounds(
        server, state, sum_over_sites=server.over(exchange), streams=streams, ledger=ledger
    )
    return last, ledger


def check(directory: Path, output_dir: Path, *overrides: str) -> None:
    """Check a run that has ended against the one that is computed here."""
    last, ledger = again(directory, output_dir, *overrides)
    assert final_params(output_dir) == last.model_params.tobytes()
    told = report(output_dir)
    done = events(output_dir)
    assert [row["round_index"] for row in done] == list(range(len(ledger.events)))
    assert [row["release_sha256"] for row in done] == [e.release_sha256 for e in ledger.events]
    spent = ledger.spent(delta=1e-3)
    assert told["guarantee"]["epsilon"] == pytest.approx(spent.epsilon, rel=1e-9)
    counted = Counter(site for _, site in zeros(output_dir))
    assert told["deployment"]["rounds_contributed_zero"] == counted


@pytest.mark.parametrize("up", [with_ledgers], indirect=True)
def test_a_hospital_that_is_stopped_and_one_that_is_killed_contribute_zero_and_come_back(
    up: Path, tmp_path: Path
) -> None:
    output_dir = tmp_path / "out"
    words = ["num_rounds=400", *STUDY]
    running = start(up, output_dir, *words, ZERO, "runtime.timeout=5")
    try:
        await_that(lambda: num_released(output_dir) >= 20, seconds=300)
        (stopped,) = clients(up, "hospital-2")
        os.kill(stopped, signal.SIGSTOP)
        await_that(lambda: len(zeros(output_dir)) >= 3, seconds=60)
        os.kill(stopped, signal.SIGCONT)
        so_far = num_released(output_dir)
        await_that(lambda: num_released(output_dir) >= so_far + 20, seconds=60)
        (killed,) = clients(up, "hospital-3")
        os.kill(killed, signal.SIGKILL)
        await_that(lambda: (output_dir / "report.json").exists(), seconds=400, every=0.5)
        assert running.wait(60) == 0
    finally:
        end(running)
    missed = {site: [t for t, name in zeros(output_dir) if name == site] for site in SITES}
    print(missed)
    assert missed["hospital-1"] == []
    assert len(missed["hospital-2"]) >= 3
    assert len(missed["hospital-3"]) >= 3
    assert max(missed["hospital-3"]) < 399  # it came back
    said = (tmp_path / "out.log").read_text()
    for site in ("hospital-2", "hospital-3"):
        for t in missed[site]:
            assert f"round {t}, {site}: no answer within 5 s" in said
        own = {row[0] for row in answered(up, site, run_name(output_dir))}
        assert set(range(400)) - set(missed[site]) <= own  # each reply that was used is paid for
    check(up, output_dir, *words)


@pytest.mark.parametrize("up", [of_the_trial], indirect=True)
def test_a_client_that_is_killed_in_round_3_of_10_over_native_messages(  # F01
    up: Path, tmp_path: Path
) -> None:
    output_dir = tmp_path / "out"
    words = ["num_rounds=10", "data.min_records=10", *STUDY]
    running = start(up, output_dir, *words, ZERO, "runtime.transport=native", "runtime.timeout=60")
    victim = F01[1]
    try:
        await_that(lambda: num_released(output_dir) == 2, seconds=400)
        while num_released(output_dir) == 2:  # round 3; Flower starts another for one that dies
            for pid in clients(up, victim):  # before it has taken its message
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.5)
        await_that(lambda: (output_dir / "report.json").exists(), seconds=900, every=0.5)
        assert running.wait(60) == 0
    finally:
        end(running)
    missed = zeros(output_dir)
    print(missed, report(output_dir)["deployment"])
    assert missed[0] == (2, victim)
    assert {site for _, site in missed} == {victim}
    assert max(t for t, _ in missed) < 4  # it is back in round 5 or before
    said = (tmp_path / "out.log").read_text()
    (told,) = {line for line in said.splitlines() if line.startswith(f"round 2, {victim}: ")}
    print(told)
    check(up, output_dir, *words)
