"""The two-layer Kolmogorov-Arnold network of [KAN-SGD], arXiv 2605.12648, for two classes.

f(x) = m^{-1/2} Σ_j Σ_k c_jk b_k(h_j), h_j = σ(u_j), u_j = d^{-1/2} Σ_i Σ_q w_ijq b_q(x_i).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from dpfed_kan._validate import check_choice, check_count, check_positive
from dpfed_kan.kan.basis import BSplineBasis
from dpfed_kan.kan.splines import unit_splines

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Layout = tuple[tuple[str, tuple[int, ...]], ...]

_ROWS_AT_ONCE = 1024


@dataclass(frozen=True, kw_only=True, eq=False)
class KANParams:
    """The parameters of a network as flat vectors, laid out as `TwoLayerKAN.layout` says.

    Args:
        trainable: Shape (D,), float64: W row by row, then c row by row if it is trained.
        frozen: Shape (m·p,), float64: c row by row, or empty if c is trained.
    """

    trainable: Vector
    frozen: Vector


@dataclass(frozen=True, kw_only=True)
class TwoLayerKAN:
    """The public shape of the network; it holds no parameters.

    Args:
        hidden_width: m, at least 1.
        num_basis: p, the B-splines per edge, greater than `spline_degree`.
        spline_degree: At least 1.
        activation: σ; the second layer's grid is its range, [-1, 1] or [0, 1].
        train_second_layer: Whether c is trained ([KAN-GD]) or drawn once and kept ([KAN-SGD]).
        input_grid: Public half-width g of the first layer's grid [-g, g]; inputs outside are
            moved to its end. The papers' is 1; None stands for 1/sqrt(input_dim), which features
            scaled by their public ranges fill, and is made a number by `for_inputs`.

    Raises:
        ValueError: If a setting is out of range.

    Example:
        >>> model = TwoLayerKAN(hidden_width=4)
        >>> model.layout(3), model.num_params(3)
        ((('first_layer', (4, 18)),), 72)
    """

    hidden_width: int = 8
    num_basis: int = 6
    spline_degree: int = 3
    activation: Literal["tanh", "sigmoid"] = "tanh"
    train_second_layer: bool = False
    input_grid: float | None = 1.0

    def __post_init__(self) -> None:
        check_count("hidden_width", self.hidden_width)
        check_choice("activation", self.activation, ("tanh", "sigmoid"))
        if self.input_grid is not None:
            check_positive("input_grid", self.input_grid)
        if not isinstance(self.train_second_layer, bool):
            raise ValueError(
                f"expected train_second_layer={self.train_second_layer!r} in {{true, false}}"
            )
        _ = self.hidden_basis  # refuses a bad num_basis or spline_degree now, not at first use

    def for_inputs(self, input_dim: int) -> TwoLayerKAN:
        """Return the model with its first grid fixed: g = 1/sqrt(d) if it was None."""
        check_count("input_dim", input_dim)
        return self if self.input_grid is not None else replace(self, input_grid=input_dim**-0.5)

    @cached_property
    def input_basis(self) -> BSplineBasis:
        """The first layer's basis, on [-input_grid, input_grid]."""
        if self.input_grid is None:
            raise ValueError("input_grid is not fixed yet; use model.for_inputs(input_dim)")
        return BSplineBasis(
            num_basis=self.num_basis,
            spline_degree=self.spline_degree,
            low=-self.input_grid,
            high=self.input_grid,
        )

    @cached_property
    def hidden_basis(self) -> BSplineBasis:
        """The second layer's basis, on the closed range of the activation."""
        return BSplineBasis(
            num_basis=self.num_basis,
            spline_degree=self.spline_degree,
            low=-1.0 if self.activation == "tanh" else 0.0,
            high=1.0,
        )

    def layout(self, input_dim: int) -> Layout:
        """Return the name and shape of each trainable parameter, in the order of the vector."""
        check_count("input_dim", input_dim)
        first = ("first_layer", (self.hidden_width, input_dim * self.num_basis))
        second = ("second_layer", (self.hidden_width, self.num_basis))
        return (first, second) if self.train_second_layer else (first,)

    def num_params(self, input_dim: int) -> int:
        """Return D, the number of trainable parameters."""
        return sum(math.prod(shape) for _, shape in self.layout(input_dim))

    def initialize(self, input_dim: int, rng: np.random.Generator) -> KANParams:
        """Draw W ~ N(0, I) and then c ~ N(0, I), in this order whether or not c is trained."""
        check_count("input_dim", input_dim)
        num_second = self.hidden_width * self.num_basis
        first = rng.standard_normal(input_dim * num_second)
        second = rng.standard_normal(num_second)
        if self.train_second_layer:
            return KANParams(trainable=np.concatenate([first, second]), frozen=np.empty(0))
        return KANParams(trainable=first, frozen=second)


