"""Sensitivities of the strategy matrix C: how far one record moves the encoded run.

C is the inverse of the noising matrix: C_{ij} = λ^{i−j} / d_j for i ≥ j (MATH.md section 2). A
record that takes part in the rounds y ∈ {0,1}^t moves the encoded sums by ‖C y‖ clip norms.
All functions take `num_rounds`, the rounds that happened, and `horizon`, the rounds planned,
on which d_t depends; C is lower triangular, so fewer rounds mean its leading block.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.linalg import eigvalsh_tridiagonal
from scipy.signal import lfilter

from dpfed_kan.privacy.clipping import Matrix, Vector
from dpfed_kan.privacy.noising import Noise


def noising_matrix(noise: Noise, *, num_rounds: int, horizon: int) -> Matrix:
    """Return C⁻¹, shape (num_rounds, num_rounds): for tests and small runs."""
    rows = np.eye(num_rounds) - noise.correlation * np.eye(num_rounds, k=-1)
    return np.asarray(noise.row_scales(horizon)[:num_rounds, None] * rows)


def strategy_matrix(noise: Noise, *, num_rounds: int, horizon: int) -> Matrix:
    """Return C, shape (num_rounds, num_rounds): for tests and small runs."""
    lag = np.subtract.outer(np.arange(num_rounds), np.arange(num_rounds))
    powers = np.where(lag >= 0, noise.correlation ** np.maximum(lag, 0).astype(float), 0.0)
    return np.asarray(powers / noise.row_scales(horizon)[:num_rounds])


def encoded_norm(noise: Noise, participations: Vector, *, horizon: int) -> float:
    """Return ‖C y‖ for one participation pattern y, in time O(rounds).

    Args:
        noise: Gives λ and the row scales.
        participations: y, shape (num_rounds,).
        horizon: Rounds planned.
    """
    scaled = participations / noise.row_scales(horizon)[: len(participations)]
    encoded = lfilter([1.0], [1.0, -noise.correlation], scaled)
    return math.sqrt(float(np.square(encoded).sum()))


def full_batch_sensitivity(noise: Noise, *, num_rounds: int, horizon: int) -> float:
    """Return ‖C 1‖, every record in every round: sqrt(Σ_t ((1−λ^t)/(1−λ))²) if not normalised."""
    return encoded_norm(noise, np.ones(num_rounds), horizon=horizon)


def cyclic_sensitivity(noise: Noise, *, num_batches: int, num_rounds: int, horizon: int) -> float:
    """Return max over slots j of ‖Σ_e C[:, j + e b]‖, a record once every b rounds.

    Without normalisation the first slot is the maximum (Toeplitz with non-negative,
    non-increasing coefficients); otherwise all slots are tried.
    """
    slots = min(num_batches, num_rounds) if noise.column_normalized else 1
    return max(
        encoded_norm(noise, _every(num_batches, slot, num_rounds), horizon=horizon)
        for slot in range(slots)
    )


def spectral_norm(noise: Noise, *, num_rounds: int, horizon: int) -> float:
    """Return an upper bound on ‖C‖₂, tight to about 1e-12.

    ‖C‖₂⁻² is the least eigenvalue of M = C⁻¹C⁻ᵀ, which is tridiagonal: d_t²(1+λ²) on the
    diagonal (first entry d_0²) and −λ d_t d_{t+1} beside it. The eigenvalue is lowered by the
    solver's error bound, so the norm is never understated.
    """
    correlation = noise.correlation
    if correlation == 0:
        return 1.0
    scales = noise.row_scales(horizon)[:num_rounds]
    diagonal = (1 + correlation**2) * scales**2
    diagonal[0] = scales[0] ** 2
    if num_rounds == 1:
        return float(1 / scales[0])
    beside = -correlation * scales[1:] * scales[:-1]
    least = float(eigvalsh_tridiagonal(diagonal, beside, select="i", select_range=(0, 0))[0])
    slack = 32 * np.finfo(float).eps * float(np.abs(diagonal).max())
    floor = float(scales.min()) ** 2 * (1 - correlation) ** 2
    return 1 / math.sqrt(max(least - slack, floor))


def _every(step: int, start: int, num_rounds: int) -> Vector:
    pattern: Vector = np.zeros(num_rounds)
    pattern[start::step] = 1.0
    return pattern
