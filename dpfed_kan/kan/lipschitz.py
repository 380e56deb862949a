"""How long one record's gradient can be, layer by layer, without clipping; [KAN-GD] 2601.22409."""

from __future__ import annotations

import math
from typing import Literal

import torch

from dpfed_kan._validate import check_choice, check_positive
from dpfed_kan.kan.shape import TwoLayerKAN


def gradient_bounds(
    model: TwoLayerKAN,
    *,
    second_layer_norm: float,
    radius: float,
    form: Literal["paper", "tight"] = "tight",
) -> tuple[float, float]:
    """Return L_1 and L_2 with ‖∂ℓ/∂W‖ ≤ L_1 and ‖∂ℓ/∂c‖ ≤ L_2 while ‖c − c_0‖ ≤ R_2.

    paper: L_1 = m^{-1/2} B'_σ B_b B'_b p (‖c_0‖ + R_2) and L_2 = √p B_b, from bounds of single
    basis functions. tight: B-splines are non-negative and sum to 1, so ‖b(x)‖ ≤ 1 and p leaves
    both: L_1 = m^{-1/2} B'_σ max_h ‖b'(h)‖ (‖c_0‖ + R_2), L_2 = 1. On an interval b'(h) is a convex
    combination of its Bernstein coefficients: the longest of them bounds it.

    The loss is logistic, |ℓ'| ≤ 1. Divide by n for the mean's sensitivity Δ_j under zero-out, and
    by n/2 under replace-one.

    Args:
        model: One output, logistic loss.
        second_layer_norm: ‖c_0‖, of the public start.
        radius: R_2, the ball of the second layer; 0 if it is frozen.
        form: paper | tight.

    Raises:
        ValueError: For another loss.
    """
    check_choice("form", form, ("paper", "tight"))
    if model.loss != "logistic":
        raise ValueError(f"expected loss=logistic, whose slope is at most 1, got {model.loss}")
    if radius != 0:
        check_positive("radius", radius)
    basis = model.hidden_basis
    degree = basis.spline_degree
    binomials = [float(math.comb(degree - 1, k)) for k in range(degree)]
    slopes = basis.derivative_tables / torch.tensor(binomials, dtype=torch.float64)[:, None, None]
    second_layer_norm = float(second_layer_norm)
    steepest = 1.0 if model.activation == "tanh" else 0.25
    reach: float = steepest * (second_layer_norm + radius) / math.sqrt(model.hidden_width)
    if form == "paper":
        size = model.num_basis
        return reach * float(slopes.abs().max()) * size, math.sqrt(size)
    return reach * float(slopes.square().sum(-1).max().sqrt()), 1.0
