"""Every rule against `../oracles/update_rules.json`, and what a state may depend on."""

import math
from typing import Any

import numpy as np
import pytest

from dpfed_kan.privacy.clipping import GradientBlock, clip_and_sum
from dpfed_kan.privacy.mechanism import Mechanism, Release, ReleaseEvent
from dpfed_kan.privacy.noising import GaussianNoise
from dpfed_kan.privacy.sampling import Poisson
from dpfed_kan.privacy.transformed_clipping import clip_and_sum_transformed, transformed_norms
from dpfed_kan.streams import Streams
from dpfed_kan.update.adaclip import AdaClip
from dpfed_kan.update.adam import DPAdam
from dpfed_kan.update.adam_bc import DPAdamBC
from dpfed_kan.update.checkpoint import from_arrays, to_arrays
from dpfed_kan.update.macadam import DPMacAdam
from dpfed_kan.update.macadam_bc import DPMacAdamBC
from dpfed_kan.update.sgd import ProjectedSGD
from dpfed_kan.update.variance import exact_bias, paper_bias

CASES = (
    "dp_sgd",
    "dp_adam",
    "dp_adam_bc",
    "adaclip",
    "macadam_paper",
    "macadam_exact",
    "macadam_bc_paper",
    "macadam_bc_exact",
    "macadam_correlated",
    "dp_sgd_correlated",
)
ALL_RULES = [
    ProjectedSGD(learning_rate=0.1),
    DPAdam(learning_rate=0.01),
    DPAdamBC(learning_rate=0.01),
    AdaClip(learning_rate=0.1, min_variance=1e-3, max_variance=0.1),
    DPMacAdam(learning_rate=0.01, min_variance=1e-3, max_variance=0.1),
    DPMacAdamBC(learning_rate=0.01, min_variance=1e-3, max_variance=0.1),
]


def rule_of(case: dict[str, Any]) -> Any:
    rate = {"learning_rate": case["eta"]}
    clamps = {"min_variance": case.get("h1"), "max_variance": case.get("h2")}
    forms: dict[str, Any] = {
        "bias_correction": case.get("bias", "paper"),
        "noise_variance": "paper",
        "variance_of": "batch_mean",
    }
    match case["kind"]:
        case "sgd":
            return ProjectedSGD(**rate)
        case "adam":
            return DPAdam(**rate)
        case "adam_bc":
            return DPAdamBC(**rate)
        case "adaclip":
            return AdaClip(**rate, **clamps)
        case "macadam":
            return DPMacAdam(**rate, **clamps, **forms)
        case "macadam_bc":
            return DPMacAdamBC(**rate, **clamps, **forms, phi=case.get("phi", "paper"))
        case other:
            raise AssertionError(other)


def release_of(value: np.ndarray, std: float, round_index: int = 0) -> Release:
    event = ReleaseEvent(
        round_index=round_index,
        l2_sensitivity=1.0,
        noise_multiplier=1.0,
        correlation=0.0,
        column_normalized=False,
        release_sha256="",
    )
    return Release(value=value, event=event, noise_std=std)


@pytest.mark.parametrize("name", CASES)
def test_every_step_of_the_oracle_is_reproduced(oracle: Any, name: str) -> None:
    data = oracle("update_rules")
    assert {case["name"] for case in data["cases"]} == set(CASES)
    assert [len(batch) for batch in data["G"]].index(0) == 3  # one batch is empty
    (case,) = (case for case in data["cases"] if case["name"] == name)
    sigma, batch_size = data["sigma"], float(data["B"])
    lam, clip = case.get("lam", 0.0), case.get("C", 1.0)
    rule = rule_of(case)
    state = rule.start(np.zeros(data["D"]))
    for t, step in enumerate(case["steps"]):
        gradients = np.array(data["G"][t]).reshape(-1, data["D"])
        block = [GradientBlock(left=np.ones((len(gradients), 1)), right=gradients)]
        z = np.array(data["z"][t]) - (lam * np.array(data["z"][t - 1]) if t else 0.0)
        std = clip * sigma * math.sqrt(1 + lam**2 * (t > 0))
        if state.transform is None:
            total = clip_and_sum(block, l2_clip_norm=clip)
        else:
            total = clip_and_sum_transformed(block, transform=state.transform, l2_clip_norm=clip)
            norms = transformed_norms(block, state.transform)
            np.testing.assert_allclose(norms, step["norms"] or np.empty(0), rtol=1e-11)
        assert total.l2_sensitivity == clip
        release = release_of(total.value + clip * sigma * z, std, t)
        before, state = state, rule.step(state, release, batch_size=batch_size)
        if before.transform is None:
            noisy = release.value / batch_size
        else:
            noisy = before.scale * release.value / batch_size + before.center
            close(state.scale, step["scale"])
            close(state.center, step["center"])
        close(noisy, step["noisy_gradient"])
        close(state.params, step["theta"])


