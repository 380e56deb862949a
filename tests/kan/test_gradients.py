"""Gradient blocks against references, against autograd, and on adversarial input."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dpfed_kan.kan import KANGradients, TwoLayerKAN, decision_function
from dpfed_kan.kan.basis import CHUNK_SIZE
from dpfed_kan.privacy.clipping import GradientBlock


def outer(block: GradientBlock) -> np.ndarray:
    """Form the per-example gradients of a block, shape (n, r·s)."""
    size = block.left.shape[1] * block.right.shape[1]
    products: np.ndarray = np.einsum("ir,is->irs", block.left, block.right)
    return products.reshape(-1, size)


def gradients(site: KANGradients, params: np.ndarray, indices: np.ndarray) -> np.ndarray:
    return np.concatenate([outer(block) for block in site.blocks(params, indices)], axis=1)


def shard(model: TwoLayerKAN, n: int, d: int, *, seed: int = 0) -> tuple[KANGradients, np.ndarray]:
    """A random shard, some inputs outside [-1, 1], and random parameters."""
    rng = np.random.default_rng(seed)
    params = model.initialize(d, rng)
    site = KANGradients(
        model=model,
        frozen=params.frozen,
        features=rng.uniform(-1.1, 1.1, size=(n, d)),
        labels=rng.choice([-1.0, 1.0], n),
    )
    return site, params.trainable


def breakpoints(model: TwoLayerKAN, low: float, high: float) -> Tensor:
    count = model.num_basis - model.spline_degree + 1
    return torch.linspace(low, high, count, dtype=torch.float64)


def find_interval(x: Tensor, inner: Tensor) -> Tensor:
    index = torch.searchsorted(inner, x.contiguous(), right=True) - 1
    return index.clamp(0, len(inner) - 2)


def cox_de_boor(x: Tensor, interval: Tensor, inner: Tensor, degree: int) -> Tensor:
    """The textbook recursion from a known interval, differentiable in x, of shape (..., p)."""
    knots = torch.cat([inner[:1].expand(degree), inner, inner[-1:].expand(degree)])
    row = (interval[..., None] + degree == torch.arange(len(knots) - 1)).to(torch.float64)
    for level in range(1, degree + 1):
        count = len(knots) - 1 - level
        rise = knots[level : level + count] - knots[:count]
        fall = knots[level + 1 :] - knots[1 : count + 1]
        left = (x[..., None] - knots[:count]) / torch.where(rise > 0, rise, torch.inf)
        right = (knots[level + 1 :] - x[..., None]) / torch.where(fall > 0, fall, torch.inf)
        row = left * row[..., :-1] + right * row[..., 1:]
    return row


def autograd_gradients(site: KANGradients, params: np.ndarray) -> np.ndarray:
    """Per-example gradients by vmap(grad) of a forward pass written apart."""
    model, d = site.model, site.input_dim
    m, p, degree, grid = model.hidden_width, model.num_basis, model.spline_degree, model.input_grid
    x, labels = torch.from_numpy(site.features).clamp(-grid, grid), torch.from_numpy(site.labels)
    first_grid = breakpoints(model, -grid, grid)
    second_grid = breakpoints(model, -1.0 if model.activation == "tanh" else 0.0, 1.0)
    phi = cox_de_boor(x, find_interval(x, first_grid), first_grid, degree)
    flat = torch.from_numpy(np.concatenate([params, site.frozen]))
    w, c = flat[: m * d * p].reshape(m, d, p), flat[m * d * p :].reshape(m, p)

    def hidden(w: Tensor, phi: Tensor) -> Tensor:
        u = torch.einsum("jiq,...iq->...j", w, phi) / math.sqrt(d)
        return torch.tanh(u) if model.activation == "tanh" else torch.sigmoid(u)

    def loss(w: Tensor, c: Tensor, phi: Tensor, y: Tensor, interval: Tensor) -> Tensor:
        basis = cox_de_boor(hidden(w, phi), interval, second_grid, degree)
        return torch.nn.functional.softplus(-y * (c * basis).sum() / math.sqrt(m), threshold=100)

    per_example = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1)), (None, None, 0, 0, 0))
    intervals = find_interval(hidden(w, phi), second_grid)
    grad_w, grad_c = per_example(w, c, phi, labels, intervals)
    parts = [grad_w, grad_c] if model.train_second_layer else [grad_w]
    return torch.cat([part.flatten(1) for part in parts], dim=1).numpy()


def test_gradients_losses_and_norms_equal_the_reference(shared_dir: Path) -> None:
    cases = json.loads((shared_dir / "oracles" / "kan_gradients.json").read_text())["cases"]
    assert len(cases) == 3
    for case in cases:
        w, c = np.ravel(case["W"]), np.ravel(case["c"])
        features, labels, n = np.asarray(case["X"]), np.asarray(case["y"]), len(case["y"])
        one = KANGradients(
            model=TwoLayerKAN(hidden_width=case["m"], num_basis=case["p"]),
            frozen=c,
            features=features,
            labels=labels,
        )
        both = KANGradients(
            model=TwoLayerKAN(hidden_width=case["m"], num_basis=case["p"], train_second_layer=True),
            frozen=np.empty(0),
            features=features,
            labels=labels,
        )
        grad_w = np.asarray(case["grad_W"]).reshape(n, -1)
        grad_c = np.asarray(case["grad_c"]).reshape(n, -1)
        everyone = np.arange(n)
        np.testing.assert_allclose(gradients(one, w, everyone), grad_w, rtol=0, atol=1e-12)
        joint = gradients(both, np.concatenate([w, c]), everyone)
        np.testing.assert_allclose(
            joint, np.concatenate([grad_w, grad_c], axis=1), rtol=0, atol=1e-12
        )
        norms = np.linalg.norm(gradients(one, w, everyone), axis=1)
        np.testing.assert_allclose(norms, case["norm_W"], rtol=0, atol=1e-12)
        np.testing.assert_allclose(
            np.linalg.norm(joint, axis=1), case["norm_both"], rtol=0, atol=1e-12
        )
        for site, params in ((one, w), (both, np.concatenate([w, c]))):
            loss, scores = site.loss_and_scores(params)
            np.testing.assert_allclose(scores, case["f"], rtol=0, atol=1e-12)
            assert loss == pytest.approx(np.mean(case["loss"]), abs=1e-12)


@pytest.mark.parametrize("activation", ["tanh", "sigmoid"])
@pytest.mark.parametrize("train_second_layer", [False, True])
@pytest.mark.parametrize(
    ("m", "d", "p", "degree", "grid"),
    [(4, 3, 6, 3, 1.0), (1, 1, 2, 1, 1.0), (3, 5, 20, 3, 0.4), (7, 2, 14, 11, 1.0)],
)
def test_gradients_equal_autograd(
    activation: str, train_second_layer: bool, m: int, d: int, p: int, degree: int, grid: float
) -> None:
    model = TwoLayerKAN(
        hidden_width=m,
        num_basis=p,
        spline_degree=degree,
        activation=activation,  # type: ignore[arg-type]
        train_second_layer=train_second_layer,
        input_grid=grid,
    )
    site, params = shard(model, 9, d)
    reference = autograd_gradients(site, params)
    computed = gradients(site, params, np.arange(9))
    assert computed.shape == (9, site.num_params)
    np.testing.assert_allclose(computed, reference, rtol=1e-12, atol=1e-12)


@given(st.lists(st.integers(0, 11), max_size=30), st.booleans())
@settings(max_examples=30, deadline=None)
def test_a_record_has_the_same_gradient_in_every_batch(batch: list[int], both: bool) -> None:
    site, params = shard(TwoLayerKAN(train_second_layer=both), 12, 3)
    everyone = gradients(site, params, np.arange(12))
    chosen = gradients(site, params, np.array(batch, dtype=np.intp))
    np.testing.assert_allclose(chosen, everyone[batch], rtol=1e-12, atol=1e-15)


def test_blocks_are_factors_and_later_calls_leave_them_alone() -> None:
    site, params = shard(TwoLayerKAN(train_second_layer=True), 12, 3)
    first = site.blocks(params, np.arange(5))
    kept = [block.right.copy() for block in first] + [block.left.copy() for block in first]
    site.blocks(-params, np.arange(5, 10))
    now = [block.right for block in first] + [block.left for block in first]
    for before, after in zip(kept, now, strict=True):
        np.testing.assert_array_equal(before, after)
    assert [(b.left.shape, b.right.shape) for b in first] == [
        ((5, 8), (5, 18)),
        ((5, 1), (5, 48)),
    ]
    assert all(part.dtype == np.float64 for b in first for part in (b.left, b.right))


def test_a_batch_too_large_for_one_chunk_is_the_same_as_its_parts() -> None:
    n = CHUNK_SIZE // 3
    site, params = shard(TwoLayerKAN(), n, 1)
    (whole,) = site.blocks(params, np.arange(n))
    parts = [site.blocks(params, part)[0].left for part in np.array_split(np.arange(n), 7)]
    assert whole.left.size > 2 * CHUNK_SIZE
    np.testing.assert_allclose(whole.left, np.concatenate(parts), rtol=1e-12, atol=1e-15)
    scores = site.loss_and_scores(params)[1]
    few = decision_function(site.model, params, site.frozen, site.features[-50:])
    np.testing.assert_allclose(scores[-50:], few, rtol=1e-12, atol=1e-14)


def test_an_empty_batch_gives_empty_blocks() -> None:
    site, params = shard(TwoLayerKAN(train_second_layer=True), 3, 2)
    blocks = site.blocks(params, np.empty(0, dtype=np.intp))
    assert [len(block.left) for block in blocks] == [0, 0]


def test_loss_and_scores_agree_with_the_decision_function() -> None:
    site, params = shard(TwoLayerKAN(), 40, 3)
    loss, scores = site.loss_and_scores(params)
    f = decision_function(site.model, params, site.frozen, site.features)
    np.testing.assert_allclose(scores, f, rtol=1e-13, atol=1e-14)
    assert loss == pytest.approx(np.log1p(np.exp(-site.labels * f)).mean(), rel=1e-13)


def test_huge_parameters_give_finite_losses_and_gradients() -> None:
    model = TwoLayerKAN(train_second_layer=True)
    site, params = shard(model, 40, 3)
    for scale in (1e3, 1e8):
        loss, scores = site.loss_and_scores(params * scale)
        assert math.isfinite(loss)
        assert np.isfinite(scores).all()
        assert np.isfinite(gradients(site, params * scale, np.arange(40))).all()


def test_non_finite_parameters_give_non_finite_gradients_not_an_exception() -> None:
    site, params = shard(TwoLayerKAN(), 4, 2)
    (block,) = site.blocks(np.full_like(params, np.nan), np.arange(4))
    assert np.isnan(block.left).all()
    assert np.isfinite(block.right).all()


def test_trial_k02_the_last_coefficient_gets_a_gradient_at_the_last_knot(
    shared_dir: Path,
) -> None:
    path = shared_dir / "cases" / "inputs" / "k02_knot_points.csv"
    features = np.loadtxt(path, skiprows=1).reshape(-1, 1)
    for dtype in (np.float32, np.float64):
        model = TwoLayerKAN(num_basis=8)
        params = model.initialize(1, np.random.default_rng(0))
        site = KANGradients(
            model=model,
            frozen=params.frozen,
            features=features.astype(dtype),
            labels=np.ones(len(features)),
        )
        per_example = gradients(site, params.trainable, np.arange(len(features)))
        last = per_example.reshape(-1, model.hidden_width, 8)[-1, :, -1]
        assert np.isfinite(per_example).all()
        assert (last != 0).all()


@pytest.mark.parametrize("train_second_layer", [False, True])
@pytest.mark.parametrize(
    ("num_basis", "degree"), [(4, 3), (2, 1), (12, 11), (23, 3)]
)  # one interval; first order; order 11; grid 20
def test_trial_k03_three_rows_and_a_constant_column_stay_finite(
    num_basis: int, degree: int, train_second_layer: bool
) -> None:
    model = TwoLayerKAN(
        num_basis=num_basis, spline_degree=degree, train_second_layer=train_second_layer
    )
    params = model.initialize(2, np.random.default_rng(0))
    site = KANGradients(
        model=model,
        frozen=params.frozen,
        features=np.array([[0.5, -1.0], [0.5, 0.0], [0.5, 1.0]]),
        labels=np.array([1.0, -1.0, 1.0]),
    )
    current = params.trainable
    for _ in range(50):
        per_example = gradients(site, current, np.arange(3))
        assert np.isfinite(per_example).all()
        current = current - 0.5 * per_example.mean(axis=0)
    assert site.loss_and_scores(current)[0] < site.loss_and_scores(params.trainable)[0]


def test_trial_k04_float32_features_are_cast_once_and_read_only_ones_accepted() -> None:
    model = TwoLayerKAN()
    site, params = shard(model, 6, 3)
    narrow: Any = site.features.astype(np.float32)
    narrow.flags.writeable = False
    cast = KANGradients(
        model=model, frozen=site.frozen, features=narrow, labels=site.labels.astype(np.int8)
    )
    wide = KANGradients(
        model=model,
        frozen=site.frozen,
        features=narrow.astype(np.float64),
        labels=site.labels,
    )
    computed = gradients(cast, params, np.arange(6))
    assert computed.dtype == np.float64
    np.testing.assert_array_equal(computed, gradients(wide, params, np.arange(6)))


def test_trial_k01_inputs_outside_the_grid_are_counted_per_column() -> None:
    model = TwoLayerKAN(input_grid=0.5)
    site = KANGradients(
        model=model,
        frozen=np.zeros(48),
        features=np.array([[0.5, 0.6], [-0.5, -9.0], [0.1, 0.0]]),
        labels=np.ones(3),
    )
    assert site.count_outside().tolist() == [0, 2]
