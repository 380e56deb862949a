"""Algorithm 1 of [KAN-SGD] (arXiv 2605.12648), put together from the parts that a run uses."""

import math
from typing import Any

import numpy as np
import pytest

from dpfed_kan.federated.server import Server, rounds
from dpfed_kan.federated.site import Site
from dpfed_kan.kan import KANGradients, TwoLayerKAN
from dpfed_kan.privacy.clipping import clip_and_sum, clip_factors
from dpfed_kan.privacy.joint_sampling import Sampling
from dpfed_kan.privacy.ledger import Ledger
from dpfed_kan.privacy.mechanism import Mechanism, Release, ReleaseEvent
from dpfed_kan.privacy.noising import GaussianNoise, NoNoise, correlate, standard_normals
from dpfed_kan.privacy.sampling import Cyclic, FullBatch, Poisson
from dpfed_kan.streams import Streams
from dpfed_kan.update.sgd import ProjectedSGD

RNG = np.random.default_rng(0)
FEATURES, LABELS = RNG.uniform(-0.5, 0.5, (24, 3)), np.sign(RNG.normal(size=24))
MODEL = TwoLayerKAN(hidden_width=4, num_basis=6)


def test_every_step_of_the_oracle_is_reproduced(oracle: Any) -> None:
    data = oracle("lambda_cgd")
    features, labels = np.array(data["X"]), np.array(data["y"])
    model = TwoLayerKAN(hidden_width=data["m"], num_basis=data["p"])
    gradients = KANGradients(
        model=model, frozen=np.array(data["c"]).ravel(), features=features, labels=labels
    )
    normals = [np.array(z).ravel() for z in data["Z"]]
    assert {run["name"] for run in data["runs"]} >= {"correlated", "independent", "plain_sgd"}
    for run in data["runs"]:
        rule = ProjectedSGD(learning_rate=run["eta"], projection_radius=run["R"])
        state = rule.start(np.array(data["W0"]).ravel())
        for t, step in enumerate(run["steps"]):
            batch = np.array(data["batches"][t])
            blocks = gradients.blocks(state.params, batch)
            total = clip_and_sum(blocks, l2_clip_norm=run["C"])
            noise = correlate(normals[t], normals[t - 1] if t else None, correlation=run["lam"])
            value = total.value + run["C"] * run["kappa"] * noise
            projected_before = state.num_projected
            state = rule.step(state, as_release(value), batch_size=len(batch))

            def close(ours: np.ndarray, theirs: Any) -> None:
                np.testing.assert_allclose(ours, np.array(theirs).ravel(), rtol=0, atol=1e-10)

            close(clip_factors(blocks, l2_clip_norm=run["C"]), step["clip_factors"])
            close(total.value / len(batch), step["clipped_mean"])
            close(value / len(batch), step["noisy_mean"])
            close(state.params, step["W"])
            assert (state.num_projected > projected_before) == step["projected"]
            loss, _ = gradients.loss_and_scores(state.params)
            assert loss == pytest.approx(step["empirical_loss_after"], abs=1e-10)


def as_release(value: np.ndarray) -> Release:
    event = ReleaseEvent(
        round_index=0,
        l2_sensitivity=1.0,
        noise_multiplier=1.0,
        correlation=0.0,
        column_normalized=False,
        release_sha256="",
    )
    return Release(value=value, event=event, noise_std=1.0)


def trajectory(
    mechanism: Mechanism,
    rule: ProjectedSGD,
    *,
    frozen: np.ndarray,
    batch_size: float,
    params: np.ndarray,
    shards: list[slice] | None = None,
) -> list[np.ndarray]:
    """Run all rounds over sites that hold the slices, through the server of the product."""
    sites = [
        Site(
            name=f"site-{k}",
            num_records=len(LABELS[shard]),
            gradients=KANGradients(
                model=MODEL, frozen=frozen, features=FEATURES[shard], labels=LABELS[shard]
            ),
            sampling=mechanism.sampling,
            l2_clip_norm=mechanism.l2_clip_norm,
            streams=Streams.from_seed(1).for_site(f"site-{k}"),
        )
        for k, shard in enumerate(shards or [slice(None)])
    ]
    sizes = {site.name: site.num_records for site in sites}
    server = Server(mechanism=mechanism, update_rule=rule, num_records=sizes, batch_size=batch_size)
    states = rounds(
        server,
        rule.start(params),
        sum_over_sites=server.over(lambda broadcast: [site.work(broadcast) for site in sites]),
        streams=Streams.from_seed(2),
        ledger=Ledger(mechanism=mechanism, num_records=sizes),
    )
    return [state.params for state in states]


def setting(sampling: Sampling, noise: Any, clip: float) -> Mechanism:
    return Mechanism(sampling=sampling, noise=noise, l2_clip_norm=clip, num_rounds=6)


