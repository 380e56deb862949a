"""Lower bounds on ε from what was seen: whitened scores of canaries, and what they prove.

A canary is a record whose clipped gradient has norm C in a direction u that the auditor knows.
With releases v, strategy matrix C and the canary's participation pattern y,
S = Σ_t (Cy)_t ⟨(Cv)_t, u⟩ is the sufficient statistic (MATH.md 6): per κ‖Cy‖ clip norms it is
N(0, 1) without the canary and N(μ, 1) with it, μ = ‖Cy‖/κ. A score that leaves the correlation in
the noise shows, at λ = .9 and sparse participation, a third of that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter
from scipy.stats import beta, binom, norm

from dpfed_kan._validate import check_count, check_number
from dpfed_kan.privacy.accounting.gaussian import gaussian_epsilon
from dpfed_kan.privacy.clipping import Matrix, Vector
from dpfed_kan.privacy.noising import Noise

_HALVINGS = 50
_MAX_EPSILON = 500.0


@dataclass(frozen=True, kw_only=True)
class Rates:
    """How often a fixed threshold took the canary for present, over independent runs.

    Args:
        num_in: Runs with the canary.
        true_positives: Of these, those in which it was taken for present.
        num_out: Runs without it.
        false_positives: Of these, those in which it was taken for present.
    """

    num_in: int
    true_positives: int
    num_out: int
    false_positives: int

    def __post_init__(self) -> None:
        check_count("num_in", self.num_in)
        check_count("num_out", self.num_out)
        check_count("true_positives", self.true_positives, low=0)
        check_count("false_positives", self.false_positives, low=0)
        if self.true_positives > self.num_in or self.false_positives > self.num_out:
            raise ValueError("expected no more positives than runs")


def encode(noise: Noise, rounds: Matrix, *, horizon: int) -> Matrix:
    """Return C @ rounds, C the strategy matrix: the inverse of the noising matrix.

    Of releases it is their whitened form: κ Z_t beside the signal. Of a pattern y it is Cy.

    Args:
        noise: Gives λ and the row scales d_t.
        rounds: Shape (num_rounds, columns).
        horizon: Rounds planned.
    """
    scales = noise.row_scales(horizon)[: len(rounds), None]
    return np.asarray(lfilter([1.0], [1.0, -noise.correlation], rounds / scales, axis=0))


def whitened_scores(noise: Noise, seen: Matrix, patterns: Matrix, *, horizon: int) -> Vector:
    """Return S of every canary, in units of the noise that the account promises.

    Args:
        noise: The account's, with κ set.
        seen: Shape (num_rounds, m), ⟨v_t, u_j⟩ per clip norm, less what others added.
        patterns: y, shape (num_rounds, m): 1 where the canary joined, as the auditor knows it.
        horizon: Rounds planned.

    Returns:
        Shape (m,): N(0, 1) of a canary that is out, N(μ, 1) of one that is in.
    """
    weights = encode(noise, patterns, horizon=horizon)
    whitened = encode(noise, seen, horizon=horizon)
    norms = np.sqrt(np.square(weights).sum(axis=0))
    return np.asarray((weights * whitened).sum(axis=0) / (_multiplier(noise) * norms))


def raw_scores(noise: Noise, seen: Matrix, patterns: Matrix, *, horizon: int) -> Vector:
    """Return Σ_t y_t ⟨v_t, u⟩ per its own standard deviation: valid, and blind to λ.

    Shown beside `whitened_scores` to tell what whitening is worth; its noise is
    κ Σ_t y_t d_t (Z_t − λ Z_{t−1}), of variance κ² Σ_t (y_t d_t − λ y_{t+1} d_{t+1})².
    """
    scaled = patterns * noise.row_scales(horizon)[: len(patterns), None]
    after = np.vstack([scaled[1:], np.zeros_like(scaled[:1])])
    spread = np.sqrt(np.square(scaled - noise.correlation * after).sum(axis=0))
    return np.asarray((patterns * seen).sum(axis=0) / (_multiplier(noise) * spread))


def shifts(noise: Noise, patterns: Matrix, *, horizon: int) -> Vector:
    """Return μ = ‖Cy‖/κ of every canary: how far its presence moves its whitened score."""
    weights = encode(noise, patterns, horizon=horizon)
    return np.asarray(np.sqrt(np.square(weights).sum(axis=0)) / _multiplier(noise))


def raw_shifts(noise: Noise, patterns: Matrix, *, horizon: int) -> Vector:
    """Return how far a canary's presence moves its raw score."""
    return raw_scores(noise, patterns, patterns, horizon=horizon)


