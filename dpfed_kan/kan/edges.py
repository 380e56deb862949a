"""The functions on the first layer's edges: what a trained KAN can be read by."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dpfed_kan.kan.model import Matrix, Vector, as_tensor
from dpfed_kan.kan.shape import TwoLayerKAN


@dataclass(frozen=True, kw_only=True, eq=False)
class EdgeFunctions:
    """g_ji(x) = d^{-1/2} Σ_q w_jiq b_q(x), of every input i and hidden unit j.

    Args:
        x: Where they are evaluated, shape (P,), in the model's scale.
        values: Shape (m, d, P).
    """

    x: Vector = field(repr=False)
    values: NDArray[np.float64] = field(repr=False)

    @property
    def strengths(self) -> Matrix:
        """Root mean square of each edge about its own mean over x, shape (m, d)."""
        return np.asarray(self.values.std(axis=2))

    def strongest(self, most: int) -> list[tuple[int, int]]:
        """Return (unit, input) of the edges that vary most, the strongest first."""
        strengths = self.strengths
        order = np.argsort(-strengths, axis=None, kind="stable")[:most]
        units, inputs = np.unravel_index(order, strengths.shape)
        return [(int(j), int(i)) for j, i in zip(units, inputs, strict=True)]


def edge_functions(
    model: TwoLayerKAN, trainable: Vector, *, input_dim: int, half_width: float, num_points: int
) -> EdgeFunctions:
    """Evaluate every edge of the first layer on [-half_width, half_width].

    Args:
        model: With its grid fixed.
        trainable: Shape (D,), as `model.layout` says.
        input_dim: d.
        half_width: Of the range that inputs are declared to have, in the model's scale.
        num_points: P.

    Raises:
        ValueError: If the vector is not this model's.
    """
    shape = (model.hidden_width, input_dim, model.num_basis)
    if trainable.shape != (model.num_params(input_dim),):
        raise ValueError(
            f"expected {model.num_params(input_dim)} trainable parameters of a network with "
            f"{input_dim} inputs, got an array of shape {trainable.shape}"
        )
    x = np.linspace(-half_width, half_width, num_points)
    basis = model.input_basis.values(as_tensor(x)).numpy()
    first_layer = trainable[: shape[0] * shape[1] * shape[2]].reshape(shape)
    return EdgeFunctions(x=x, values=first_layer @ basis.T / np.sqrt(input_dim))