START = MODEL.initialize(3, np.random.default_rng(7))


def test_without_noise_clip_and_ball_it_is_plain_gradient_descent() -> None:
    ours = trajectory(
        setting(FullBatch(), NoNoise(), math.inf),
        ProjectedSGD(learning_rate=2.0),
        frozen=START.frozen,
        batch_size=24.0,
        params=START.trainable,
    )
    gradients = KANGradients(model=MODEL, frozen=START.frozen, features=FEATURES, labels=LABELS)
    params = START.trainable
    for after in ours:
        (block,) = gradients.blocks(params, np.arange(24))
        params = params - (2.0 / 24) * (block.left.T @ block.right).ravel()
        np.testing.assert_array_equal(after, params)


def test_kappa_zero_is_sgd_with_clipping_whatever_lambda() -> None:
    runs = [
        trajectory(
            setting(Poisson(sampling_prob=0.5), noise, 0.05),
            ProjectedSGD(learning_rate=2.0),
            frozen=START.frozen,
            batch_size=12.0,
            params=START.trainable,
        )
        for noise in (
            NoNoise(),
            GaussianNoise(noise_multiplier=0.0),
            GaussianNoise(noise_multiplier=0.0, correlation=0.9),
        )
    ]
    np.testing.assert_array_equal(runs[0], runs[1])
    np.testing.assert_array_equal(runs[0], runs[2])
    assert not np.array_equal(runs[0][-1], START.trainable)


def test_lambda_zero_is_dp_sgd() -> None:
    mechanism = setting(FullBatch(), GaussianNoise(noise_multiplier=0.7), 0.05)
    ours = trajectory(
        mechanism,
        ProjectedSGD(learning_rate=1.0),
        frozen=START.frozen,
        batch_size=24.0,
        params=START.trainable,
    )
    gradients = KANGradients(model=MODEL, frozen=START.frozen, features=FEATURES, labels=LABELS)
    params, streams = START.trainable, Streams.from_seed(2)
    for t, after in enumerate(ours):
        total = clip_and_sum(gradients.blocks(params, np.arange(24)), l2_clip_norm=0.05)
        z = standard_normals(streams, round_index=t, dimension=len(params))
        params = params - (1.0 / 24) * (total.value + 0.05 * (0.7 * z))
        np.testing.assert_array_equal(after, params)


def test_a_cycle_of_one_batch_and_poisson_with_q_one_are_full_batch() -> None:
    runs = [
        trajectory(
            setting(sampling, GaussianNoise(noise_multiplier=0.7, correlation=0.5), 0.05),
            ProjectedSGD(learning_rate=1.0),
            frozen=START.frozen,
            batch_size=24.0,
            params=START.trainable,
        )
        for sampling in (FullBatch(), Cyclic(num_batches=1), Poisson(sampling_prob=1.0))
    ]
    np.testing.assert_array_equal(runs[0], runs[1])
    np.testing.assert_array_equal(runs[0], runs[2])


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.95])
def test_with_zero_gradients_the_walk_has_its_closed_form(correlation: float) -> None:
    """W_t − W_0 = −η (Cκ/B) (Z_t + (1−λ) Σ_{s<t} Z_s)."""
    mechanism = setting(
        FullBatch(), GaussianNoise(noise_multiplier=3.0, correlation=correlation), 0.5
    )
    ours = trajectory(
        mechanism,
        ProjectedSGD(learning_rate=0.8),
        frozen=np.zeros(24),  # c = 0 makes every gradient exactly zero
        batch_size=24.0,
        params=START.trainable,
    )
    streams = Streams.from_seed(2)
    past = np.zeros_like(START.trainable)
    for t, after in enumerate(ours):
        z = standard_normals(streams, round_index=t, dimension=len(past))
        closed = START.trainable - 0.8 * (0.5 * 3.0 / 24) * (z + (1 - correlation) * past)
        np.testing.assert_allclose(after, closed, rtol=0, atol=1e-12)
        past += z


@pytest.mark.parametrize("sampling", [FullBatch(), Poisson(sampling_prob=1.0)])
def test_one_site_equals_four_with_the_same_records(sampling: Sampling) -> None:
    mechanism = setting(sampling, GaussianNoise(noise_multiplier=0.7, correlation=0.5), 0.05)
    shards = [slice(0, 3), slice(3, 11), slice(11, 12), slice(12, 24)]
    one, four = (
        trajectory(
            mechanism,
            ProjectedSGD(learning_rate=2.0, projection_radius=0.5),
            frozen=START.frozen,
            batch_size=24.0,
            params=START.trainable,
            shards=split,
        )
        for split in ([slice(None)], shards)
    )
    np.testing.assert_allclose(four, one, rtol=0, atol=1e-12)
