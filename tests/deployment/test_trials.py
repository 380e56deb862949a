"""Trials F02, F03, F07, O04, P10 over real sites: who misbehaves, in which round, what is told."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from dpfed_kan.deployment import training
from dpfed_kan.deployment.serving import OwnSite
from dpfed_kan.deployment.site import DeployedSite, facts
from dpfed_kan.deployment.site_files import site_files
from dpfed_kan.deployment.study import study_of
from dpfed_kan.federated.server import RoundRefused
from dpfed_kan.federated.site import Broadcast, Reply
from dpfed_kan.flower.deployed_client import deployed_client_app
from dpfed_kan.models import port
from dpfed_kan.run import run
from tests.deployment.conftest import SITES, ThreadedGrid
from tests.deployment.test_training import params

BOTH = pytest.mark.parametrize("transport", ["deployed", "channel"])


@dataclass(frozen=True, kw_only=True)
class Misbehaving(DeployedSite):
    """A site that answers as it is told here."""

    answer: Callable[[str, Reply], Reply]

    def work(self, broadcast: Broadcast) -> Reply:
        return self.answer(self.files.site, super().work(broadcast))


class Sites(OwnSite):
    """Of a program that is not ours at some site."""

    def __init__(self, answer: Callable[[str, Reply], Reply]) -> None:
        self._answer = answer

    def open(self, settings: str, node: Any) -> Any:
        site = super().open(settings, node)
        return Misbehaving(**vars(site), answer=self._answer)


def grid(trial, answer):
    app = deployed_client_app(Sites(answer))
    nodes = [trial.node(site) for site in SITES]
    return ThreadedGrid(app, len(nodes), node_configs=nodes)


def raising(*sites: str, round_index: int) -> Callable[[str, Reply], Reply]:
    def answer(site: str, reply: Reply) -> Reply:
        if site in sites and reply.round_index == round_index:
            raise ValueError("CANARY")
        return reply

    return answer


def nan_of_the_second(site: str, reply: Reply) -> Reply:
    if site != "hospital-2":
        return reply
    return replace(reply, value=np.full_like(reply.value, np.nan))


def zeroed(directory):
    lines = map(json.loads, (directory / "ledger.jsonl").read_text().splitlines())
    return [(row["zero"]["site"], row["zero"]["round_index"]) for row in lines if "zero" in row]


@BOTH
def test_one_client_that_raises_in_round_2_is_told_by_type_site_and_line(  # O04
    trial, tmp_path, transport, caplog
):
    broken = grid(trial, raising("hospital-2", round_index=2))
    with pytest.raises(RoundRefused) as stopped:
        training.train(broken, getattr(trial, transport)(), tmp_path / "stop")
    said = str(stopped.value)
    assert said.startswith("round 2: have 2, need 3: missing hospital-2 (hospital-2: ValueError at")
    assert "test_trials.py:" in said
    server_side = [r for r in caplog.records if not r.name.startswith("dpfed_kan.site.")]
    assert "CANARY" not in said + "".join(r.getMessage() + str(r.exc_text) for r in server_side)
    own = (trial.directory / "state" / "hospital-2" / "site.log").read_text()
    assert "Traceback" in own
    goes_on = getattr(trial, transport)("runtime.on_bad_reply=zero")
    found = training.train(broken, goes_on, tmp_path / "zero")
    assert found.run.finished
    assert zeroed(tmp_path / "zero") == [("hospital-2", 2)]
    assert "round 2, hospital-2: ValueError at test_trials.py:" in caplog.text


@BOTH
@pytest.mark.parametrize("policy", ["stop", "zero"])
def test_when_all_clients_raise_in_round_1_the_run_ends_without_a_final_model(  # F03, O04
    trial, tmp_path, transport, policy
):
    experiment = getattr(trial, transport)(f"runtime.on_bad_reply={policy}")
    with pytest.raises(RoundRefused, match="round 1: have 0, need 3: missing hospital-1, hosp"):
        training.train(grid(trial, raising(*SITES, round_index=1)), experiment, tmp_path / "out")
    assert not list((tmp_path / "out").glob("report*"))
    released = (tmp_path / "out" / "ledger.jsonl").read_text().count('"release"')
    assert released == 1  # of round 0


@pytest.mark.parametrize("transport", ["deployed", "channel"])
def test_one_site_alone_is_a_legal_study(trial, tmp_path, transport):  # F03
    experiment = getattr(trial, transport)("data.source.sites=[hospital-1]")
    found = training.train(trial.grid(trial.node("hospital-1")), experiment, tmp_path / "out")
    assert found.run.finished
    assert set(found.run.num_records) == {"hospital-1"}


@BOTH
def test_a_client_that_replies_nan_is_refused_and_the_others_go_on(  # P10
    trial, tmp_path, transport
):
    with pytest.raises(RoundRefused, match=r"round 0: .*hospital-2: the sum is not finite"):
        training.train(
            grid(trial, nan_of_the_second), getattr(trial, transport)(), tmp_path / "stop"
        )
    goes_on = getattr(trial, transport)("runtime.on_bad_reply=zero")
    found = training.train(grid(trial, nan_of_the_second), goes_on, tmp_path / "zero")
    assert np.isfinite(params(found.run.directory)).all()
    assert zeroed(tmp_path / "zero") == [("hospital-2", t) for t in range(5)]
    whole = run(trial.simulated(), tmp_path / "simulated")
    assert found.run.guarantee.epsilon == whole.guarantee.epsilon


def test_a_reply_that_is_sent_twice_in_round_2_counts_once_with_one_warning(  # F02
    trial, tmp_path, monkeypatch, caplog
):
    """The second hospital's end of the data channel sends every frame of round 2 twice."""
    from dpfed_kan.channel import client

    once = client._until_none

    def twice(outbox):
        for frame in once(outbox):
            yield frame
            if b'"round_index": 2, "site": "hospital-2"' in frame[:400]:
                yield frame

    monkeypatch.setattr(client, "_until_none", twice)
    # the first hospital waits a little in each round, so that the copy comes while it is open
    slow = grid(trial, lambda site, reply: waits(reply) if site == "hospital-1" else reply)
    with caplog.at_level(logging.WARNING):
        found = training.train(slow, trial.channel(), tmp_path / "twice")
    plain = run(trial.simulated(), tmp_path / "plain")
    assert params(found.run.directory).tobytes() == params(plain.directory).tobytes()
    told = [r.getMessage() for r in caplog.records if "twice" in r.getMessage()]
    assert told == ["round 2, hospital-2: the reply came twice; it counts once"]


