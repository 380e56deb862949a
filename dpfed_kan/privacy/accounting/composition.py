"""Several runs on the same records: what they cost together, which is not the sum of their ε.

Runs may be chosen one after the other with the earlier results in view: dominating pairs compose
adaptively. Fixed schedules compose into one Gaussian, sampled runs by their loss distributions;
a run whose best account is neither enters as (ε_i, δ_i).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dp_accounting.pld import privacy_loss_distribution as pld

from dpfed_kan._validate import check_count
from dpfed_kan.privacy.accounting.account import account, check_delta
from dpfed_kan.privacy.accounting.block_spectral import (
    block_spectral_epsilon,
    block_spectral_loss,
)
from dpfed_kan.privacy.accounting.bounds import gaussian_sensitivity
from dpfed_kan.privacy.accounting.gaussian import gaussian_epsilon
from dpfed_kan.privacy.accounting.guarantee import Bound
from dpfed_kan.privacy.accounting.loss_distribution import (
    LossDistribution,
    composed,
    dense,
    fitting_interval,
    grid_interval,
    loss_epsilon,
    repeated,
)
from dpfed_kan.privacy.accounting.poisson import poisson_interval, poisson_loss
from dpfed_kan.privacy.mechanism import Mechanism, NeighboringRelation
from dpfed_kan.privacy.sampling import Poisson

_CUTOFF = 1e-5
_SHARE = 0.1  # of δ, for the runs that enter as (ε, δ)


@dataclass(frozen=True, kw_only=True)
class Run:
    """Rounds of one mechanism that happened.

    Args:
        mechanism: With its noise multiplier set.
        num_rounds: Rounds that happened, also those of failed and aborted runs.
        repetitions: How many such runs there were.
    """

    mechanism: Mechanism
    num_rounds: int
    repetitions: int = 1

    def __post_init__(self) -> None:
        check_count("num_rounds", self.num_rounds, low=0)
        check_count("repetitions", self.repetitions)
        if self.mechanism.sites_per_unit > 1:
            raise ValueError(
                "runs of a unit with records at several sites do not compose here: account for "
                "each run and add up, or have the records of each unit at one site"
            )
        if self.num_rounds > self.mechanism.num_rounds:
            raise ValueError(
                f"expected num_rounds={self.num_rounds} of at most {self.mechanism.num_rounds}, "
                "the horizon that the mechanism was planned for"
            )


def compose(runs: Sequence[Run], *, delta: float, num_records: int | None = None) -> Bound:
    """Return an upper bound on ε of all runs together, on one record.

    Guarantees:
        ε is an upper bound for the sequence, adaptively chosen runs included, as long as their
        number and mechanisms were fixed in advance; choosing the best run is covered by it.

    Args:
        runs: All under one neighbouring relation and of one privacy unit, with the unit's own
            inclusion probability.
        delta: δ in (0, 1).
        num_records: n; δ must be below 1/n. Fixed-size sampling needs it.

    Raises:
        ValueError: If the relations or units differ or δ is out of range.
    """
    start = time.perf_counter()
    check_delta(delta, num_records=num_records)
    happened = [run for run in runs if run.num_rounds > 0]
    relations = {run.mechanism.neighboring_relation for run in happened}
    if len(relations) > 1:
        raise ValueError(
            f"expected one neighbouring relation over all runs, got {sorted(relations)}; account "
            "them all under the same one"
        )
    units = {run.mechanism.privacy_unit for run in happened}
    if len(units) > 1:
        raise ValueError(
            f"expected one privacy unit over all runs, got {sorted(units)}: a record is another "
            "contribution to its patient's, up to twice the clip norm away; account for them apart"
        )
    epsilon, method = _composed(happened, delta, num_records)
    return Bound(
        epsilon=epsilon,
        method=method,
        assumption="the runs share no randomness; each run's own assumption",
        seconds=time.perf_counter() - start,
    )


def _composed(runs: list[Run], delta: float, num_records: int | None) -> tuple[float, str]:
    if not runs:
        return 0.0, "nothing was released"
    if any(run.mechanism.noise_multiplier == 0 for run in runs):
        return math.inf, "a run without noise"
    schedules = [run for run in runs if gaussian_sensitivity(run.mechanism, 1) is not None]
    sampled = [run for run in runs if gaussian_sensitivity(run.mechanism, 1) is None]
    mu = math.sqrt(sum(run.repetitions * _mu(run) ** 2 for run in schedules))
    if not sampled:
        return gaussian_epsilon(delta=delta, mu=mu), "one Gaussian of all runs, exact"
    relation = runs[0].mechanism.neighboring_relation
    counts = [run for run in _merged(sampled) if isinstance(run.mechanism.sampling, Poisson)]
    others = [run for run in _merged(sampled) if not isinstance(run.mechanism.sampling, Poisson)]
    number = sum(run.repetitions for run in runs)
    share = _SHARE * delta / sum(run.repetitions for run in others) if others else 0.0
    left = delta - _SHARE * delta if others else delta
    stated = sum(
        run.repetitions
        * account(
            run.mechanism, delta=share, num_rounds=run.num_rounds, num_records=num_records
        ).epsilon
        for run in others
    )  # basic composition of the runs that enter as (ε, δ)
    by_sum = (
        stated
        + sum(run.repetitions * _alone(run, left / number) for run in counts)
        + gaussian_epsilon(delta=left / number, mu=mu)
    )
    if not counts:
        return min(by_sum, stated + gaussian_epsilon(delta=left, mu=mu)), "(ε, δ) of each run"
    rounds = sum(run.repetitions * run.num_rounds for run in counts) + 1
    bound, interval = by_sum - stated, math.inf
    for _ in range(4):
        finer = _interval(counts, mu, bound, rounds)
        if finer > 0.7 * interval:
            break
        interval = finer
        try:
            losses = [_loss(run, left, relation, interval) for run in counts]
            if mu > 0:
                one = pld.from_gaussian_mechanism(1 / mu, value_discretization_interval=interval)
                losses.append(dense(one))
            total = composed(losses)
        except OverflowError:
            break
        bound = min(bound, loss_epsilon(total, delta=left, num_compositions=rounds))
    method = "composed loss distributions of all runs"
    return bound + stated, f"{method}, plus (ε, δ) of {len(others)} kinds" if others else method


def _merged(runs: list[Run]) -> list[Run]:
    """Join independent-noise runs of one kind: their rounds are one longer run."""
    counts: dict[Mechanism, int] = {}
    kept: list[Run] = []
    for run in runs:
        mechanism = run.mechanism
        if isinstance(mechanism.sampling, Poisson) and mechanism.noise.correlation == 0:
            key = _with_horizon(mechanism, 1)
            counts[key] = counts.get(key, 0) + run.repetitions * run.num_rounds
        else:
            kept.append(run)
    joined = [
        Run(mechanism=_with_horizon(mechanism, rounds), num_rounds=rounds)
        for mechanism, rounds in counts.items()
    ]
    return joined + kept


def _with_horizon(mechanism: Mechanism, num_rounds: int) -> Mechanism:
    return replace(mechanism, l2_clip_norm=1.0, num_rounds=num_rounds)


def _mu(run: Run) -> float:
    sensitivity = gaussian_sensitivity(run.mechanism, run.num_rounds) or 0.0
    return run.mechanism.sensitivity_factor * sensitivity / run.mechanism.noise_multiplier


def _alone(run: Run, delta: float) -> float:
    return account(run.mechanism, delta=delta, num_rounds=run.num_rounds).epsilon


def _interval(runs: list[Run], mu: float, epsilon: float, rounds: int) -> float:
    """Return one grid interval for all runs."""
    wanted = grid_interval(epsilon=epsilon, num_compositions=rounds, accuracy=0.5)
    for run in runs:
        fitting = poisson_interval(
            epsilon=epsilon,
            noise_multiplier=run.mechanism.noise_multiplier,
            num_rounds=rounds,
        )
        wanted = max(wanted, fitting)
    return fitting_interval(wanted, low=-10 * mu, high=mu**2 / 2 + 10 * mu)


def _loss(
    run: Run, delta: float, relation: NeighboringRelation, interval: float
) -> LossDistribution:
    mechanism = run.mechanism
    sampling, noise, kappa = mechanism.sampling, mechanism.noise, mechanism.noise_multiplier
    if not isinstance(sampling, Poisson):
        raise TypeError(f"{type(sampling).__name__} runs have no loss distribution")
    if noise.correlation == 0:
        loss = poisson_loss(
            sampling_prob=sampling.sampling_prob,
            noise_multiplier=kappa,
            num_rounds=run.num_rounds,
            neighboring_relation=relation,
            interval=interval,
        )
        return repeated(loss, run.repetitions)
    width = block_spectral_epsilon(
        noise,
        noise_multiplier=kappa,
        sampling_prob=sampling.sampling_prob,
        num_rounds=run.num_rounds,
        horizon=mechanism.num_rounds,
        delta=delta,
        neighboring_relation=relation,
        known_epsilon=_alone(run, delta),
    ).width
    loss = block_spectral_loss(
        noise,
        noise_multiplier=kappa,
        sampling_prob=sampling.sampling_prob,
        num_rounds=run.num_rounds,
        horizon=mechanism.num_rounds,
        neighboring_relation=relation,
        width=width,
        interval=interval,
        cutoff=_CUTOFF * delta / run.repetitions,
    )
    return repeated(loss, run.repetitions)
