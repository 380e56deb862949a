"""Real sites behind their policies and ledgers: who says no, when, and what that costs."""

from __future__ import annotations

import json

import pytest

from dpfed_kan.cli import main
from dpfed_kan.deployment import training
from dpfed_kan.deployment.reporting import deployment_as_json
from dpfed_kan.federated.server import RoundRefused
from dpfed_kan.report import save
from dpfed_kan.run import run
from tests.deployment.conftest import SITES
from tests.deployment.test_training import params
from tests.system.page_reading import read


def test_the_report_names_the_plan_that_the_sites_have_approved(trial, tmp_path):
    found = training.train(trial.grid(*trial.guarded()), trial.deployed(), tmp_path / "real")
    save(found.run.directory, deployment_as_json(found))
    ledger = trial.directory / "state" / SITES[0] / "site.ledger"
    main(["report", str(tmp_path / "real"), "--site-ledger", str(ledger)])
    report = json.loads(found.run.directory.report_path.read_text())
    (spent,) = report["statement"]["spent"]["to_date"]
    assert spent["site"] == SITES[0]
    assert spent["epsilon"] >= report["guarantee"]["epsilon_per_site"][SITES[0]]
    said = read(found.run.directory.page_path.read_text()).by_id("setting").text()
    assert "Every site answered in every round" in said


@pytest.mark.parametrize("transport", ["deployed", "channel"])
def test_behind_policies_and_ledgers_the_parameters_are_the_same(trial, tmp_path, transport):
    experiment = getattr(trial, transport)()
    found = training.train(trial.grid(*trial.guarded()), experiment, tmp_path / "real")
    simulated = run(trial.simulated(), tmp_path / "simulated")
    assert params(found.run.directory).tobytes() == params(simulated.directory).tobytes()
    assert [len(trial.rows(site, "commit")) for site in SITES] == [5, 5, 5]


NO = [
    ({"budget_epsilon": 0.1}, "rule budget_epsilon"),
    ({"max_sampling_prob": 0.1}, "rule max_sampling_prob: the study asks for 0.2"),
    ({"min_records": 1000}, "rule min_records: the study asks for training on"),
    ({"allowed_plans": ["00" * 32]}, "rule allowed_plans: the study asks for the plan"),
    ({"privacy_unit": "patient"}, "rule privacy_unit: the study asks for protection of one record"),
    ({"neighboring_relation": "replace_one"}, "rule neighboring_relation"),
    ({"metrics_may_leave": False}, "rule metrics_may_leave"),
    ({"allow_seeded_streams": False}, "rule allow_seeded_streams"),
]


@pytest.mark.parametrize("transport", ["deployed", "channel"])
@pytest.mark.parametrize(("rules", "told"), NO)
def test_a_policy_that_says_no_is_told_by_its_rule_before_round_0_and_nobody_sets_aside_anything(
    trial, tmp_path, transport, rules, told
):
    nodes = trial.guarded()
    nodes[1:] = trial.guarded("strict", **rules)[1:]
    experiment = getattr(trial, transport)("data.source.share_metrics=true")
    with pytest.raises(RoundRefused) as refused:
        training.train(trial.grid(*nodes), experiment, tmp_path / "real")
    said = str(refused.value)
    assert said.startswith("before round 0: have 1, need 3: missing hospital-2, hospital-3 (")
    for site in SITES[1:]:
        assert f"{site}: the site refuses: {told}" in said
    assert not (tmp_path / "real" / "ledger.jsonl").exists()
    assert [trial.rows(site, "reserve") for site in SITES] == [[], [], []]


@pytest.mark.parametrize("transport", ["deployed", "channel"])
def test_a_site_whose_budget_was_spent_after_its_yes_says_no_all_the_same(
    trial, tmp_path, transport, monkeypatch
):
    """Two runs at once: both hear yes, one of them sets the last of the budget aside."""
    nodes = trial.guarded(budget_epsilon=3.0)
    asked = training.ask_approval

    def then_another_run_reserves(*given, **more):
        asked(*given, **more)
        monkeypatch.setattr(training, "ask_approval", asked)
        training.train(trial.grid(*nodes), trial.deployed(), tmp_path / "other")

    monkeypatch.setattr(training, "ask_approval", then_another_run_reserves)
    with pytest.raises(RoundRefused, match=r"^round 0: .*the site refuses: rule budget_epsilon"):
        training.train(trial.grid(*nodes), getattr(trial, transport)(), tmp_path / "real")
    assert [len(trial.rows(site, "commit")) for site in SITES] == [5, 5, 5]


def test_a_site_that_is_another_when_it_hears_the_plan_is_refused(trial, tmp_path, monkeypatch):
    asked = training.ask_approval

    def with_fewer_records(*given, **more):
        path = trial.directory / "hospital-3.csv"
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:100]))
        asked(*given, **more)

    monkeypatch.setattr(training, "ask_approval", with_fewer_records)
    with pytest.raises(RoundRefused, match="hospital-3: its facts are not those that it told"):
        training.train(trial.grid(), trial.deployed(), tmp_path / "real")


def test_a_target_epsilon_is_calibrated_once_and_its_plan_is_what_sites_approve(trial, tmp_path):
    experiment = trial.deployed("noise.noise_multiplier=null", "privacy.target_epsilon=2")
    nodes = trial.guarded(budget_epsilon=3.0)
    found = training.train(trial.grid(*nodes), experiment, tmp_path / "first")
    assert 1.9 < found.run.guarantee.epsilon <= 2.0
    with pytest.raises(RoundRefused, match="the site refuses: rule budget"):
        training.train(trial.grid(*nodes), experiment, tmp_path / "second")
