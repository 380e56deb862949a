"""The audit accepts the product and rejects it with a bug planted: MATH.md 6."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from dpfed_kan.audit_forms import one_run, two_run
from dpfed_kan.auditing import BUGS, audit
from dpfed_kan.canary_run import CanaryRun
from dpfed_kan.cli import main
from dpfed_kan.config import to_config
from dpfed_kan.privacy import mechanism as product
from dpfed_kan.privacy.accounting.bounds import gaussian_sensitivity
from dpfed_kan.privacy.joint_sampling import BallsInBins, FixedSize
from dpfed_kan.privacy.mechanism import Mechanism
from dpfed_kan.privacy.noising import GaussianNoise
from dpfed_kan.privacy.sampling import Cyclic, FullBatch, Poisson
from dpfed_kan.simulated_sites import SimulatedSites
from dpfed_kan.streams import Streams
from dpfed_kan.update.macadam import DPMacAdam
from dpfed_kan.update.sgd import ProjectedSGD

Make = Callable[..., Any]
DELTA = 1e-3
RULES = {
    "sgd": ProjectedSGD(learning_rate=5.0),
    "macadam": DPMacAdam(learning_rate=0.05, min_variance=1e-6, max_variance=1e-3),
}


def small(*, rule: str, correlation: float, sampling: Any = None, **changes: Any) -> CanaryRun:
    """μ = 2 at every λ, where a few hundred runs tell much."""
    sampling = sampling or FullBatch()
    rounds = changes.pop("num_rounds", 6)
    noise = GaussianNoise(
        noise_multiplier=1.0,
        correlation=correlation,
        column_normalized=changes.pop("column_normalized", False),
    )
    mechanism = Mechanism(
        sampling=sampling, noise=noise, l2_clip_norm=0.3, num_rounds=rounds, **changes
    )
    most = gaussian_sensitivity(mechanism, rounds) or 1.0
    mechanism = mechanism.with_noise_multiplier(most * mechanism.sensitivity_factor / 2.0)
    return CanaryRun.small(mechanism, RULES[rule], streams=Streams.from_seed(5))


def streams(seed: int = 0) -> Streams:
    return Streams.from_seed(seed)


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("rule", RULES)
def test_two_runs_stay_below_epsilon_and_near_it(rule: str, correlation: float) -> None:
    run = small(rule=rule, correlation=correlation)
    found = two_run(run, num_runs=300, delta=DELTA, streams=streams())
    assert 0.5 * found.epsilon < found.epsilon_lower <= found.epsilon


@pytest.mark.parametrize("bug", ["noise halved", "clip off"])
@pytest.mark.parametrize(("rule", "correlation"), [("sgd", 0.5), ("macadam", 0.9)])
def test_a_planted_bug_exceeds_epsilon(rule: str, correlation: float, bug: Any) -> None:
    run = small(rule=rule, correlation=correlation)
    found = two_run(run, num_runs=200, delta=DELTA, streams=streams(), bug=bug)
    assert found.epsilon_lower > found.epsilon


def test_without_whitening_the_halved_noise_is_missed() -> None:
    run = small(rule="sgd", correlation=0.9, sampling=Cyclic(num_batches=4), num_rounds=12)
    found = two_run(run, num_runs=300, delta=DELTA, streams=streams(), bug="noise halved")
    assert found.unwhitened < found.epsilon < found.epsilon_lower


@pytest.mark.parametrize(
    "changes", [{"neighboring_relation": "replace_one"}, {"column_normalized": True}]
)
def test_other_relations_and_normalisations_hold_and_tell(changes: dict[str, Any]) -> None:
    run = small(rule="sgd", correlation=0.8, **changes)
    found = two_run(run, num_runs=200, delta=DELTA, streams=streams())
    assert 0.4 * found.epsilon < found.epsilon_lower <= found.epsilon
    for bug in BUGS:
        wrong = two_run(run, num_runs=160, delta=DELTA, streams=streams(), bug=bug)
        assert wrong.epsilon_lower > wrong.epsilon


@pytest.mark.parametrize("sampling", [Poisson(sampling_prob=0.5), BallsInBins(num_bins=2)])
def test_random_batches_are_bounded_by_the_form_that_holds_for_them(sampling: Any) -> None:
    run = small(rule="sgd", correlation=0.0, sampling=sampling)
    found = two_run(run, num_runs=200, delta=DELTA, streams=streams())
    assert found.method == "Clopper-Pearson, any mechanism"
    assert found.epsilon_lower <= found.epsilon


def test_the_canary_of_a_cyclic_schedule_is_known_to_the_round() -> None:
    run = small(rule="sgd", correlation=0.5, sampling=Cyclic(num_batches=3))
    assert run.patterns()[:, 1].tolist() == [0, 1, 0, 0, 1, 0]
    present = np.full(run.num_canaries, np.nan)
    present[1] = 1.0
    silent = run.seen(present, streams=streams()) - run.seen(np.nan * present, streams=streams())
    np.testing.assert_allclose(silent[:, 1], [0, 1, 0, 0, 1, 0], atol=1e-9)
    np.testing.assert_allclose(silent[:, 2], 0, atol=1e-5)


def test_what_a_canary_adds_is_one_clip_norm_in_the_rules_own_space() -> None:
    run = small(rule="macadam", correlation=0.5)
    present = np.full(run.num_canaries, np.nan)
    present[3] = 1.0
    first = (run.seen(present, streams=streams()) - run.seen(np.nan * present, streams=streams()))[
        0
    ]
    assert first[3] == pytest.approx(1.0, abs=1e-9)


def test_fixed_size_batches_have_no_audit_of_their_own() -> None:
    run = small(rule="sgd", correlation=0.0, sampling=FixedSize(batch_size=4))
    with pytest.raises(ValueError, match="choose sampling=full_batch"):
        run.patterns()


@pytest.mark.parametrize("rule", RULES)
def test_one_run_beside_real_records(experiment: Make, rule: str) -> None:
    setup = experiment(
        sampling={"_target_": "dpfed_kan.privacy.sampling.FullBatch"},
        update=to_config(RULES[rule]),
        noise__noise_multiplier=None,
        privacy__target_epsilon=2.0,
    )
    sites = SimulatedSites(setup, streams())
    run = CanaryRun.beside(setup, sites, setup.mechanism(sites.num_records), num_canaries=400)
    found = one_run(run, delta=DELTA, streams=streams())
    assert 0 < found.epsilon_lower <= found.epsilon
    wrong = one_run(run, delta=DELTA, streams=streams(), bug="clip off")
    assert wrong.epsilon_lower > wrong.epsilon


def test_an_audit_says_what_it_did_not_audit(experiment: Make) -> None:
    found = audit(experiment(), num_runs=4, num_canaries=120, num_rounds=3)
    assert "full batches in the place of Poisson, q=0.3" in found.note
    assert found.found.two_run is not None
    assert found.found.two_run.num_rounds == 3
    assert found.found.one_run is not None
    assert found.found.one_run.num_rounds == 10
    kept = audit(experiment(), num_runs=0, num_canaries=120, keep_sampling=True)
    assert "does not know who joined" in kept.note
    assert kept.found.two_run is None
    fused = {"_target_": "dpfed_kan.federated.runtimes.Fused", "precision": "float32"}
    single = audit(experiment(runtime=fused), num_runs=4, num_canaries=120, num_rounds=3)
    assert single.note.endswith("what float32 rounds is proved and charged, not audited")
    with pytest.raises(ValueError, match="no audit can exceed it"):
        audit(experiment(noise={"_target_": "dpfed_kan.privacy.noising.NoNoise"}))
    sized = {"_target_": "dpfed_kan.privacy.joint_sampling.FixedSize", "batch_size": 9}
    with pytest.raises(ValueError, match="leave out --keep-sampling"):
        audit(experiment(sampling=sized), keep_sampling=True)
    with pytest.raises(ValueError, match="fewer prove next to nothing"):
        audit(experiment(), num_canaries=60)
    with pytest.raises(ValueError, match="num_canaries=0 to be 0 or at least 120"):
        audit(experiment(), num_runs=0, num_canaries=0)


def test_the_command_saves_beside_the_run_what_it_shows(
    experiment: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = to_config(experiment(noise__noise_multiplier=8.0))
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    main(["audit", str(tmp_path), "--runs", "40", "--rounds", "2", "--canaries", "400"])
    said = capsys.readouterr().out
    assert "This audit would notice: clip off" in said
    saved = json.loads((tmp_path / "audit.json").read_text())
    assert saved["agrees"]
    assert "one-run" in saved["would_notice"]["clip off"]
    assert saved["controls"]["clip off"]["one_run"]["num_correct"] == 160
    bound = saved["found"]["one_run"]
    assert 0 <= bound["epsilon_lower"] <= bound["epsilon"]
    again = ["audit", str(tmp_path / "config.yaml"), "--runs", "0", "--json", "--canaries", "120"]
    main(again)
    assert json.loads(capsys.readouterr().out)["found"]["two_run"] is None


def test_a_false_epsilon_ends_in_an_error(
    experiment: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loud = product.draw_noise
    monkeypatch.setattr(product, "draw_noise", lambda *a, **k: loud(*a, **k) / 20)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(to_config(experiment())))
    with pytest.raises(SystemExit, match="ε is wrong"):
        main(["audit", str(tmp_path), "--runs", "200", "--rounds", "2", "--canaries", "0"])
