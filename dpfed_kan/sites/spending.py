"""What runs cost at one site: a price for each, fixed before it begins, and their sum.

A site does not know its later plans when the first run begins, and they may depend on what the
first released. Loss distributions compose for mechanisms that were fixed in advance; for plans
that are chosen adaptively, (ε, δ) add up (README.md of this folder has the proof).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dpfed_kan.privacy.accounting.composition import Run, compose
from dpfed_kan.privacy.accounting.guarantee import NonPrivate
from dpfed_kan.privacy.accounting.several_sites import account
from dpfed_kan.privacy.joint_sampling import FixedSize
from dpfed_kan.sites.plan import Plan
from dpfed_kan.sites.policy import PlansChosen

NUM_STOPS = 8  # numbers of rounds that a run which stops early may be charged as
_ROUNDING = 1 + 1e-12


@dataclass(frozen=True, kw_only=True)
class Charge:
    """What one run is charged.

    Args:
        epsilon: ε.
        delta: δ.
        num_rounds: Rounds that are charged.
        method: Of the account.
    """

    epsilon: float
    delta: float
    num_rounds: int
    method: str


@dataclass(frozen=True, kw_only=True)
class Spending:
    """What all runs on some records cost together.

    Args:
        epsilon: An upper bound on ε.
        delta: δ of it.
        num_runs: Runs that are counted, open ones as if they ended.
        method: How they were put together, and what that needs.
    """

    epsilon: float
    delta: float
    num_runs: int
    method: str

    def keeps(self, *, epsilon: float, delta: float) -> bool:
        """Whether it is within a budget, but for the rounding of the sums."""
        return self.epsilon <= epsilon * _ROUNDING and self.delta <= delta * _ROUNDING


def price(plan: Plan, *, site: str, num_rounds: int, delta: float) -> Charge:
    """Return what the first rounds of a plan cost at a site: of one mechanism, as a whole.

    Where a unit may have records at several sites, the rate is that of the smallest site: such a
    unit is drawn there, too.
    """
    here = plan.num_records(site)
    if plan.mechanism.sites_per_unit > 1:
        here = min(known.num_records for known in plan.sites)
    mechanism = plan.mechanism.at_site(here)
    everybody = sum(known.num_records for known in plan.sites)
    joint = isinstance(mechanism.sampling, FixedSize)
    found = account(
        mechanism,
        delta=delta,
        num_rounds=num_rounds,
        num_records=everybody if joint else here,
    )
    method = "no noise" if isinstance(found, NonPrivate) else found.best.method
    return Charge(epsilon=found.epsilon, delta=delta, num_rounds=num_rounds, method=method)


def price_stopped(
    plan: Plan, whole: Charge, *, site: str, num_rounds: int, stop_delta: float
) -> Charge:
    """Return what a run costs that has stopped for good after some rounds.

    When a run stops may depend on what it released, so that each number of rounds it can be
    charged as needs a δ of its own: one of `NUM_STOPS`, rounded up, each with its share of
    `stop_delta`, which was charged from the start.

    Args:
        plan: Of the run.
        whole: What the whole run was charged.
        site: This site.
        num_rounds: Rounds up to the last that was answered.
        stop_delta: δ that was set aside; 0 if none was.
    """
    total = whole.delta + stop_delta
    if num_rounds == 0:
        return Charge(epsilon=0.0, delta=0.0, num_rounds=0, method="no reply left")
    horizon = plan.mechanism.num_rounds
    stop = math.ceil(num_rounds * NUM_STOPS / horizon)
    charged = math.ceil(stop * horizon / NUM_STOPS)
    if stop_delta > 0 and charged < horizon:
        try:
            found = price(plan, site=site, num_rounds=charged, delta=stop_delta / NUM_STOPS)
        except ValueError:  # no account at so small a δ
            found = whole
        if found.epsilon < whole.epsilon:
            return Charge(
                epsilon=found.epsilon, delta=total, num_rounds=charged, method=found.method
            )
    return Charge(epsilon=whole.epsilon, delta=total, num_rounds=horizon, method=whole.method)


@dataclass(frozen=True, kw_only=True)
class Charged:
    """A run with what it is charged.

    Args:
        plan: Of the run.
        site: This site's name in it.
        charge: Of the whole run while it is open, of what happened once it is closed.
        whole: Of all its rounds, whatever happened.
    """

    plan: Plan
    site: str
    charge: Charge
    whole: Charge


def together(
    runs: Sequence[Charged], *, plans_chosen: PlansChosen, budget_delta: float
) -> Spending:
    """Return what runs on the same records cost together.

    Of plans fixed in advance the lesser of two bounds is taken, so that neither may depend on
    what was released: a run counts whole there, whenever it stopped.

    Args:
        runs: All that touched any of the records; those that cost nothing do not count.
        plans_chosen: What the site's policy says.
        budget_delta: δ at which whole runs are composed, where they may be.
    """
    counted = [run for run in runs if run.charge.num_rounds > 0]
    if plans_chosen == "in_advance":
        counted = [
            replace(run, charge=replace(run.whole, delta=max(run.whole.delta, run.charge.delta)))
            for run in counted
        ]
    added = Spending(
        epsilon=math.fsum(run.charge.epsilon for run in counted),
        delta=math.fsum(run.charge.delta for run in counted),
        num_runs=len(counted),
        method="sum of each run's (ε, δ), whatever was chosen after seeing what",
    )
    if plans_chosen == "adaptively" or len(counted) < 2:
        return added
    composed = _composed(counted, budget_delta)
    if composed is None or (
        composed.epsilon > added.epsilon and added.delta <= budget_delta * _ROUNDING
    ):
        return added
    return composed


def _composed(runs: list[Charged], delta: float) -> Spending | None:
    """Compose whole runs, as if none had stopped early; None where they do not compose."""
    sizes = {
        sum(known.num_records for known in run.plan.sites)
        for run in runs
        if isinstance(run.plan.mechanism.sampling, FixedSize)
    }
    relations = {run.plan.mechanism.neighboring_relation for run in runs}
    units = {run.plan.mechanism.privacy_unit for run in runs}
    several = any(run.plan.mechanism.sites_per_unit > 1 for run in runs)
    if several or len(sizes) > 1 or len(relations) > 1 or len(units) > 1:
        return None
    found = compose(
        [
            Run(
                mechanism=run.plan.mechanism.at_site(run.plan.num_records(run.site)),
                num_rounds=run.plan.mechanism.num_rounds,
            )
            for run in runs
        ],
        delta=delta,
        num_records=sizes.pop() if sizes else None,
    )
    return Spending(
        epsilon=found.epsilon,
        delta=delta,
        num_runs=len(runs),
        method=f"{found.method}, as the site's policy says that all plans were fixed in advance",
    )
