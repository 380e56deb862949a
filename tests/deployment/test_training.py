"""A run over real sites: what it must equal, whom it refuses, what leaves a site."""

from __future__ import annotations

import json
import stat
from dataclasses import replace

import numpy as np
import pytest
import yaml

from dpfed_kan.deployment import training
from dpfed_kan.deployment.reporting import deployment_as_json
from dpfed_kan.federated.server import RoundRefused
from dpfed_kan.page.page import as_page
from dpfed_kan.run import run
from dpfed_kan.streams import Streams
from tests.deployment.conftest import SITES
from tests.system.page_reading import read


def params(directory):
    with np.load(directory.checkpoint_path) as saved:
        return saved["params"]


def releases(directory):
    lines = directory.ledger_path.read_text().splitlines()
    return [line for line in lines if "release" in json.loads(line)]


def test_a_deployment_equals_the_simulation_of_its_declared_seed_bit_for_bit(trial, tmp_path):
    found = training.train(trial.grid(), trial.deployed(), tmp_path / "real")
    simulated = run(trial.simulated(), tmp_path / "simulated")
    assert params(found.run.directory).tobytes() == params(simulated.directory).tobytes()
    assert found.run.num_records == simulated.num_records
    assert found.run.guarantee.epsilon == simulated.guarantee.epsilon
    ours, theirs = (releases(d.directory) for d in (found.run, simulated))
    assert len(ours) == 5
    assert ours == theirs


def test_the_channel_equals_the_simulation_of_its_declared_seed_bit_for_bit(trial, tmp_path):
    found = training.train(trial.grid(), trial.channel(), tmp_path / "real")
    simulated = run(trial.simulated(), tmp_path / "simulated")
    assert params(found.run.directory).tobytes() == params(simulated.directory).tobytes()
    assert found.seconds_per_round < 1.0


@pytest.mark.parametrize(
    "overrides",
    [
        ("sampling=fixed_size", "sampling.batch_size=60"),
        ("update=macadam",),
        ("model=mlp", "model.hidden_widths=[4]"),
    ],
)
def test_counts_transforms_and_torch_models_travel_too(trial, tmp_path, overrides):
    real = training.train(trial.grid(), trial.channel(*overrides), tmp_path / "real")
    simulated = run(trial.simulated(*overrides), tmp_path / "simulated")
    assert params(real.run.directory).tobytes() == params(simulated.directory).tobytes()


def test_a_run_that_was_stopped_and_resumed_equals_an_unbroken_one(trial, tmp_path):
    class Stopped(Exception):
        pass

    def stop(num_rounds):
        if num_rounds == 2:
            raise Stopped

    unbroken = training.train(trial.grid(), trial.deployed(), tmp_path / "unbroken")
    with pytest.raises(Stopped):
        training.train(trial.grid(), trial.deployed(), tmp_path / "broken", listener=stop)
    resumed = training.resume(trial.grid(), trial.channel(), tmp_path / "broken")
    assert params(resumed.run.directory).tobytes() == params(unbroken.run.directory).tobytes()
    with pytest.raises(ValueError, match="under its own plan"):
        training.resume(trial.grid(), trial.deployed("num_rounds=6"), tmp_path / "broken")


def test_without_a_seed_each_site_draws_from_a_key_of_its_own_that_never_leaves(trial, tmp_path):
    fresh = replace(trial, seed=None)
    asked = []

    class Watched(type(fresh.grid())):
        def push_messages(self, messages):
            messages = list(messages)
            asked.extend(messages)
            return super().push_messages(messages)

    grid = fresh.grid()
    grid.__class__ = Watched
    found = training.train(grid, fresh.deployed(), tmp_path / "real")
    assert not found.run.seeded
    server_key = (tmp_path / "real" / "key").read_text().split()[1]
    keys = {server_key}
    for site in SITES:
        path = fresh.directory / "state" / site / "key"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert not Streams.load(path).seeded
        keys.add(path.read_text().split()[1])
    assert len(keys) == 4
    sent = " ".join(str(message.content.config_records["config"]) for message in asked)
    assert asked
    assert all(key not in sent for key in keys)
    assert '"key"' not in sent


def test_a_declared_seed_needs_the_consent_of_every_site(trial, tmp_path):
    nodes = [trial.node(site) for site in SITES[:2]]
    nodes.append(trial.node(SITES[2], **{"allow-seed": False}))
    with pytest.raises(RoundRefused, match=r"serves no simulation \(site hospital-3\)"):
        training.train(trial.grid(*nodes), trial.deployed(), tmp_path / "real")


def test_a_missing_site_is_named_with_how_many_there_are(trial, tmp_path):
    nodes = [trial.node(site) for site in SITES[:2]]
    experiment = trial.deployed("runtime.meeting_timeout=0.5")
    with pytest.raises(RoundRefused, match="have 2, need 3: missing hospital-3"):
        training.train(trial.grid(*nodes), experiment, tmp_path / "real")


