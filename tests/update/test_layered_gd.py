"""[KAN-GD]'s DP-GD: bounds that hold, one noise and one ball per layer, its own account."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpfed_kan.kan import KANGradients, TwoLayerKAN
from dpfed_kan.kan.lipschitz import gradient_bounds
from dpfed_kan.privacy.accounting import account
from dpfed_kan.privacy.accounting.gaussian import gaussian_delta
from dpfed_kan.privacy.clipping import ClippedSum, squared_norms
from dpfed_kan.privacy.mechanism import Mechanism
from dpfed_kan.privacy.noising import GaussianNoise
from dpfed_kan.privacy.sampling import FullBatch
from dpfed_kan.privacy.transformed_clipping import transformed_clip_factors
from dpfed_kan.streams import Streams
from dpfed_kan.update.layered_gd import LayeredGD

ROUNDS, MU = 9, 0.8


def setup(model: TwoLayerKAN, radius: float) -> tuple[KANGradients, np.ndarray, float]:
    rng = np.random.default_rng(0)
    start = model.initialize(3, rng)
    site = KANGradients(
        model=model,
        frozen=start.frozen,
        features=rng.uniform(-1, 1, (200, 3)),
        labels=rng.choice([-1.0, 1.0], 200),
    )
    second = start.trainable[-model.num_second :]
    return site, start.trainable, float(np.linalg.norm(second))


@pytest.mark.parametrize("activation", ["tanh", "sigmoid"])
@pytest.mark.parametrize("degree", [1, 2, 3])
def test_no_gradient_is_longer_than_its_layer_s_bound(activation: Any, degree: int) -> None:
    model = TwoLayerKAN(
        hidden_width=6,
        num_basis=7,
        spline_degree=degree,
        activation=activation,
        train_second_layer=True,
    )
    site, start, norm = setup(model, 2.0)
    tight = gradient_bounds(model, second_layer_norm=norm, radius=2.0)
    paper = gradient_bounds(model, second_layer_norm=norm, radius=2.0, form="paper")
    assert tight[0] < paper[0] / 3
    assert tight[1] < paper[1]
    rng, longest = np.random.default_rng(1), np.zeros(2)
    for _ in range(20):
        params = start.copy()
        push = rng.normal(size=model.num_second)
        params[-model.num_second :] += 2.0 * push / np.linalg.norm(push)
        first, second = site.blocks(params, np.arange(200))
        norms = [math.sqrt(squared_norms([block]).max()) for block in (first, second)]
        longest = np.maximum(longest, norms)
    assert (longest <= tight).all()
    assert longest[1] > 0.3 * tight[1]


def rule(model: TwoLayerKAN, norm: float) -> LayeredGD:
    scales = gradient_bounds(model, second_layer_norm=norm, radius=0.5)
    return LayeredGD(
        learning_rate=1.0,
        layer_sizes=(3 * model.hidden_width * model.num_basis, model.num_second),
        layer_scales=scales,
        layer_radii=(0.7, 0.5),
    )


def test_the_clip_is_idle_the_noise_is_the_paper_s_and_the_account_one_gaussian() -> None:
    model = TwoLayerKAN(hidden_width=6, num_basis=7, train_second_layer=True)
    site, start, norm = setup(model, 0.5)
    gd = rule(model, norm)
    state = gd.start(start)
    factors = transformed_clip_factors(
        site.blocks(start, np.arange(200)), transform=state.transform, l2_clip_norm=math.sqrt(2)
    )
    np.testing.assert_array_equal(factors, np.ones(200))
    mechanism = Mechanism(
        sampling=FullBatch(),
        noise=GaussianNoise(noise_multiplier=math.sqrt(ROUNDS) / MU),
        l2_clip_norm=math.sqrt(2),
        num_rounds=ROUNDS,
    )
    epsilon = account(mechanism, delta=1e-3).epsilon
    assert gaussian_delta(epsilon=epsilon, mu=MU) == pytest.approx(1e-3, rel=1e-6)
    zero = ClippedSum(value=np.zeros(len(start)), l2_sensitivity=math.sqrt(2))
    release = mechanism.privatize(zero, round_index=0, streams=Streams.from_seed(0))
    free = replace(gd, layer_radii=(math.inf, math.inf))
    noise = np.split(start - free.step(free.start(start), release, batch_size=200.0).params, [126])
    for part, bound in zip(noise, gd.layer_scales, strict=True):
        delta_j = bound / 200  # sensitivity of the mean, zero-out
        assert part.std() == pytest.approx(delta_j * math.sqrt(2 * ROUNDS) / MU, rel=0.2)


def test_every_layer_stays_in_its_own_ball() -> None:
    model = TwoLayerKAN(hidden_width=6, num_basis=7, train_second_layer=True)
    _, start, norm = setup(model, 0.5)
    gd = rule(model, norm)
    state = gd.start(start)
    mechanism = Mechanism(
        sampling=FullBatch(),
        noise=GaussianNoise(noise_multiplier=50.0),
        l2_clip_norm=math.sqrt(2),
        num_rounds=ROUNDS,
    )
    zero = ClippedSum(value=np.zeros(len(start)), l2_sensitivity=math.sqrt(2))
    for t in range(3):
        release = mechanism.privatize(zero, round_index=t, streams=Streams.from_seed(0))
        state = gd.step(state, release, batch_size=1.0)
        first, second = np.split(state.params - start, [126])
        assert np.linalg.norm(first) == pytest.approx(0.7)
        assert np.linalg.norm(second) == pytest.approx(0.5)
    assert state.num_projected == 3


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"layer_sizes": (3, 4)}, "to sum to 168"),
        ({"layer_sizes": (168,)}, "one size, one scale"),
        ({"layer_scales": (0.0, 1.0)}, "layer_scales"),
        ({"layer_radii": (-1.0, 1.0)}, "layer_radii"),
    ],
)
def test_layers_must_make_up_the_parameters(changed: dict[str, Any], said: str) -> None:
    model = TwoLayerKAN(hidden_width=6, num_basis=7, train_second_layer=True)
    with pytest.raises(ValueError, match=said):
        replace(rule(model, 1.0), **changed).start(np.zeros(168))