def split_params(
    model: TwoLayerKAN, trainable: Vector, frozen: Vector, input_dim: int
) -> tuple[Tensor, Tensor]:
    """View the flat vectors as W, shape (m, d·p), and c, shape (m, p), without a copy.

    Raises:
        ValueError: If a vector has another length or dtype than the model's layout.
    """
    num_second = model.hidden_width * model.num_basis
    num_frozen = 0 if model.train_second_layer else num_second
    _check_vector("trainable parameters", trainable, model.num_params(input_dim))
    _check_vector("frozen parameters", frozen, num_frozen)
    num_first = input_dim * num_second
    second = trainable[num_first:] if model.train_second_layer else frozen
    return (
        as_tensor(trainable[:num_first]).reshape(model.hidden_width, -1),
        as_tensor(second).reshape(model.hidden_width, -1),
    )


def expand_inputs(model: TwoLayerKAN, features: Tensor) -> Tensor:
    """Return φ(x) of shape (n, d·p) for features of shape (n, d): φ[i·p+q] = b_q(x_i)."""
    return model.input_basis.values(features).flatten(1)


def hidden_units(model: TwoLayerKAN, first_layer: Tensor, phi: Tensor) -> Tensor:
    """Return h = σ(φ Wᵀ / √d), shape (n, m)."""
    u = (phi @ first_layer.T).mul_((phi.shape[1] / model.num_basis) ** -0.5)
    return u.tanh_() if model.activation == "tanh" else u.sigmoid_()


def activation_slope(model: TwoLayerKAN, h: Tensor) -> Tensor:
    """Return σ'(u) as a function of h = σ(u)."""
    return 1.0 - h * h if model.activation == "tanh" else h * (1.0 - h)


def decision_function(
    model: TwoLayerKAN, trainable: Vector, frozen: Vector, features: Matrix
) -> Vector:
    """Evaluate f(x); its sign is the predicted class and sigmoid(f) the probability of +1.

    Args:
        model: The shape of the network.
        trainable: Shape (D,), float64.
        frozen: Shape (m·p,), float64, or empty if c is trained.
        features: Shape (n, d); cast to float64, not checked for finiteness: NaN gives NaN.

    Returns:
        Shape (n,), float64.

    Raises:
        ValueError: If a shape or dtype does not fit the model.
    """
    if features.ndim != 2 or features.dtype.kind not in "fiu":
        raise ValueError(
            f"expected numeric features of shape (n, d), got {features.ndim} axes of dtype "
            f"{features.dtype}"
        )
    first_layer, second_layer = split_params(model, trainable, frozen, features.shape[1])
    splines = unit_splines(model.hidden_basis, second_layer)
    scores = np.empty(len(features))
    for start in range(0, len(features), _ROWS_AT_ONCE):
        rows = features[start : start + _ROWS_AT_ONCE].astype(np.float64, copy=False)
        h = hidden_units(model, first_layer, expand_inputs(model, as_tensor(rows)))
        total = splines.evaluate(h)[0].sum(1)
        scores[start : start + _ROWS_AT_ONCE] = total.numpy() / math.sqrt(model.hidden_width)
    return scores


def as_tensor(array: NDArray[np.float64] | NDArray[np.intp]) -> Tensor:
    """View an array as a tensor without a copy; a read-only one too, so never write to it."""
    return from_dlpack(np.ascontiguousarray(array))


def _check_vector(name: str, vector: Vector, size: int) -> None:
    if vector.dtype != np.float64 or vector.shape != (size,):
        raise ValueError(
            f"expected {name} of shape ({size},) and dtype float64, got {vector.shape} and "
            f"{vector.dtype}; cast and lay them out once, as TwoLayerKAN.layout says"
        )
