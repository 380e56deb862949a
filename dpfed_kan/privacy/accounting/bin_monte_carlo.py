"""Balls in bins by Monte Carlo: importance sampling with weights that are bounded by proof.

The pair is the one of `bin_cells.py`: K = G in units of the noise variance, a ~ N(0, K) under Q,
L = log (1/b) Σ_k exp(a_k − K_kk/2), P = (1/b) Σ_i N(K_i, K). An estimator X ∈ [0, R] of mean δ(ε)
is as good as N/R plain draws to a Chernoff bound, so the range R is what the tilts are chosen by.

Remove: draw from P with every mean s times as long, s ≥ 1. With y_k = exp(a_k − K_kk/2) and
g = max K_kk, Σ exp(s a_k − s² K_kk/2) ≥ e^{−s(s−1)g/2} Σ y_k^s and the power mean inequality give
    weight ≤ exp(s(s−1)g/2 − (s−1) L).
Add: draw from Q shifted by −θ times the mean of the m_i. L ≥ mean(a) − mean(K_kk)/2 (Jensen) gives
    weight ≤ exp(θ (L + mean(K_kk)/2) + θ² mean(K)/2).
Both decay in the loss ±L ≥ ε, and sup_y (1 − e^{−y}) e^{−τ y} = (1/(1+τ)) (τ/(1+τ))^τ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar

from dpfed_kan.privacy.clipping import Matrix, Vector

_CHUNK_ENTRIES, _PILOT_SHARE, _LARGEST_LOG = 2**17, 20, 700.0


@dataclass(frozen=True, kw_only=True)
class TiltedSample:
    """Weighted draws of a privacy loss, from which δ(ε) is estimated and bounded for every ε.

    Args:
        losses: The positive losses among the draws, in descending order.
        weights: Their likelihood ratios.
        num_samples: All draws, N.
        log_range: ε ↦ log R(ε), the proven bound on weight · (1 − e^{ε − loss})_+; decreasing.
    """

    losses: Vector
    weights: Vector
    num_samples: int
    log_range: Callable[[float], float]

    def mean(self, epsilon: float) -> float:
        """Return the mean of weight · (1 − e^{ε − loss})_+: an unbiased estimate of δ(ε)."""
        stop = len(self.losses) - np.searchsorted(self.losses[::-1], epsilon, side="right")
        parts = self.weights[:stop] * -np.expm1(epsilon - self.losses[:stop])
        return float(parts.sum()) / self.num_samples

    def shows(self, epsilon: float, *, delta: float, failure_probability: float) -> bool:
        """Return whether the draws show that the true δ(ε) is at most δ.

        Guarantees:
            If the true δ(ε) is above δ the answer is yes with at most the failure probability:
            P(mean ≤ x) ≤ exp(−N KL(x/R ‖ δ/R)) for independent draws in [0, R] (Chernoff,
            Hoeffding 1963, theorem 1). Mean and range fall with ε and KL(x/R ‖ δ/R) falls with
            R, so a yes at ε is a yes at every larger ε: the **least** ε with a yes is wrong only
            if the yes at the true one is, and needs no union over the ε tried.
        """
        log_range = self.log_range(epsilon)
        if log_range <= math.log(delta):
            return True
        if log_range > _LARGEST_LOG:
            return False
        scale = math.exp(log_range)
        x, p = self.mean(epsilon) / scale, delta / scale
        if x >= p:
            return False
        divergence = (x * math.log(x / p) if x > 0 else 0.0) + (1 - x) * (
            math.log1p(-x) - math.log1p(-p)
        )
        return self.num_samples * divergence >= -math.log(failure_probability)


def remove_sample(
    gram: Matrix, *, tilt: float, num_samples: int, rng: np.random.Generator
) -> TiltedSample:
    """Draw L under P with its means stretched by `tilt` = s ≥ 1, every bin equally often.

    Args:
        gram: K, shape (b, b), in units of the noise variance.
        tilt: s; 1 is plain sampling.
        num_samples: At least this many; rounded up to a multiple of b.
        rng: The only randomness.
    """
    num_bins, diagonal = len(gram), np.diagonal(gram)
    per_bin, root = -(-num_samples // num_bins), _root(gram)
    kept = []
    for shift in gram:
        for noise in _gaussians(root, per_bin, rng):
            positions = noise + tilt * shift
            total = _log_sum_exp(positions - diagonal / 2)
            positive = total > math.log(num_bins)
            stretched = tilt * positions[positive] - tilt**2 * diagonal / 2
            log_weights = total[positive] - _log_sum_exp(stretched)
            kept.append((total[positive] - math.log(num_bins), log_weights))
    greatest = float(diagonal.max())
    return _collected(
        kept, per_bin * num_bins, lambda epsilon: _remove_log_range(tilt, epsilon, greatest)
    )


def add_sample(
    gram: Matrix, *, tilt: float, num_samples: int, rng: np.random.Generator
) -> TiltedSample:
    """Draw −L under Q shifted by −`tilt` times the mean of the m_i.

    Args:
        gram: K, shape (b, b), in units of the noise variance.
        tilt: θ ≥ 0; 0 is plain sampling.
        num_samples: N.
        rng: The only randomness.
    """
    num_bins, diagonal = len(gram), np.diagonal(gram)
    squared_mean = float(gram.mean())
    kept = []
    for noise in _gaussians(_root(gram), num_samples, rng):
        positions = noise - tilt * gram.mean(axis=0)
        losses = math.log(num_bins) - _log_sum_exp(positions - diagonal / 2)
        positive = losses > 0
        log_weights = tilt * positions[positive].mean(axis=1) + tilt**2 * squared_mean / 2
        kept.append((losses[positive], log_weights))
    average = float(diagonal.mean())
    return _collected(
        kept, num_samples, lambda epsilon: _add_log_range(tilt, epsilon, average, squared_mean)
    )


def shown_epsilons(
    gram: Matrix,
    *,
    delta: float,
    failure_probability: float,
    num_samples: int,
    guess: float,
    rng: np.random.Generator,
) -> tuple[float, float]:
    """Return ε of the remove and of the add direction, each shown by its own draws.

    The tilts are chosen on pilot draws, which are then thrown away.

    Args:
        gram: K, shape (b, b), in units of the noise variance; not all zero.
        delta: The true δ(ε) to be shown.
        failure_probability: Of the two together.
        num_samples: N per direction.
        guess: An ε to choose the pilot's tilts at.
        rng: The only randomness.
    """
    diagonal = np.diagonal(gram)
    greatest, average, squared_mean = map(float, (diagonal.max(), diagonal.mean(), gram.mean()))
    settings = {"delta": delta, "failure_probability": failure_probability / 2, "guess": guess}
    remove = _shown_epsilon(
        lambda tilt, n: remove_sample(gram, tilt=1 + tilt, num_samples=n, rng=rng),
        lambda tilt, epsilon: _remove_log_range(1 + tilt, epsilon, greatest),
        num_samples=num_samples,
        **settings,
    )
    add = _shown_epsilon(
        lambda tilt, n: add_sample(gram, tilt=tilt, num_samples=n, rng=rng),
        lambda tilt, epsilon: _add_log_range(tilt, epsilon, average, squared_mean),
        num_samples=num_samples,
        **settings,
    )
    return remove, add


def least_epsilon(holds: Callable[[float], bool], *, highest: float = math.inf) -> float:
    """Return an ε ≥ 0 at which a statement holds, the least if it is monotone, rounded up.

    Args:
        holds: The statement about ε.
        highest: ∞ is returned if the statement does not hold up to here.
    """
    if holds(0.0):
        return 0.0
    low, high = 0.0, min(1.0, highest)
    while not holds(high):
        if high >= highest:
            return math.inf
        low, high = high, min(2 * high, highest)
    while high - low > 1e-7 * (1e-2 + high):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _shown_epsilon(
    draw: Callable[[float, int], TiltedSample],
    log_range: Callable[[float, float], float],
    *,
    delta: float,
    failure_probability: float,
    num_samples: int,
    guess: float,
) -> float:
    """Choose a tilt for `guess`, a better one on pilot draws, and judge fresh draws."""
    pilot = draw(_best_tilt(log_range, guess), -(-num_samples // _PILOT_SHARE))
    estimate = least_epsilon(lambda epsilon: pilot.mean(epsilon) <= delta)
    sample = draw(_best_tilt(log_range, estimate), num_samples)
    return least_epsilon(
        lambda epsilon: sample.shows(epsilon, delta=delta, failure_probability=failure_probability)
    )


def _remove_log_range(tilt: float, epsilon: float, greatest: float) -> float:
    decay = tilt - 1
    return tilt * decay * greatest / 2 - decay * epsilon + _log_peak(decay)


def _add_log_range(tilt: float, epsilon: float, average: float, squared_mean: float) -> float:
    return tilt * (average / 2 - epsilon) + tilt**2 * squared_mean / 2 + _log_peak(tilt)


def _log_peak(decay: float) -> float:
    """Return log sup_y (1 − e^{−y}) e^{−decay·y}."""
    return 0.0 if decay == 0 else decay * math.log(decay) - (1 + decay) * math.log1p(decay)


def _best_tilt(log_range: Callable[[float, float], float], epsilon: float) -> float:
    """Return the tilt of least range at ε: a matter of efficiency, every tilt is valid."""
    found = minimize_scalar(
        lambda log_tilt: log_range(math.exp(log_tilt), epsilon), bounds=(-3, 9), method="bounded"
    )
    return math.exp(float(found.x))


def _root(gram: Matrix) -> Matrix:
    """Return R of shape (rank, b) with RᵀR = K."""
    values, vectors = np.linalg.eigh(gram)
    kept = values > values[-1] * len(gram) * np.finfo(float).eps
    return np.ascontiguousarray((vectors[:, kept] * np.sqrt(values[kept])).T)


def _gaussians(root: Matrix, num_samples: int, rng: np.random.Generator) -> Iterator[Matrix]:
    """Yield N(0, RᵀR) in chunks of shape (rows, b), `num_samples` rows in all."""
    rows = max(1, _CHUNK_ENTRIES // root.shape[1])
    for start in range(0, num_samples, rows):
        yield rng.standard_normal((min(rows, num_samples - start), len(root))) @ root


def _log_sum_exp(values: Matrix) -> Vector:
    if values.size == 0:
        return np.zeros(len(values))
    top = values.max(axis=1)
    total: Vector = top + np.log(np.exp(values - top[:, None]).sum(axis=1))
    return total


def _collected(
    kept: list[tuple[Vector, Vector]], num_samples: int, log_range: Callable[[float], float]
) -> TiltedSample:
    losses = np.concatenate([part for part, _ in kept])
    with np.errstate(over="ignore"):  # an infinite weight shows nothing, so it is safe
        weights = np.exp(np.concatenate([part for _, part in kept]))
    order = np.argsort(-losses)
    return TiltedSample(
        losses=losses[order],
        weights=weights[order],
        num_samples=num_samples,
        log_range=log_range,
    )