def test_a_node_outside_the_study_is_left_alone(trial, tmp_path):
    extra = trial.node("hospital-4", data=str(trial.directory / "hospital-1.csv"))
    nodes = [extra, *(trial.node(site) for site in SITES)]
    found = training.train(trial.grid(*nodes), trial.deployed(), tmp_path / "real")
    assert set(found.run.num_records) == set(SITES)


def changed_schema(trial, change):
    path = trial.directory / "other.yaml"
    schema = yaml.safe_load((trial.directory / "schema.yaml").read_text())
    change(schema)
    path.write_text(yaml.safe_dump(schema))
    return str(path)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda s: s["columns"].pop(), "column 'smokes' is missing"),
        (lambda s: s["columns"][0].update(low=0), "column 'age' is declared otherwise"),
        (
            lambda s: s["columns"].append({**s["columns"][0], "name": "extra"}),
            "column 'extra' is not in the study",
        ),
        (lambda s: s["label"].update(positive=["sick"]), "column 'outcome' is declared otherwise"),
        (lambda s: s["columns"].reverse(), "in another order"),
    ],
)
def test_a_site_with_another_schema_is_named_with_its_columns(trial, tmp_path, change, told):
    nodes = [trial.node(site) for site in SITES[:2]]
    nodes.append(trial.node(SITES[2], schema=changed_schema(trial, change)))
    with pytest.raises(RoundRefused, match=f"hospital-3: its schema is not the study's: .*{told}"):
        training.train(trial.grid(*nodes), trial.deployed(), tmp_path / "real")
    assert not (tmp_path / "real" / "ledger.jsonl").exists()


def test_how_a_file_is_written_is_the_sites_own_business(trial, tmp_path):
    plain = trial.directory / "hospital-3.csv"
    other = trial.directory / "semicolons.csv"
    other.write_text(plain.read_text().replace(",", ";"))
    schema = changed_schema(trial, lambda s: s.update(delimiter=";"))
    nodes = [trial.node(site) for site in SITES[:2]]
    nodes.append(trial.node(SITES[2], schema=schema, data=str(other)))
    found = training.train(trial.grid(*nodes), trial.deployed(), tmp_path / "real")
    assert found.run.finished


@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("allows", [False, True])
def test_metrics_leave_only_where_the_study_asks_and_the_site_allows(trial, tmp_path, asks, allows):
    nodes = [trial.node(site) for site in SITES[:2]]
    nodes.append(trial.node(SITES[2], **{"share-metrics": allows}))
    experiment = trial.deployed(f"data.source.share_metrics={str(asks).lower()}")
    found = training.train(trial.grid(*nodes), experiment, tmp_path / "real")
    report = deployment_as_json(found)
    told = report["diagnostics_not_private"]["per_site"]
    assert set(told) == ({SITES[2]} if asks and allows else set())
    json.dumps(report, allow_nan=False)
    page = read(as_page(report))
    assert "Real sites: each holds its records" in page.by_id("setting").text()
    measured = [caption.text() for caption in page.by_id("utility").all("caption")]
    assert any(words.startswith("Accuracy and base rate") for words in measured) == bool(told)
    if told:
        assert told[SITES[2]]["num_records"] == round(0.2 * 150)


@pytest.mark.parametrize(
    "sent",
    [
        {},
        {"accuracy": "<b>", "loss": [1]},
        {"accuracy": 0.5, "accuracy_interval": [0.1]},
        {"accuracy": 0.5, "accuracy_interval": None, "base_rate": True, "name": "Doe"},
        {"accuracy": 0.5, "accuracy_interval": [0.1, 0.9], "base_rate": 10**400, "loss": 0.1},
    ],
)
def test_whatever_a_site_sends_as_metrics_the_page_is_made(trial, tmp_path, sent):
    found = training.train(trial.grid(), trial.deployed("num_rounds=1"), tmp_path / "real")
    report = deployment_as_json(replace(found, metrics={SITES[0]: sent}))
    assert "Doe" not in json.dumps(report)
    utility = read(as_page(report)).by_id("utility")
    assert SITES[0] in utility.text()
    assert not utility.all("b")


@pytest.mark.parametrize("transport", ["deployed", "channel"])
def test_a_failure_reaches_the_server_as_type_and_place_and_the_sites_log_in_full(
    trial, tmp_path, transport, capfd
):
    path = trial.directory / "hospital-3.csv"
    path.write_text(path.read_text().replace("ill", "secret-diagnosis", 1))
    with pytest.raises(RoundRefused) as refused:
        training.train(trial.grid(), getattr(trial, transport)(), tmp_path / "real")
    assert "DataError at encoding.py:" in str(refused.value)
    assert "(site hospital-3)" in str(refused.value)
    log = (trial.directory / "state" / "hospital-3" / "site.log").read_text()
    assert "Traceback" in log
    assert "column 'outcome'" in log
    for text in (str(refused.value), capfd.readouterr().err):
        assert "outcome" not in text
        assert "secret" not in text
