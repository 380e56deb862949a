"""The network: its layout, its start, and its forward pass against references."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra.utils import instantiate
from scipy.interpolate import BSpline
from scipy.special import expit

from dpfed_kan.kan import KANParams, TwoLayerKAN, decision_function


def scipy_forward(
    model: TwoLayerKAN, w: np.ndarray, c: np.ndarray, features: np.ndarray
) -> np.ndarray:
    """Evaluate f with loops over edges and scipy's splines; w has shape (m, d, p)."""

    def spline(coefficients: np.ndarray, low: float, high: float) -> BSpline:
        degree = model.spline_degree
        inner = np.linspace(low, high, model.num_basis - degree + 1)
        return BSpline(np.r_[[low] * degree, inner, [high] * degree], coefficients, degree)

    grid, (num_units, dim, _) = model.input_grid, w.shape
    total = np.zeros(len(features))
    for j in range(num_units):
        u = sum(
            spline(w[j, i], -grid, grid)(np.clip(features[:, i], -grid, grid)) for i in range(dim)
        )
        u = u / math.sqrt(dim)
        if model.activation == "tanh":
            total += spline(c[j], -1.0, 1.0)(np.tanh(u))
        else:
            total += spline(c[j], 0.0, 1.0)(expit(u))
    return total / math.sqrt(num_units)