def epsilon_from_rates(rates: Rates, *, delta: float, confidence: float = 0.95) -> float:
    """Return a lower bound on ε at δ that holds whatever the mechanism is.

    (ε, δ)-privacy needs TPR ≤ e^ε FPR + δ, and the same of the complements; the rates enter by
    their Clopper-Pearson limits, each at half of what the confidence leaves.

    Guarantees:
        Above the true ε with probability at most 1 − confidence, if the threshold was fixed
        before the runs.
    """
    check_number("delta", delta, low=0.0, high=1.0, high_open=True)
    true_positive = _least(rates.true_positives, rates.num_in, confidence)
    false_positive = _most(rates.false_positives, rates.num_out, confidence)
    true_negative = 1.0 - false_positive
    false_negative = 1.0 - true_positive
    ratios = [
        (true_positive - delta) / false_positive,
        (true_negative - delta) / false_negative,
    ]
    return max([0.0, *(math.log(ratio) for ratio in ratios if ratio > 0.0)])


def epsilon_from_mu(rates: Rates, *, delta: float, confidence: float = 0.95) -> float:
    """Return a lower bound on ε at δ for a mechanism whose trade-off is Gaussian.

    μ ≥ Φ⁻¹(TPR) − Φ⁻¹(FPR) at the Clopper-Pearson limits of the rates (Nasr et al. 2023, arXiv
    2302.07956), and ε follows from μ exactly. The account of a fixed public schedule rests on the
    same form, and with it the bound is nearly tight; for random batches it is not valid.

    Guarantees:
        As `epsilon_from_rates`, under the Gaussian form.
    """
    true_positive = _least(rates.true_positives, rates.num_in, confidence)
    false_positive = _most(rates.false_positives, rates.num_out, confidence)
    mu = float(norm.ppf(true_positive) - norm.ppf(false_positive))
    return gaussian_epsilon(delta=delta, mu=mu) if mu > 0 else 0.0


def one_run_p_value(
    *, num_canaries: int, num_guesses: int, num_correct: int, epsilon: float, delta: float
) -> float:
    """Return how likely so many correct guesses are at most, if the run were (ε, δ)-private.

    Steinke, Nasr and Jagielski 2023 (arXiv 2305.08846), for approximate DP: with
    W ~ Binomial(r, p), p = e^ε/(1 + e^ε), it is
    P[W ≥ v] + 2 m δ max_i P[v > W ≥ v − i]/i. Each of the m canaries is in or out by a fair
    coin of its own; the r guesses may be chosen with all scores in view.
    """
    accuracy = 1.0 / (1.0 + math.exp(-epsilon))
    likely = float(binom.sf(num_correct - 1, num_guesses, accuracy))
    if num_correct > 0 and delta > 0:
        below = binom.pmf(np.arange(num_correct - 1, -1, -1), num_guesses, accuracy)
        steepest = float((np.cumsum(below) / np.arange(1, num_correct + 1)).max())
        likely += 2.0 * num_canaries * delta * steepest
    return min(1.0, likely)


def epsilon_from_one_run(
    *,
    num_canaries: int,
    num_guesses: int,
    num_correct: int,
    delta: float,
    confidence: float = 0.95,
) -> float:
    """Return the largest ε that the guesses of one run refute at δ, 0 if none.

    Args:
        num_canaries: m, each in or out by a fair coin of its own.
        num_guesses: r ≤ m, a number fixed before the run.
        num_correct: v ≤ r.
        delta: δ in [0, 1).
        confidence: Of the bound.

    Raises:
        ValueError: If the counts do not fit each other.
    """
    check_count("num_canaries", num_canaries)
    check_number("delta", delta, low=0.0, high=1.0, high_open=True)
    if not 0 <= num_correct <= num_guesses <= num_canaries:
        raise ValueError(
            f"expected num_correct={num_correct} <= num_guesses={num_guesses} <= "
            f"num_canaries={num_canaries}"
        )

    def refuted(epsilon: float) -> bool:
        found = one_run_p_value(
            num_canaries=num_canaries,
            num_guesses=num_guesses,
            num_correct=num_correct,
            epsilon=epsilon,
            delta=delta,
        )
        return found <= 1.0 - confidence

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high) and high < _MAX_EPSILON:
        low, high = high, 2.0 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def guess(scores: Vector, *, num_guesses: int) -> NDArray[np.int_]:
    """Return 1 for the highest scores, −1 for the lowest, 0 for those between: no guess.

    Args:
        scores: Shape (m,).
        num_guesses: r, half of them at each end.
    """
    each = num_guesses // 2
    order = np.argsort(scores, kind="stable")
    guesses = np.zeros(len(scores), dtype=np.int_)
    guesses[order[:each]] = -1
    guesses[order[len(order) - each :]] = 1
    return guesses


def _multiplier(noise: Noise) -> float:
    """Return κ > 0.

    Raises:
        ValueError: If there is no noise, or it is not calibrated.
    """
    if not noise.noise_multiplier:
        raise ValueError("an audit needs noise whose noise_multiplier is set and above 0")
    return noise.noise_multiplier


def _least(successes: int, trials: int, confidence: float) -> float:
    """Return the lower Clopper-Pearson limit at half of what the confidence leaves."""
    if successes == 0:
        return 0.0
    return float(beta.ppf((1.0 - confidence) / 2, successes, trials - successes + 1))


def _most(successes: int, trials: int, confidence: float) -> float:
    return 1.0 - _least(trials - successes, trials, confidence)
