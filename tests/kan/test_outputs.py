"""Many outputs and other losses: factored gradients against vmap(grad) of a forward apart."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dpfed_kan.kan import KANGradients, TwoLayerKAN, decision_function
from dpfed_kan.privacy.transform import ClipTransform
from dpfed_kan.privacy.transformed_clipping import clip_and_sum_transformed, transformed_norms
from tests.kan.test_gradients import breakpoints, cox_de_boor, find_interval, gradients

SETTINGS = [
    (1, "logistic"),
    (1, "squared"),
    (1, "huber"),
    (3, "softmax"),
    (3, "squared"),
    (3, "huber"),
    (10, "softmax"),
    (10, "squared"),
]
HUBER = 0.3


def shard(num_outputs: int, loss: Any, trained: bool) -> tuple[KANGradients, np.ndarray]:
    rng = np.random.default_rng(num_outputs)
    model = TwoLayerKAN(
        hidden_width=5,
        num_basis=6,
        num_outputs=num_outputs,
        loss=loss,
        huber_delta=HUBER,
        train_second_layer=trained,
    )
    n, params = 17, model.initialize(4, rng)
    labels = {
        "logistic": rng.choice([-1.0, 1.0], n),
        "softmax": rng.integers(0, num_outputs, n).astype(float),
    }.get(loss, rng.normal(size=(n, num_outputs)) if num_outputs > 1 else rng.normal(size=n))
    site = KANGradients(
        model=model,
        frozen=params.frozen,
        features=rng.uniform(-1.1, 1.1, (n, 4)),
        labels=labels,
    )
    return site, params.trainable


def autograd(site: KANGradients, params: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (per-example gradients, per-example losses) by vmap(grad)."""
    model = site.model
    d, m, p, degree = site.input_dim, model.hidden_width, model.num_basis, model.spline_degree
    x = torch.from_numpy(site.features).clamp(-1, 1)
    grids = breakpoints(model, -1.0, 1.0), breakpoints(model, -1.0, 1.0)
    phi = cox_de_boor(x, find_interval(x, grids[0]), grids[0], degree)
    flat = torch.from_numpy(np.concatenate([params, site.frozen]))
    w, c = flat[: m * d * p].reshape(m, d, p), flat[m * d * p :].reshape(-1, m, p)

    def hidden(w: Tensor, phi: Tensor) -> Tensor:
        return torch.tanh(torch.einsum("jiq,...iq->...j", w, phi) / math.sqrt(d))

    def loss(w: Tensor, c: Tensor, phi: Tensor, y: Tensor, interval: Tensor) -> Tensor:
        basis = cox_de_boor(hidden(w, phi), interval, grids[1], degree)
        f = torch.einsum("ojk,jk->o", c, basis) / math.sqrt(m)
        if model.loss == "logistic":
            return torch.nn.functional.softplus(-y * f[0], threshold=100)
        if model.loss == "softmax":
            return torch.logsumexp(f, 0) - (f * y).sum()  # y is one-hot here
        gap = (f - y).abs()
        halves = gap**2 / 2
        if model.loss == "huber":
            halves = torch.where(gap > HUBER, HUBER * (gap - HUBER / 2), halves)
        return halves.sum()

    y = torch.from_numpy(site.labels)
    if model.loss == "softmax":
        y = torch.nn.functional.one_hot(y.long(), model.num_outputs).double()
    intervals = find_interval(hidden(w, phi), grids[1])
    axes = (None, None, 0, 0, 0)
    grad = torch.func.grad_and_value(loss, argnums=(0, 1))
    (grad_w, grad_c), value = torch.func.vmap(grad, axes)(w, c, phi, y, intervals)
    parts = [grad_w, grad_c] if model.train_second_layer else [grad_w]
    return torch.cat([part.flatten(1) for part in parts], dim=1).numpy(), value.numpy()


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize(("num_outputs", "loss"), SETTINGS)
def test_blocks_losses_and_transformed_norms_equal_autograd(
    num_outputs: int, loss: Any, trained: bool
) -> None:
    site, params = shard(num_outputs, loss, trained)
    expected, losses = autograd(site, params)
    ours = gradients(site, params, np.arange(17))
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-12)
    mean, scores = site.loss_and_scores(params)
    assert mean == pytest.approx(losses.mean(), abs=1e-12)
    np.testing.assert_allclose(
        scores, decision_function(site.model, params, site.frozen, site.features), atol=1e-12
    )
    rng = np.random.default_rng(5)
    transform = ClipTransform(
        center=0.1 * rng.normal(size=len(params)), scale=np.exp(rng.normal(size=len(params)))
    )
    blocks = site.blocks(params, np.arange(17))
    w = (expected - transform.center) / transform.scale
    norms = np.linalg.norm(w, axis=1)
    np.testing.assert_allclose(transformed_norms(blocks, transform), norms, rtol=1e-12)
    total = clip_and_sum_transformed(blocks, transform=transform, l2_clip_norm=1.0)
    clipped = (w / np.maximum(1.0, norms)[:, None]).sum(axis=0)
    np.testing.assert_allclose(total.value, clipped, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_outputs": 3}, "use loss=softmax"),
        ({"loss": "softmax"}, "num_outputs >= 2"),
        ({"loss": "hinge"}, "loss='hinge'"),
        ({"huber_delta": 0.0}, "huber_delta"),
        ({"num_outputs": 0}, "num_outputs"),
    ],
)
def test_outputs_and_loss_must_go_together(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        TwoLayerKAN(**settings)


@pytest.mark.parametrize("bad", [3.0, -1.0, 0.5, math.nan])
def test_a_class_that_there_is_not_is_named_by_its_row(bad: float) -> None:
    model = TwoLayerKAN(num_outputs=3, loss="softmax")
    with pytest.raises(ValueError, match=r"class number in 0\.\.2; the one at row_index=1"):
        KANGradients(
            model=model,
            frozen=model.initialize(2, np.random.default_rng(0)).frozen,
            features=np.zeros((2, 2)),
            labels=np.array([0.0, bad]),
        )


def test_a_gpu_that_is_not_there_is_refused_with_the_way_out() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    model = TwoLayerKAN()
    with pytest.raises(ValueError, match=r"runtime\.device=cpu"):
        KANGradients(
            model=model,
            frozen=model.initialize(2, np.random.default_rng(0)).frozen,
            features=np.zeros((2, 2)),
            labels=np.ones(2),
            device="cuda",
        )
