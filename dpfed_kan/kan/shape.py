"""The public shape of the network: what a configuration builds, without loading torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
from numpy.typing import NDArray

from dpfed_kan._validate import check_choice, check_count, check_number, check_positive

if TYPE_CHECKING:
    from dpfed_kan.kan.basis import BSplineBasis

Vector = NDArray[np.float64]
Layout = tuple[tuple[str, tuple[int, ...]], ...]
LossName = Literal["logistic", "softmax", "squared", "huber"]
LOSSES: tuple[LossName, ...] = ("logistic", "softmax", "squared", "huber")
MAX_SPLINE_DEGREE: Final = 20
MAX_NUM_BASIS: Final = 256


def check_basis(*, num_basis: int, spline_degree: int) -> None:
    """Refuse a number of B-splines or a degree that no basis has.

    Raises:
        ValueError: If one is out of range, or p is not greater than the degree.
    """
    check_count("spline_degree", spline_degree, advice="degree 0 has no derivative")
    check_number("spline_degree", spline_degree, low=1, high=MAX_SPLINE_DEGREE)
    check_count("num_basis", num_basis)
    check_number("num_basis", num_basis, low=1, high=MAX_NUM_BASIS)
    if num_basis <= spline_degree:
        raise ValueError(
            f"expected num_basis={num_basis} to be > spline_degree={spline_degree}; "
            f"raise num_basis to {spline_degree + 1} or more, or lower spline_degree"
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class KANParams:
    """The parameters of a network as flat vectors, laid out as `TwoLayerKAN.layout` says.

    Args:
        trainable: Shape (D,), float64: W row by row, then c row by row if it is trained.
        frozen: Shape (O·m·p,), float64: c row by row, or empty if c is trained.
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
        num_outputs: O: 1, or the number of classes with softmax.
        loss: logistic (labels ±1), softmax (labels 0..O-1), squared or huber (numbers).
        huber_delta: Where Huber's loss turns linear.

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
    num_outputs: int = 1
    loss: LossName = "logistic"
    huber_delta: float = 1.0

    def __post_init__(self) -> None:
        check_count("hidden_width", self.hidden_width)
        check_choice("activation", self.activation, ("tanh", "sigmoid"))
        if self.input_grid is not None:
            check_positive("input_grid", self.input_grid)
        if not isinstance(self.train_second_layer, bool):
            raise ValueError(
                f"expected train_second_layer={self.train_second_layer!r} in {{true, false}}"
            )
        check_count("num_outputs", self.num_outputs)
        check_choice("loss", self.loss, LOSSES)
        check_positive("huber_delta", self.huber_delta)
        if self.loss == "logistic" and self.num_outputs != 1:
            raise ValueError(
                f"expected num_outputs={self.num_outputs} to be 1 with loss=logistic; use "
                "loss=softmax for more classes"
            )
        if self.loss == "softmax" and self.num_outputs < 2:
            raise ValueError("expected num_outputs >= 2 with loss=softmax, one for each class")
        check_basis(num_basis=self.num_basis, spline_degree=self.spline_degree)

    def for_inputs(self, input_dim: int) -> TwoLayerKAN:
        """Return the model with its first grid fixed: g = 1/sqrt(d) if it was None."""
        check_count("input_dim", input_dim)
        return self if self.input_grid is not None else replace(self, input_grid=input_dim**-0.5)

    @cached_property
    def input_basis(self) -> BSplineBasis:
        """The first layer's basis, on [-input_grid, input_grid]."""
        if self.input_grid is None:
            raise ValueError("input_grid is not fixed yet; use model.for_inputs(input_dim)")
        return _basis()(
            num_basis=self.num_basis,
            spline_degree=self.spline_degree,
            low=-self.input_grid,
            high=self.input_grid,
        )

    @cached_property
    def hidden_basis(self) -> BSplineBasis:
        """The second layer's basis, on the closed range of the activation."""
        return _basis()(
            num_basis=self.num_basis,
            spline_degree=self.spline_degree,
            low=-1.0 if self.activation == "tanh" else 0.0,
            high=1.0,
        )

    def layout(self, input_dim: int) -> Layout:
        """Return the name and shape of each trainable parameter, in the order of the vector."""
        check_count("input_dim", input_dim)
        first = ("first_layer", (self.hidden_width, input_dim * self.num_basis))
        per_output = (self.hidden_width, self.num_basis)
        outputs = () if self.num_outputs == 1 else (self.num_outputs,)
        second = ("second_layer", (*outputs, *per_output))
        return (first, second) if self.train_second_layer else (first,)

    @property
    def num_second(self) -> int:
        """The size of c, O·m·p."""
        return self.num_outputs * self.hidden_width * self.num_basis

    def num_params(self, input_dim: int) -> int:
        """Return D, the number of trainable parameters."""
        return sum(math.prod(shape) for _, shape in self.layout(input_dim))

    def initialize(self, input_dim: int, rng: np.random.Generator) -> KANParams:
        """Draw W ~ N(0, I) and then c ~ N(0, I), in this order whether or not c is trained."""
        check_count("input_dim", input_dim)
        first = rng.standard_normal(input_dim * self.hidden_width * self.num_basis)
        second = rng.standard_normal(self.num_second)
        if self.train_second_layer:
            return KANParams(trainable=np.concatenate([first, second]), frozen=np.empty(0))
        return KANParams(trainable=first, frozen=second)


def _basis() -> type[BSplineBasis]:
    from dpfed_kan.kan.basis import BSplineBasis  # loads torch: when used, not when configured

    return BSplineBasis
