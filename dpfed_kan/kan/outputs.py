"""From hidden units to outputs and back: f_o = m^{-1/2} Σ_jk c_ojk b_k(h_j), and its slope in h."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from dpfed_kan.kan.shape import TwoLayerKAN
from dpfed_kan.kan.splines import UnitSplines

Pullback = Callable[[Tensor], Tensor]


def outputs_of_one(model: TwoLayerKAN, splines: UnitSplines, h: Tensor) -> tuple[Tensor, Pullback]:
    """Return f(x), shape (n, 1), and the pullback of its slope to h, by one spline per unit."""
    values, slopes = splines.evaluate(h)
    root = math.sqrt(model.hidden_width)

    def pullback(residual: Tensor) -> Tensor:
        return slopes.mul(residual)

    return values.sum(1).div_(root)[:, None], pullback


def outputs_of_many(model: TwoLayerKAN, second_layer: Tensor, h: Tensor) -> tuple[Tensor, Pullback]:
    """Return f(x), shape (n, O), and the pullback Σ_o r_o Σ_k c_ojk b'_k(h_j), by dense bases.

    The basis of h serves all outputs: O of them cost two small matrix products more.

    Args:
        model: With O outputs.
        second_layer: c, shape (O, m·p).
        h: Shape (n, m).
    """
    basis = model.hidden_basis.values(h).flatten(1)
    outputs = (basis @ second_layer.T).div_(math.sqrt(model.hidden_width))

    def pullback(residual: Tensor) -> Tensor:
        weights = (residual @ second_layer).reshape(len(h), model.hidden_width, -1)
        return weights.mul_(model.hidden_basis.derivatives(h)).sum(-1)

    return outputs, pullback
