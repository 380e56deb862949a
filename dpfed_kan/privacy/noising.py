"""Gaussian noise, independent or correlated over rounds: ξ_t = κ·C·d_t (Z_t − λ Z_{t−1}).

[KAN-SGD] arXiv 2605.12648, Algorithm 1 (d_t = 1), and [λCGD] arXiv 2601.22334 (column-normalised
d_t). The noising matrix C⁻¹ is 1 on the diagonal and −λ below, its rows scaled by d_t.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dpfed_kan._validate import check_number
from dpfed_kan.privacy.clipping import Vector
from dpfed_kan.streams import Streams


@dataclass(frozen=True, kw_only=True)
class GaussianNoise:
    """Noise of std κ per unit of sensitivity, subtracting λ times the previous round's draw.

    Args:
        noise_multiplier: κ ≥ 0; None until it has been calibrated to a target (ε, δ).
        correlation: λ in [0, 1); 0 is independent noise, DP-SGD.
        column_normalized: Scale row t by d_t so that every column of the strategy matrix has
            norm 1; needs the number of rounds in advance.
    """

    noise_multiplier: float | None = None
    correlation: float = 0.0
    column_normalized: bool = False

    def __post_init__(self) -> None:
        check_number("correlation", self.correlation, low=0.0, high=1.0, high_open=True)
        if self.noise_multiplier is not None:
            check_number("noise_multiplier", self.noise_multiplier, low=0.0, high_open=True)

    def row_scales(self, num_rounds: int) -> Vector:
        """Return d_t for t = 0..T−1: sqrt((1−λ^{2(T−t)})/(1−λ²)), or ones if not normalised."""
        if not self.column_normalized or self.correlation == 0:
            return np.ones(num_rounds)
        log_square = 2.0 * math.log(self.correlation)
        left = np.arange(num_rounds, 0, -1)
        scales: Vector = np.sqrt(np.expm1(log_square * left) / math.expm1(log_square))
        return scales

    def describe(self) -> str:
        """Name the noise for a guarantee."""
        if self.correlation == 0:
            return "independent Gaussian noise"
        normalized = ", column-normalised" if self.column_normalized else ""
        return f"λ-correlated Gaussian noise, λ={self.correlation:g}{normalized}"


@dataclass(frozen=True, kw_only=True)
class NoNoise:
    """No noise and no privacy: ε = ∞. The run is otherwise the same, clipping included."""

    noise_multiplier: float = 0.0
    correlation: float = 0.0
    column_normalized: bool = False

    def __post_init__(self) -> None:
        if (self.noise_multiplier, self.correlation, self.column_normalized) != (0, 0, False):
            raise ValueError("noise=none takes no settings; choose noise=gaussian to add noise")

    def row_scales(self, num_rounds: int) -> Vector:
        """Return ones."""
        return np.ones(num_rounds)

    def describe(self) -> str:
        """Name the noise for a guarantee."""
        return "no noise"


Noise = GaussianNoise | NoNoise


def correlate(current: Vector, previous: Vector | None, *, correlation: float) -> Vector:
    """Return Z_t − λ Z_{t−1}, with Z_{-1} = 0 given as None."""
    return current if previous is None else current - correlation * previous


@lru_cache(maxsize=3)
def standard_normals(streams: Streams, *, round_index: int, dimension: int) -> Vector:
    """Return Z_t, shape (dimension,), read-only: the same numbers whenever it is asked for.

    The last ones are remembered, since round t asks for Z_{t−1} again and Z_t may have been
    drawn while the sites were at work; this saves time and changes nothing.
    """
    rng = streams.generator("noise", round_index=round_index)
    normals: Vector = rng.standard_normal(dimension)
    normals.flags.writeable = False
    return normals


def noise_std(noise: Noise, *, round_index: int, num_rounds: int) -> float:
    """Return the std of `draw_noise` in one coordinate: κ d_t, times √(1+λ²) from t = 1 on.

    Args:
        noise: With its multiplier set.
        round_index: t, from 0.
        num_rounds: The horizon T.
    """
    first = round_index == 0
    spread = 1.0 if first else math.sqrt(1.0 + noise.correlation**2)
    row = float(noise.row_scales(num_rounds)[round_index])
    return (noise.noise_multiplier or 0.0) * row * spread


def draw_noise(
    noise: Noise, *, streams: Streams, round_index: int, num_rounds: int, dimension: int
) -> Vector:
    """Return κ d_t (Z_t − λ Z_{t−1}), the noise of one round per unit of sensitivity.

    Z_{t−1} is regenerated from its stream; nothing but the key is kept between rounds.

    Args:
        noise: With its multiplier set.
        streams: The server's secret streams.
        round_index: t, from 0.
        num_rounds: The horizon T.
        dimension: D.

    Raises:
        ValueError: If the multiplier has not been calibrated.
    """
    if noise.noise_multiplier is None:
        raise ValueError("noise_multiplier is not set; calibrate it to a target first")
    if noise.noise_multiplier == 0:
        return np.zeros(dimension)
    current = standard_normals(streams, round_index=round_index, dimension=dimension)
    previous = None
    if round_index > 0 and noise.correlation > 0:
        previous = standard_normals(streams, round_index=round_index - 1, dimension=dimension)
    scale = noise.noise_multiplier * float(noise.row_scales(num_rounds)[round_index])
    drawn = correlate(current, previous, correlation=noise.correlation)
    return np.multiply(drawn, scale, out=None if drawn is current else drawn)
