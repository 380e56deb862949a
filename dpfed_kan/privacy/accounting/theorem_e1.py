"""Theorem E.1 of [KAN-SGD] (arXiv 2605.12648): for comparison only, never the answer.

κ² ≥ 8 ((1−λ^T)/(1−λ))² k log(2.5/δ)/ε², k the most participations but for probability δ/2. As
printed k = rT + sqrt(3 rT log(2/δ)), whose tail is not below δ/2 for small rT; the binomial
quantile is.
The Gaussian step needs ε ≤ 1, so that larger figures are not guarantees.
"""

from __future__ import annotations

import math

from scipy.stats import binom

from dpfed_kan.privacy.accounting.guarantee import Bound
from dpfed_kan.privacy.mechanism import Mechanism
from dpfed_kan.privacy.sampling import Poisson


def theorem_e1_epsilon(
    *,
    correlation: float,
    noise_multiplier: float,
    sampling_prob: float,
    num_rounds: int,
    delta: float,
    exact_quantile: bool,
) -> float:
    """Return the ε that Theorem E.1 gives for a noise multiplier.

    Args:
        correlation: λ.
        noise_multiplier: κ > 0.
        sampling_prob: r.
        num_rounds: T.
        delta: δ in (0, 1).
        exact_quantile: Use the binomial quantile in place of the printed Chernoff tail.
    """
    expected = sampling_prob * num_rounds
    participations = expected + math.sqrt(3 * expected * math.log(2 / delta))
    if exact_quantile:
        participations = float(binom.isf(delta / 2, num_rounds, sampling_prob))
    gain = (1 - correlation**num_rounds) / (1 - correlation)
    return gain * math.sqrt(8 * participations * math.log(2.5 / delta)) / noise_multiplier


def theorem_e1_figures(mechanism: Mechanism, num_rounds: int, delta: float) -> tuple[Bound, ...]:
    """Return Theorem E.1 as printed and with the exact quantile, where it speaks of the mechanism.

    Args:
        mechanism: With its noise multiplier set.
        num_rounds: Rounds that happened.
        delta: δ in (0, 1).
    """
    sampling, noise = mechanism.sampling, mechanism.noise
    if not isinstance(sampling, Poisson) or noise.column_normalized or num_rounds == 0:
        return ()
    if mechanism.neighboring_relation == "replace_one":
        return ()
    return tuple(
        Bound(
            epsilon=theorem_e1_epsilon(
                correlation=noise.correlation,
                noise_multiplier=mechanism.noise_multiplier,
                sampling_prob=sampling.sampling_prob,
                num_rounds=num_rounds,
                delta=delta,
                exact_quantile=exact_quantile,
            ),
            method=f"Theorem E.1 of arXiv 2605.12648, {tail}: for comparison only",
            assumption=f"Poisson sampling; {proof}",
            seconds=0.0,
        )
        for exact_quantile, tail, proof in (
            (False, "as printed", "its Chernoff tail can exceed δ/2"),
            (True, "with the exact binomial quantile", "proven for ε ≤ 1 only"),
        )
    )
