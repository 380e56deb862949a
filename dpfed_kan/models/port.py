"""One way to start, differentiate and evaluate a model, whether a KAN or a torch module."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch.func import functional_call

from dpfed_kan.kan import KANGradients, KANParams, TwoLayerKAN, decision_function
from dpfed_kan.kan.device import Device, Precision
from dpfed_kan.models.checking import check_module
from dpfed_kan.models.gradients import ModuleGradients
from dpfed_kan.models.parameters import (
    Layout,
    flatten,
    frozen_layout,
    load_frozen,
    trainable_layout,
    unflatten,
)
from dpfed_kan.models.spec import TorchModel, seeded_module

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Model = TwoLayerKAN | TorchModel
Gradients = KANGradients | ModuleGradients
_ROWS_AT_ONCE = 1024


def fixed(model: Model, input_dim: int) -> Model:
    """Return the model with everything fixed that depends on the number of features."""
    return model.for_inputs(input_dim) if isinstance(model, TwoLayerKAN) else model


def start(model: Model, input_dim: int, rng: np.random.Generator) -> KANParams:
    """Draw the starting parameters, all of them from `rng`.

    Raises:
        ValueError: If a torch module mixes examples.
    """
    if isinstance(model, TwoLayerKAN):
        return model.initialize(input_dim, rng)
    module = seeded_module(model, input_dim, int(rng.integers(2**62)))
    check_module(module, input_dim, model.num_outputs)
    return KANParams(
        trainable=flatten(module, trainable_layout(module)),
        frozen=flatten(module, frozen_layout(module)),
    )


def layout(model: Model, input_dim: int) -> Layout:
    """Return name and shape of each trainable parameter, in the order of the vector."""
    if isinstance(model, TwoLayerKAN):
        return model.layout(input_dim)
    return trainable_layout(seeded_module(model, input_dim, 0))


def gradients(
    model: Model,
    *,
    frozen: Vector,
    features: Matrix,
    labels: Vector,
    device: Device,
    precision: Precision = "float64",
) -> Gradients:
    """Return the port through which a site gets per-example gradients.

    Raises:
        ValueError: If a torch module is to be differentiated in float32.
    """
    if isinstance(model, TwoLayerKAN):
        return KANGradients(
            model=model,
            frozen=frozen,
            features=features,
            labels=labels,
            device=device,
            precision=precision,
        )
    if precision != "float64":
        raise ValueError("runtime.precision=float32 is for model=kan")
    return ModuleGradients(
        model=model, frozen=frozen, features=features, labels=labels, device=device
    )


def decisions(model: Model, trainable: Vector, frozen: Vector, features: Matrix) -> Vector:
    """Evaluate f(x), shape (n,), or (n, O) with more than one output."""
    if isinstance(model, TwoLayerKAN):
        return decision_function(model, trainable, frozen, features)
    module = seeded_module(model, features.shape[1], 0)
    load_frozen(module, unflatten(frozen, frozen_layout(module), device="cpu"))
    tensors = unflatten(trainable, trainable_layout(module), device="cpu")
    scores = np.empty((len(features), model.num_outputs))
    with torch.no_grad():
        for first in range(0, len(features), _ROWS_AT_ONCE):
            rows = slice(first, first + _ROWS_AT_ONCE)
            inputs = torch.tensor(features[rows], dtype=torch.float64)
            scores[rows] = functional_call(module, tensors, (inputs,)).numpy()
    return scores[:, 0] if model.num_outputs == 1 else scores