def waits(reply: Reply) -> Reply:
    time.sleep(0.3)
    return reply


class Slow(OwnSite):
    """Takes a while to begin, as a process that loads a library does."""

    def open(self, settings: str, node: Any) -> Any:
        time.sleep(2.0)
        return super().open(settings, node)


def test_the_time_that_sites_take_to_connect_is_not_that_of_a_round(trial, tmp_path):
    app = deployed_client_app(Slow())
    nodes = [trial.node(site) for site in SITES]
    of = ThreadedGrid(app, len(nodes), node_configs=nodes)
    experiment = trial.channel("runtime.timeout=1", "runtime.on_bad_reply=zero")
    found = training.train(of, experiment, tmp_path / "out")
    assert found.zeroed == {}
    with pytest.raises(RoundRefused, match="round 0: have 0, need 3"):
        short = trial.channel("runtime.timeout=0.2", "runtime.meeting_timeout=1.5")
        training.train(of, short, tmp_path / "short")


class OtherGrid(OwnSite):
    """Builds its model with eight basis functions, whatever the study says."""

    def facts(self, settings: str, node: Any) -> Any:
        files = site_files(node)
        study = study_of(settings)
        if files.site != "hospital-2":
            return facts(files, study)
        model = replace(study.experiment.model, num_basis=8)
        frozen = port.start(model, study.input_dim, np.random.default_rng(0)).frozen
        other = replace(study, experiment=replace(study.experiment, model=model), frozen=frozen)
        return facts(files, other)


def test_a_site_whose_model_is_another_is_named_with_its_shape_before_round_0(  # F07
    trial, tmp_path
):
    app = deployed_client_app(OtherGrid())
    nodes = [trial.node(site) for site in SITES]
    of = ThreadedGrid(app, len(nodes), node_configs=nodes)
    with pytest.raises(
        RoundRefused, match=r"before round 0: .*hospital-2: its model has \d+ parameters, the study"
    ):
        training.train(of, trial.deployed("model.num_basis=5"), tmp_path / "out")
    assert not (tmp_path / "out" / "ledger.jsonl").exists()
