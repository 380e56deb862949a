"""The two-layer Kolmogorov-Arnold network of [KAN-SGD], arXiv 2605.12648.

f_o(x) = m^{-1/2} Σ_j Σ_k c_ojk b_k(h_j), h_j = σ(u_j), u_j = d^{-1/2} Σ_i Σ_q w_ijq b_q(x_i).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from dpfed_kan.kan.shape import TwoLayerKAN
from dpfed_kan.kan.splines import unit_splines

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

_ROWS_AT_ONCE = 1024


def split_params(
    model: TwoLayerKAN, trainable: Vector, frozen: Vector, input_dim: int
) -> tuple[Tensor, Tensor]:
    """View the flat vectors as W and c without a copy.

    Returns:
        W, shape (m, d·p), and c, shape (m, p), or (O, m·p) if there is more than one output.

    Raises:
        ValueError: If a vector has another length or dtype than the model's layout.
    """
    num_frozen = 0 if model.train_second_layer else model.num_second
    _check_vector("trainable parameters", trainable, model.num_params(input_dim))
    _check_vector("frozen parameters", frozen, num_frozen)
    num_first = input_dim * model.hidden_width * model.num_basis
    rows = model.hidden_width if model.num_outputs == 1 else model.num_outputs
    second = trainable[num_first:] if model.train_second_layer else frozen
    return (
        as_tensor(trainable[:num_first]).reshape(model.hidden_width, -1),
        as_tensor(second).reshape(rows, -1),
    )


def expand_inputs(model: TwoLayerKAN, features: Tensor) -> Tensor:
    """Return φ(x) of shape (n, d·p) for features of shape (n, d): φ[i·p+q] = b_q(x_i)."""
    return model.input_basis.values(features).flatten(1)


def hidden_units(model: TwoLayerKAN, first_layer: Tensor, phi: Tensor) -> Tensor:
    """Return h = σ(φ Wᵀ / √d), shape (n, m), float64; of a float32 φ the product is float32."""
    u = _product(phi, first_layer.to(phi.dtype)).to(torch.float64)
    u.mul_((phi.shape[1] / model.num_basis) ** -0.5)
    return u.tanh_() if model.activation == "tanh" else u.sigmoid_()


def activation_slope(model: TwoLayerKAN, h: Tensor) -> Tensor:
    """Return σ'(u) as a function of h = σ(u)."""
    return 1.0 - h * h if model.activation == "tanh" else h * (1.0 - h)


def decision_function(
    model: TwoLayerKAN, trainable: Vector, frozen: Vector, features: Matrix
) -> Vector:
    """Evaluate f(x); with one output its sign is the class, sigmoid(f) the probability of +1.

    Args:
        model: The shape of the network.
        trainable: Shape (D,), float64.
        frozen: Shape (O·m·p,), float64, or empty if c is trained.
        features: Shape (n, d); cast to float64, not checked for finiteness: NaN gives NaN.

    Returns:
        Shape (n,), or (n, O) with more than one output, float64.

    Raises:
        ValueError: If a shape or dtype does not fit the model.
    """
    if features.ndim != 2 or features.dtype.kind not in "fiu":
        raise ValueError(
            f"expected numeric features of shape (n, d), got {features.ndim} axes of dtype "
            f"{features.dtype}"
        )
    first_layer, second_layer = split_params(model, trainable, frozen, features.shape[1])
    one = model.num_outputs == 1
    splines = unit_splines(model.hidden_basis, second_layer) if one else None
    scores = np.empty(len(features) if one else (len(features), model.num_outputs))
    for start in range(0, len(features), _ROWS_AT_ONCE):
        rows = features[start : start + _ROWS_AT_ONCE].astype(np.float64, copy=False)
        h = hidden_units(model, first_layer, expand_inputs(model, as_tensor(rows)))
        if splines is not None:
            total = splines.evaluate(h)[0].sum(1)
        else:
            total = model.hidden_basis.values(h).flatten(1) @ second_layer.T
        scores[start : start + _ROWS_AT_ONCE] = total.numpy() / math.sqrt(model.hidden_width)
    return scores


def as_tensor(array: NDArray[np.float64] | NDArray[np.intp]) -> Tensor:
    """View an array as a tensor without a copy; a read-only one too, so never write to it."""
    return from_dlpack(np.ascontiguousarray(array))


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Return left rightᵀ; on the CPU by numpy, which takes a fifth less time than torch."""
    if left.is_cuda:
        return left @ right.T
    return torch.from_numpy(left.numpy() @ right.numpy().T)


def _check_vector(name: str, vector: Vector, size: int) -> None:
    if vector.dtype != np.float64 or vector.shape != (size,):
        raise ValueError(
            f"expected {name} of shape ({size},) and dtype float64, got {vector.shape} and "
            f"{vector.dtype}; cast and lay them out once, as TwoLayerKAN.layout says"
        )