def close(ours: np.ndarray, theirs: Any) -> None:
    np.testing.assert_allclose(ours, np.array(theirs), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: type(rule).__name__)
def test_the_first_step_is_finite_also_after_an_empty_batch_without_noise(rule: Any) -> None:
    state = rule.step(rule.start(np.ones(4)), release_of(np.zeros(4), 0.0), batch_size=3.0)
    for value in to_arrays(state).values():
        if isinstance(value, np.ndarray):
            assert np.isfinite(value).all()
    if state.transform is not None:
        assert (state.scale >= math.sqrt(rule.min_variance * (1 - 0.999))).all()


@pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: type(rule).__name__)
def test_a_state_comes_back_from_its_arrays_and_continues_bit_for_bit(
    rule: Any, tmp_path: Any
) -> None:
    values = np.random.default_rng(0).normal(size=(6, 4))
    state = rule.start(np.ones(4), num_rounds=6)
    for value in values[:3]:
        state = rule.step(state, release_of(value, 0.5), batch_size=3.0)
    np.savez(tmp_path / "state.npz", **to_arrays(state), frozen=np.ones(2))
    with np.load(tmp_path / "state.npz", allow_pickle=False) as saved:
        again = from_arrays({name: saved[name] for name in saved.files})
    assert type(again) is type(state)
    for value in values[3:]:
        state = rule.step(state, release_of(value, 0.5), batch_size=3.0)
        again = rule.step(again, release_of(value, 0.5), batch_size=3.0)
    ours, theirs = to_arrays(state), to_arrays(again)
    assert list(ours) == list(theirs)
    for name, value in ours.items():
        np.testing.assert_array_equal(value, theirs[name])


@pytest.mark.parametrize("name", ["nothing", "os.path", "dpfed_kan.update.adam.DPAdam"])
def test_only_a_state_of_this_package_is_restored(name: str) -> None:
    with pytest.raises(ValueError, match="expected the checkpoint to hold a state"):
        from_arrays({"state_type": np.array(name)})


def test_a_rule_refuses_the_state_of_another() -> None:
    sgd = ProjectedSGD(learning_rate=0.1).start(np.zeros(2))
    with pytest.raises(TypeError, match="expected a AdamState, got the SGDState"):
        DPAdam(learning_rate=0.1).step(sgd, release_of(np.zeros(2), 1.0), batch_size=1.0)


@pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: type(rule).__name__)
def test_the_average_of_the_last_half_is_the_mean_of_those_iterates(rule: Any) -> None:
    from dataclasses import replace

    averaging = replace(rule, average="last_half")
    with pytest.raises(ValueError, match="num_rounds"):
        averaging.start(np.zeros(3))
    state, iterates = averaging.start(np.zeros(3), num_rounds=7), []
    plain = rule.start(np.zeros(3), num_rounds=7)
    for value in np.random.default_rng(1).normal(size=(7, 3)):
        state = averaging.step(state, release_of(value, 1.0), batch_size=2.0)
        plain = rule.step(plain, release_of(value, 1.0), batch_size=2.0)
        np.testing.assert_array_equal(state.params, plain.params)
        iterates.append(state.params)
    np.testing.assert_allclose(state.model_params, np.mean(iterates[3:], axis=0), rtol=1e-12)
    assert plain.model_params is plain.params


@pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: type(rule).__name__)
def test_every_rule_projects_after_the_step(rule: Any) -> None:
    from dataclasses import replace

    small = replace(rule, projection_radius=1e-4)
    state = small.step(small.start(np.ones(3)), release_of(np.full(3, 9.0), 0.0), batch_size=1.0)
    assert np.linalg.norm(state.params - 1.0) == pytest.approx(1e-4, rel=1e-9)
    assert state.num_projected == 1


@pytest.mark.parametrize("num_steps", [2, 3, 5, 20, 200])
def test_the_exact_bias_is_what_a_monte_carlo_of_the_average_shows(num_steps: int) -> None:
    beta, runs = 0.9, 200_000
    rng = np.random.default_rng(num_steps)
    first, spread = np.zeros(runs), np.zeros(runs)
    for t in range(1, num_steps + 1):
        g = 3.0 + rng.standard_normal(runs)
        first = beta * first + (1 - beta) * g
        spread = beta * spread + (1 - beta) * np.square(g - first / (1 - beta**t))
    assert exact_bias(beta, num_steps) == pytest.approx(spread.mean(), rel=0.01)
    if num_steps == 2:
        assert paper_bias(beta, 2) / exact_bias(beta, 2) == pytest.approx(2.1, abs=0.05)


def test_the_exact_bias_starts_at_zero_and_has_its_limit() -> None:
    assert exact_bias(0.9, 1) == paper_bias(0.9, 1) == 0.0
    assert exact_bias(0.9, 2000) == pytest.approx(2 * 0.9**2 / 1.9, rel=1e-12)


def test_a_release_states_the_noise_that_the_rules_subtract() -> None:
    """λ: variance 1, then 1+λ²; column-normalised: d_t² times that; measured from releases."""
    from dpfed_kan.privacy.clipping import ClippedSum

    for noise in (
        GaussianNoise(noise_multiplier=1.5),
        GaussianNoise(noise_multiplier=1.5, correlation=0.8),
        GaussianNoise(noise_multiplier=1.5, correlation=0.8, column_normalized=True),
    ):
        mechanism = Mechanism(
            sampling=Poisson(sampling_prob=0.5), noise=noise, l2_clip_norm=0.3, num_rounds=4
        )
        total = ClippedSum(value=np.zeros(200_000), l2_sensitivity=0.3)
        for t in range(4):
            release = mechanism.privatize(total, round_index=t, streams=Streams.from_seed(3))
            assert release.noise_std == pytest.approx(release.value.std(), rel=0.01)


@pytest.mark.parametrize("noise_variance", ["paper", "ema"])
def test_the_averaged_noise_variance_keeps_the_scale_steady(noise_variance: Any) -> None:
    """On pure noise the printed form alternates between its clamps; the average does not."""
    rule = DPMacAdam(
        learning_rate=1e-3,
        min_variance=1e-9,
        max_variance=1e-6,
        noise_variance=noise_variance,
        bias_correction="paper",
    )
    rng, dimension, batch, sigma = np.random.default_rng(0), 20_000, 40.0, 1.0
    state, scales = rule.start(np.zeros(dimension)), []
    for _ in range(300):
        value = sigma * rng.standard_normal(dimension)
        state = rule.step(state, release_of(value, sigma), batch_size=batch)
        scales.append(state.scale.mean())
    ratio = np.max(scales[-20:]) / np.min(scales[-20:])
    assert ratio < 1.5 if noise_variance == "ema" else ratio > 5


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"min_variance": 0.0}, "min_variance"),
        ({"max_variance": 1e-12}, "max_variance"),
        ({"beta1": 1.0}, "beta1"),
        ({"bias_correction": "none"}, "bias_correction"),
        ({"noise_variance": "now"}, "noise_variance"),
        ({"variance_of": "record"}, "variance_of"),
        ({"average": "first_half"}, "average"),
        ({"denominator_floor": 0.0}, "denominator_floor"),
    ],
)
def test_bad_settings_are_named(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        DPMacAdam(**({"learning_rate": 0.1} | changed))
