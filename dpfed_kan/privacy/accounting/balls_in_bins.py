"""Balls in bins: deterministic bounds, and a sharper one that Monte Carlo shows.

The pair of distributions, its proof for adaptive gradients and the deterministic bounds are in
`bin_cells.py`; the draws and their Chernoff bound are in `bin_monte_carlo.py`.

Replace-one goes through the record zeroed out: P(D) ≤ e^ε Q + δ₀ and Q ≤ e^ε P(D') + δ₀ give
(2ε, (1 + e^ε) δ₀). With the bin revealed it is one Gaussian of twice the mean. The factor 2 in
front of the pair's own means would describe no run and is not used for the mixture.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.signal import lfilter

from dpfed_kan._validate import check_count, check_number
from dpfed_kan.privacy.accounting.bin_cells import (
    LognormalAverage,
    cell_structure,
    lognormal_average,
)
from dpfed_kan.privacy.accounting.bin_monte_carlo import least_epsilon, shown_epsilons
from dpfed_kan.privacy.accounting.gaussian import gaussian_delta, gaussian_epsilon
from dpfed_kan.privacy.clipping import Matrix, Vector
from dpfed_kan.privacy.noising import GaussianNoise
from dpfed_kan.privacy.sensitivity import spectral_norm

_TOO_LARGE = 60.0  # of ‖m‖²/κ², where lognormals leave float64 and nothing is amplified anyway


@dataclass(frozen=True, kw_only=True)
class BinsEpsilon:
    """An upper bound on ε of a balls-in-bins run, with how sure it is.

    Args:
        epsilon: ε.
        delta: δ.
        method: How it was computed.
        failure_probability: β, with which the Monte Carlo draws may have misled; 0 for a
            deterministic bound.
        remove_epsilon: What the remove direction alone needs; ε for replace-one, which has none.
        add_epsilon: The same for the add direction.
        num_samples: Draws per direction, 0 for a deterministic bound.
    """

    epsilon: float
    delta: float
    method: str
    failure_probability: float = 0.0
    remove_epsilon: float
    add_epsilon: float
    num_samples: int = 0


def bin_gram(noise: GaussianNoise, *, num_bins: int, num_rounds: int, horizon: int) -> Matrix:
    """Return G_ij = ⟨m_i, m_j⟩, m_i = Σ_e C[:, e b + i], shape (b, b), in squared clip norms.

    Bins are neighbours across epochs too: round e b + b − 1 is next to round (e + 1) b, which
    puts large entries into the corners of G. A bin that no round has reached has a zero row.

    Args:
        noise: Gives λ and the row scales.
        num_bins: b.
        num_rounds: Rounds that happened; need not be a multiple of b.
        horizon: Rounds planned.
    """
    scales = noise.row_scales(horizon)[:num_rounds]
    gram: Matrix = np.zeros((num_bins, num_bins))
    state: Matrix = np.zeros((1, num_bins))
    for start in range(0, num_rounds, num_bins):
        joining = np.diag(1 / scales[start : start + num_bins])
        rounds = len(joining)
        pattern: Matrix = np.zeros((rounds, num_bins))
        pattern[:, :rounds] = joining
        encoded, state = lfilter([1.0], [1.0, -noise.correlation], pattern, axis=0, zi=state)
        gram += encoded.T @ encoded
    return gram


def deterministic_bins_epsilon(
    *,
    noise: GaussianNoise,
    num_bins: int,
    num_rounds: int,
    horizon: int,
    delta: float,
    sensitivity_factor: int = 1,
) -> BinsEpsilon:
    """Return the least of the deterministic bounds: revealed bin, revealed cell, spectral.

    Args:
        noise: With κ > 0 set.
        num_bins: b.
        num_rounds: Rounds that happened.
        horizon: Rounds planned.
        delta: δ in (0, 1).
        sensitivity_factor: 2 for replace-one, else 1.
    """
    gram = _checked_gram(noise, num_bins, num_rounds, horizon, delta, sensitivity_factor)
    best = _revealed_bin(sensitivity_factor * np.sqrt(np.diagonal(gram)), delta)
    directions, method = (best, best), "revealed bin"
    for name, (variances, common) in _structures(gram, noise, num_rounds, horizon):
        law = lognormal_average(variances, common=common, delta=delta)
        if sensitivity_factor == 1:
            found = (
                _least(law.remove_delta, delta, best),
                _least(law.add_delta, delta, best),
            )
        else:
            found = (_least(_through_zero(law), delta, best),) * 2
        if max(found) < best:
            best, directions, method = max(found), found, name
    return BinsEpsilon(
        epsilon=best,
        delta=delta,
        method=f"balls in bins, deterministic: {method}",
        remove_epsilon=directions[0],
        add_epsilon=directions[1],
    )


def balls_in_bins_epsilon(
    *,
    noise: GaussianNoise,
    num_bins: int,
    num_rounds: int,
    horizon: int,
    delta: float,
    sensitivity_factor: int = 1,
    rng: np.random.Generator,
    num_samples: int = 4_000_000,
    failure_probability: float | None = None,
) -> BinsEpsilon:
    """Return an ε that Monte Carlo draws show to hold (arXiv 2410.06266, with tilted draws).

    Guarantees:
        Whatever the mechanism is, the probability over `rng` that the returned ε is too small for
        (δ − β)/(1 − β) is at most β = `failure_probability`. So, read either way:
        with confidence 1 − β the run is (ε, (δ − β)/(1 − β))-DP; and the procedure "fix ε,
        draw, release only if the draws show ε" is (ε, δ)-DP without any condition, because
        β + (1 − β)(δ − β)/(1 − β) = δ. Both need draws that are independent of the records and
        of the training, and one look: whoever tries several settings until one is shown must
        divide β by their number. The Monte Carlo estimate itself is never returned.
        Up to float64 rounding.

    Args:
        noise: With κ > 0 set.
        num_bins: b.
        num_rounds: Rounds that happened.
        horizon: Rounds planned.
        delta: δ in (0, 1).
        sensitivity_factor: 2 for replace-one, else 1.
        rng: From the operating system's entropy, for a guarantee that is used; the result is a
            function of its state.
        num_samples: N, per direction; time grows as N b².
        failure_probability: β in (0, δ); δ/1000 if None.

    Raises:
        ValueError: If a setting is out of range.
    """
    gram = _checked_gram(noise, num_bins, num_rounds, horizon, delta, sensitivity_factor)
    check_count("num_samples", num_samples)
    beta = delta / 1000 if failure_probability is None else failure_probability
    check_number("failure_probability", beta, low=0.0, high=delta, low_open=True, high_open=True)
    true_delta = (delta - beta) / (1 - beta)
    guess = _revealed_bin(np.sqrt(np.diagonal(gram)), delta)

    def shown(target: float, samples: int) -> tuple[float, float]:
        return shown_epsilons(
            gram,
            delta=target,
            failure_probability=beta,
            num_samples=samples,
            guess=guess,
            rng=rng,
        )

    if sensitivity_factor == 1:
        remove, add = shown(true_delta, num_samples)
    else:
        cap = guess  # the δ of the last draws is fixed by draws of their own, before them
        for _ in range(2):
            cap = max(shown(_halfway_delta(true_delta, cap), -(-num_samples // 5)))
        halfway = max(shown(_halfway_delta(true_delta, cap), num_samples))
        remove = add = 2 * halfway if halfway <= cap else math.inf
    return BinsEpsilon(
        epsilon=max(remove, add),
        delta=delta,
        method=f"balls in bins, Monte Carlo with confidence 1 − {beta:.2g}",
        failure_probability=beta,
        remove_epsilon=remove,
        add_epsilon=add,
        num_samples=num_samples,
    )


def _halfway_delta(delta: float, epsilon: float) -> float:
    """Return δ₀ with (1 + e^ε) δ₀ = δ, above 0 whatever ε is."""
    return delta / (1 + math.exp(min(epsilon, 600.0)))


def _multiplier(noise: GaussianNoise) -> float:
    multiplier = noise.noise_multiplier
    check_number(
        "noise_multiplier",
        math.nan if multiplier is None else multiplier,
        low=0.0,
        low_open=True,
        advice="without noise ε is ∞",
    )
    return float(multiplier or math.nan)


def _checked_gram(
    noise: GaussianNoise,
    num_bins: int,
    num_rounds: int,
    horizon: int,
    delta: float,
    sensitivity_factor: int,
) -> Matrix:
    """Check the settings and return the Gram matrix in units of the noise variance."""
    multiplier = _multiplier(noise)
    check_count("num_bins", num_bins)
    check_count("num_rounds", num_rounds)
    check_count("horizon", horizon, low=num_rounds, advice="plan a new mechanism for more rounds")
    check_number("delta", delta, low=0.0, high=1.0, low_open=True, high_open=True)
    if sensitivity_factor not in (1, 2):
        raise ValueError(
            f"expected sensitivity_factor={sensitivity_factor} in {{1, 2}}; 2 is for replace-one"
        )
    gram = bin_gram(noise, num_bins=num_bins, num_rounds=num_rounds, horizon=horizon)
    return gram / multiplier**2


def _revealed_bin(means: Vector, delta: float) -> float:
    """Return ε of the mean over bins of the account of one Gaussian."""
    high = gaussian_epsilon(delta=delta, mu=float(means.max()))
    distinct, counts = np.unique(means, return_counts=True)

    def mean_delta(epsilon: float) -> float:
        deltas = [gaussian_delta(epsilon=epsilon, mu=float(mu)) for mu in distinct]
        return float(counts @ np.array(deltas)) / len(means)

    return min(high, _least(mean_delta, delta, high))


def _structures(
    gram: Matrix, noise: GaussianNoise, num_rounds: int, horizon: int
) -> list[tuple[str, tuple[Vector, float]]]:
    """List dominating structures (d, c) of independent lognormals and a common factor."""
    num_bins = len(gram)
    found = []
    if gram.max() <= _TOO_LARGE:
        found = [
            (f"revealed cell of {num_bins // r} bins", cell_structure(gram, num_cells=r))
            for r in range(1, num_bins)
            if num_bins % r == 0
        ]
    norm = spectral_norm(noise, num_rounds=num_rounds, horizon=horizon) / _multiplier(noise)
    joined = np.bincount(np.arange(num_rounds) % num_bins, minlength=num_bins)
    independent = norm**2 * joined.astype(float)
    if noise.correlation > 0 and independent.max() <= _TOO_LARGE:
        found.append(("spectral bound, all bins", (independent, 0.0)))
    return found


def _through_zero(law: LognormalAverage) -> Callable[[float], float]:
    """Return ε ↦ δ of replace-one: the record is removed at ε/2 and its successor added at ε/2."""
    return lambda epsilon: (
        law.remove_delta(epsilon / 2) + math.exp(epsilon / 2) * law.add_delta(epsilon / 2)
    )


def _least(delta_fn: Callable[[float], float], delta: float, highest: float) -> float:
    return least_epsilon(lambda epsilon: delta_fn(epsilon) <= delta, highest=highest)