def test_decisions_equal_the_reference(shared_dir: Path) -> None:
    cases = json.loads((shared_dir / "oracles" / "kan_gradients.json").read_text())["cases"]
    for case in cases:
        model = TwoLayerKAN(hidden_width=case["m"], num_basis=case["p"])
        f = decision_function(
            model, np.ravel(case["W"]), np.ravel(case["c"]), np.asarray(case["X"])
        )
        np.testing.assert_allclose(f, case["f"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("activation", ["tanh", "sigmoid"])
@pytest.mark.parametrize(
    ("m", "d", "p", "degree", "grid"), [(1, 1, 4, 3, 1.0), (5, 3, 2, 1, 2.0), (3, 4, 9, 5, 0.3)]
)
def test_decisions_equal_a_loop_over_scipy_splines(
    activation: str, m: int, d: int, p: int, degree: int, grid: float
) -> None:
    rng = np.random.default_rng(3)
    features = rng.uniform(-1, 1, size=(1030, d))  # more rows than are evaluated at once
    for train_second_layer in (False, True):
        model = TwoLayerKAN(
            hidden_width=m,
            num_basis=p,
            spline_degree=degree,
            activation=activation,  # type: ignore[arg-type]
            input_grid=grid,
            train_second_layer=train_second_layer,
        )
        params = model.initialize(d, rng)
        everything = np.concatenate([params.trainable, params.frozen])
        w, c = everything[: m * d * p].reshape(m, d, p), everything[m * d * p :].reshape(m, p)
        f = decision_function(model, params.trainable, params.frozen, features)
        np.testing.assert_allclose(f, scipy_forward(model, w, c, features), rtol=0, atol=1e-12)


def test_the_layout_names_every_trainable_parameter_in_order() -> None:
    first = ("first_layer", (4, 18))
    assert TwoLayerKAN(hidden_width=4).layout(3) == (first,)
    both = TwoLayerKAN(hidden_width=4, train_second_layer=True)
    assert both.layout(3) == (first, ("second_layer", (4, 6)))
    assert both.num_params(3) == 4 * 18 + 4 * 6


def test_the_start_is_standard_normal_and_the_same_whether_or_not_both_layers_train() -> None:
    one = TwoLayerKAN(hidden_width=50, num_basis=8)
    both = TwoLayerKAN(hidden_width=50, num_basis=8, train_second_layer=True)
    frozen, free = (model.initialize(100, np.random.default_rng(7)) for model in (one, both))
    np.testing.assert_array_equal(np.concatenate([frozen.trainable, frozen.frozen]), free.trainable)
    assert (frozen.trainable.size, frozen.frozen.size) == (one.num_params(100), 400)
    assert (free.trainable.size, free.frozen.size) == (both.num_params(100), 0)
    rng = np.random.default_rng(7)
    np.testing.assert_array_equal(frozen.trainable, rng.standard_normal(one.num_params(100)))
    error = 5 / math.sqrt(free.trainable.size)
    assert abs(free.trainable.mean()) < error
    assert abs(free.trainable.var() - 1) < 2 * error


def test_trial_k04_float32_features_give_the_same_decisions_in_float64() -> None:
    model = TwoLayerKAN(input_grid=2.0)
    params = model.initialize(3, np.random.default_rng(0))
    features: Any = np.random.default_rng(1).standard_normal((20, 3)).astype(np.float32)
    f = decision_function(model, params.trainable, params.frozen, features)
    wide = decision_function(model, params.trainable, params.frozen, features.astype(np.float64))
    assert f.dtype == np.float64
    np.testing.assert_array_equal(f, wide)


def test_trial_k04_float32_parameters_are_refused_before_anything_runs() -> None:
    model = TwoLayerKAN()
    params = model.initialize(3, np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"trainable parameters .* float64, got .*float32"):
        decision_function(
            model,
            params.trainable.astype(np.float32),
            params.frozen,
            np.zeros((2, 3)),
        )


def test_read_only_and_strided_arrays_are_accepted_and_left_alone() -> None:
    model = TwoLayerKAN(train_second_layer=True)
    params = model.initialize(3, np.random.default_rng(0))
    features = np.random.default_rng(1).uniform(-1, 1, (6, 10))
    expected = decision_function(model, params.trainable, params.frozen, features[::2, 1::3].copy())
    doubled = np.repeat(params.trainable, 2)
    for array in (doubled, features):
        array.flags.writeable = False
    f = decision_function(model, doubled[::2], params.frozen, features[::2, 1::3])
    np.testing.assert_array_equal(f, expected)


def test_no_features_give_no_decisions() -> None:
    model = TwoLayerKAN()
    params = model.initialize(3, np.random.default_rng(0))
    empty = decision_function(model, params.trainable, params.frozen, np.zeros((0, 3)))
    assert empty.shape == (0,)


def test_vectors_and_features_of_another_shape_are_refused() -> None:
    model = TwoLayerKAN()
    params = model.initialize(3, np.random.default_rng(0))
    for wrong, message in [
        (np.zeros((2, 4)), r"trainable parameters of shape \(192,\)"),
        (np.zeros(3), "features of shape"),
        (np.array([["a", "b", "c"]]), "numeric features"),
    ]:
        with pytest.raises(ValueError, match=message):
            decision_function(model, params.trainable, params.frozen, wrong)
    with pytest.raises(ValueError, match=r"frozen parameters of shape \(48,\)"):
        decision_function(model, params.trainable, np.empty(0), np.zeros((2, 3)))
    both = TwoLayerKAN(train_second_layer=True)
    start = both.initialize(3, np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"frozen parameters of shape \(0,\)"):
        decision_function(both, start.trainable, params.frozen, np.zeros((2, 3)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden_width": 0}, "hidden_width=0 in"),
        ({"num_basis": 3}, "num_basis=3 to be > spline_degree=3"),
        ({"spline_degree": 0}, "spline_degree=0 in"),
        ({"activation": "relu"}, "activation='relu' in"),
        ({"input_grid": 0.0}, "input_grid=0.0 in"),
        ({"input_grid": math.inf}, "input_grid=inf in"),
        ({"input_grid": math.nan}, "input_grid=nan in"),
        ({"train_second_layer": 1}, "train_second_layer=1 in"),
    ],
)
def test_a_setting_out_of_range_is_refused_and_named(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        TwoLayerKAN(**settings)  # type: ignore[arg-type]


def test_input_dim_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="input_dim=0"):
        TwoLayerKAN().layout(0)
    with pytest.raises(ValueError, match="input_dim=0"):
        TwoLayerKAN().initialize(0, np.random.default_rng(0))


def test_hydra_builds_the_model_and_it_survives_a_pickle() -> None:
    model = instantiate({"_target_": "dpfed_kan.kan.TwoLayerKAN", "hidden_width": 4})
    assert model == TwoLayerKAN(hidden_width=4)
    assert pickle.loads(pickle.dumps(model)) == model
    assert hash(model) == hash(TwoLayerKAN(hidden_width=4))
    assert isinstance(model.initialize(2, np.random.default_rng(0)), KANParams)
