"""An **estimate** of the true ε of λ-correlated noise under Poisson sampling; never a bound.

For tests and for plots of how much the bounds give away. The encoded releases of the worst case
are x_t = h_t + κ z_t with h_t = λ h_{t−1} + y_t/d_t, y_t ~ Bernoulli(q) (MATH.md section 3); the
loss L = log E_y Π_t exp((x_t h_t − h_t²/2)/κ²) is computed by a forward filter over h, as for a
hidden Markov model. h lives on a grid, between whose points it is interpolated, which widens its
law a little: a coarse grid estimates high.

δ(ε) is estimated by importance sampling. The proposals raise the rate of y and shift the noise
along E h, both by several amounts; each gets an equal share of the draws, and a draw's weight is
taken against their mixture (Veach and Guibas 1995, the balance heuristic).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.sparse import csr_array

from dpfed_kan._validate import check_count, check_number
from dpfed_kan.privacy.clipping import Matrix, Vector
from dpfed_kan.privacy.noising import GaussianNoise

_CHUNK = 1000
_SHIFTS, _RATES = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0), (1.0, 1.3, 1.7, 2.2)


@dataclass(frozen=True, kw_only=True)
class EpsilonEstimate:
    """An estimate of ε with its standard error: not an upper bound, not to be reported as ε.

    Args:
        estimate: The larger of the two directions.
        standard_error: Of it; Monte Carlo only, without the grid's error.
        remove: Estimate and standard error of the remove direction.
        add: Estimate and standard error of the add direction.
        num_samples: Draws per direction.
    """

    estimate: float
    standard_error: float
    remove: tuple[float, float]
    add: tuple[float, float]
    num_samples: int


def estimate_poisson_epsilon(
    *,
    noise: GaussianNoise,
    sampling_prob: float,
    num_rounds: int,
    horizon: int,
    delta: float,
    rng: np.random.Generator,
    num_samples: int = 4_800,
    num_grid: int = 128,
) -> EpsilonEstimate:
    """Estimate ε of Poisson sampling with λ-correlated noise, zero-out or add/remove.

    Args:
        noise: With κ > 0 set.
        sampling_prob: q in (0, 1].
        num_rounds: Rounds that happened.
        horizon: Rounds planned.
        delta: δ in (0, 1).
        rng: The only randomness.
        num_samples: Draws per direction, shared by the proposals; time grows as their number
            times rounds times grid points.
        num_grid: Points of the grid of h, from 0 to its greatest value.

    Raises:
        ValueError: If a setting is out of range.
    """
    multiplier = math.nan if noise.noise_multiplier is None else noise.noise_multiplier
    check_number("noise_multiplier", multiplier, low=0.0, low_open=True)
    check_number("sampling_prob", sampling_prob, low=0.0, high=1.0, low_open=True)
    check_number("delta", delta, low=0.0, high=1.0, low_open=True, high_open=True)
    check_count("num_rounds", num_rounds)
    check_count("horizon", horizon, low=num_rounds)
    check_count("num_grid", num_grid, low=2)
    check_count("num_samples", num_samples, low=2 * len(_SHIFTS) * len(_RATES))
    run = _Run(
        multiplier=multiplier,
        correlation=noise.correlation,
        sampling_prob=sampling_prob,
        steps=1 / noise.row_scales(horizon)[:num_rounds],
    )
    losses = _Filter(run, num_grid)
    remove = _solve(_draw_remove(run, losses, num_samples, rng), delta)
    add = _solve(_draw_add(run, losses, num_samples, rng), delta)
    estimate, standard_error = max(remove, add)
    return EpsilonEstimate(
        estimate=estimate,
        standard_error=standard_error,
        remove=remove,
        add=add,
        num_samples=num_samples,
    )


@dataclass(frozen=True, kw_only=True)
class _Run:
    multiplier: float
    correlation: float
    sampling_prob: float
    steps: Vector  # 1/d_t: what a participation adds to h

    def encode(self, joins: Matrix) -> Matrix:
        """Return h, shape (T, N), from y of that shape."""
        encoded = np.zeros_like(joins)
        state = np.zeros(joins.shape[1])
        for t, step in enumerate(self.steps):
            state = self.correlation * state + step * joins[t]
            encoded[t] = state
        return encoded

    @property
    def mean(self) -> Vector:
        """E h, shape (T,)."""
        rounds = len(self.steps)
        return self.encode(np.full((rounds, 1), self.sampling_prob))[:, 0]


class _Filter:
    """The forward filter: from releases to losses."""

    def __init__(self, run: _Run, num_grid: int) -> None:
        self.run = run
        greatest = float(run.encode(np.ones((len(run.steps), 1))).max())
        self.grid: Vector = np.linspace(0.0, greatest, num_grid)

    def losses(self, releases: Matrix) -> Vector:
        """Return L, shape (N,), of releases of shape (T, N)."""
        run, variance = self.run, self.run.multiplier**2
        belief = np.zeros((len(self.grid), releases.shape[1]))
        belief[0] = 1.0
        total: Vector = np.zeros(releases.shape[1])
        previous_step, moves = math.nan, csr_array((0, 0))
        for release, step in zip(releases, run.steps, strict=True):
            if step != previous_step:
                previous_step, moves = step, self._moves(step)
            exponents = np.multiply.outer(self.grid / variance, release)
            exponents -= (self.grid**2 / (2 * variance))[:, None]
            top = exponents.max(axis=0)
            belief = (moves @ belief) * np.exp(exponents - top)
            size = belief.sum(axis=0)
            belief /= size
            total += top + np.log(size)
        return total

    def _moves(self, step: float) -> csr_array:
        """Return the transition of the law of h, shape (grid, grid), columns summing to 1."""
        grid, last = self.grid, len(self.grid) - 1
        rows, columns, entries = [], [], []
        for added, probability in (
            (0.0, 1 - self.run.sampling_prob),
            (step, self.run.sampling_prob),
        ):
            target = np.minimum(self.run.correlation * grid + added, grid[-1]) / grid[-1] * last
            below = np.minimum(np.floor(target).astype(int), last - 1)
            share = target - below
            rows += [below, below + 1]
            columns += [np.arange(last + 1)] * 2
            entries += [probability * (1 - share), probability * share]
        indices = (np.concatenate(rows), np.concatenate(columns))
        return csr_array((np.concatenate(entries), indices), shape=(last + 1, last + 1))


@dataclass(frozen=True, kw_only=True)
class _Draws:
    """Weighted losses, shape (proposals, draws of each)."""

    losses: Matrix
    weights: Matrix

    def delta(self, epsilon: float) -> tuple[float, float]:
        """Return the estimate of δ(ε) and its standard error."""
        parts = self.weights * -np.expm1(np.minimum(epsilon - self.losses, 0.0))
        per_stratum = parts.var(axis=1, ddof=1) / parts.shape[1]
        return float(parts.mean()), math.sqrt(float(per_stratum.sum())) / len(parts)

    def slope(self, epsilon: float) -> float:
        """Return −dδ/dε."""
        over = self.losses > epsilon
        return float((self.weights * np.where(over, np.exp(epsilon - self.losses), 0.0)).mean())


def _draw_remove(run: _Run, losses: _Filter, num_samples: int, rng: np.random.Generator) -> _Draws:
    """Draw L under P."""
    rates = sorted({min(rate * run.sampling_prob, (1 + run.sampling_prob) / 2) for rate in _RATES})
    if run.sampling_prob == 1:
        rates = [1.0]
    return _draw(run, losses, list(itertools.product(_SHIFTS, rates)), num_samples, rng)


def _draw_add(run: _Run, losses: _Filter, num_samples: int, rng: np.random.Generator) -> _Draws:
    """Draw −L under Q, where nobody joins."""
    shifts = [(-shift, 0.0) for shift in _SHIFTS]
    return _draw(run, losses, shifts, num_samples, rng)


def _draw(
    run: _Run,
    losses: _Filter,
    proposals: list[tuple[float, float]],
    num_samples: int,
    rng: np.random.Generator,
) -> _Draws:
    """Draw from every proposal (shift in standard deviations along E h, rate of y); rate 0 is Q."""
    direction = run.mean / np.linalg.norm(run.mean)
    rounds, per_proposal = len(run.steps), -(-num_samples // len(proposals))
    shifts, rates = (np.array(column) for column in zip(*proposals, strict=True))
    all_losses, all_weights = [], []
    for shift, rate in proposals:
        row_losses, row_weights = [], []
        for start in range(0, per_proposal, _CHUNK):
            size = min(_CHUNK, per_proposal - start)
            joins = (rng.random((rounds, size)) < rate).astype(float)
            normals = rng.standard_normal((rounds, size)) + shift * direction[:, None]
            releases = run.encode(joins) + run.multiplier * normals
            found = losses.losses(releases)
            row_losses.append(found if rate > 0 else -found)
            log_ratios = np.multiply.outer(shifts, direction @ normals) - shifts[:, None] ** 2 / 2
            if rate > 0:
                log_ratios += _log_rate_ratios(rates, run.sampling_prob, joins.sum(axis=0), rounds)
            row_weights.append(1 / np.exp(log_ratios).mean(axis=0))
        all_losses.append(np.concatenate(row_losses))
        all_weights.append(np.concatenate(row_weights))
    return _Draws(losses=np.stack(all_losses), weights=np.stack(all_weights))


def _log_rate_ratios(
    rates: Vector, sampling_prob: float, joined: NDArray[np.float64], rounds: int
) -> Matrix:
    """Return log of the likelihood of y at each rate over that at q, (proposals, draws)."""
    if sampling_prob == 1:
        return np.zeros((len(rates), len(joined)))
    yes = np.log(rates / sampling_prob)
    no = np.log((1 - rates) / (1 - sampling_prob))
    return np.asarray(np.multiply.outer(yes, joined) + np.multiply.outer(no, rounds - joined))


def _solve(draws: _Draws, delta: float) -> tuple[float, float]:
    """Return the ε at which δ(ε) is δ and its standard error, by the slope there."""
    if draws.delta(0.0)[0] <= delta:
        return 0.0, 0.0
    high = 1.0
    while draws.delta(high)[0] > delta:
        high *= 2
    epsilon = float(brentq(lambda e: draws.delta(e)[0] - delta, 0.0, high, xtol=1e-9))
    return epsilon, draws.delta(epsilon)[1] / draws.slope(epsilon)
