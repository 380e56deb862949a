"""The variance behind an adaptive clip and the scale it gives; [MacAdam] arXiv 2606.05435."""

from __future__ import annotations

import math

import numpy as np

from dpfed_kan._validate import check_number, check_positive
from dpfed_kan.privacy.clipping import Vector
from dpfed_kan.privacy.transform import SCALE_FLOOR

_LEAST_VARIANCE = 1e-20  # b ≥ √h1 · √D^{1/2} stays above the floor, also after AdaClip's EMA


def paper_bias(beta: float, num_steps: int) -> float:
    """Return κ_t = 2(β − β^t)/(1+β), as printed: an approximation, see `exact_bias`."""
    return 2.0 * (beta - beta**num_steps) / (1.0 + beta)


def exact_bias(beta: float, num_steps: int) -> float:
    """Return κ*_t = E[s_t] / Var for independent g̃ of one mean and variance Var.

    s_t = (1−β) Σ_{k≤t} β^{t−k} (g̃_k − m̂_k)², m̂_k = Σ_j c-weighted mean of g̃_1..g̃_k, hence
    κ*_t = (1−β) Σ_{k≤t} β^{t−k} [1 − 2c_k + (1−β)(1+β^k)/((1+β)(1−β^k))], c_k = (1−β)/(1−β^k).
    Its limit is 2β²/(1+β), not the printed 2β/(1+β); at t = 2 they differ by a factor 2.1.
    Checked by Monte Carlo.
    """
    if beta == 0.0:
        return 0.0
    k = np.arange(1, num_steps + 1)
    rest = -np.expm1(k * math.log(beta))  # 1 − β^k
    weight = (1.0 - beta) / rest
    inner = 1.0 - 2.0 * weight + (1.0 - beta) * (2.0 - rest) / ((1.0 + beta) * rest)
    inner[0] = 0.0  # g̃_1 = m̂_1 exactly
    return float((1.0 - beta) * (beta ** (num_steps - k) * inner).sum())


def optimal_scale(variance: Vector) -> Vector:
    """Return b = ŝ^{1/4} (Σ_j ŝ_j^{1/2})^{1/2}: least noise under E‖w‖² = 1; at least √ŝ."""
    deviation = np.sqrt(variance)
    return np.asarray(np.maximum(np.sqrt(deviation * deviation.sum()), SCALE_FLOOR))


def starting_scale(dimension: int) -> Vector:
    """Return b_0 = 1/D in every coordinate, or the public floor where that is larger."""
    return np.full(dimension, max(1.0 / dimension, SCALE_FLOOR))


def shares_at_ends(num_low: int, num_high: int, dimension: int) -> dict[str, float]:
    """Return the shares of coordinates whose variance was clamped: made of releases, public."""
    return {
        "share_at_min_variance": num_low / dimension,
        "share_at_max_variance": num_high / dimension,
    }


def check_variance_range(low: float, high: float) -> None:
    """Refuse clamps that leave the scale without a floor.

    Raises:
        ValueError: If h1 < 1e-20 or h2 < h1.
    """
    check_number("min_variance", low, low=_LEAST_VARIANCE, high_open=True)
    check_positive("max_variance", high)
    if high < low:
        raise ValueError(f"expected max_variance={high:g} >= min_variance={low:g}")
