"""Whether a site's budget has room for a run, and the words in which it says no."""

from __future__ import annotations

from dataclasses import replace

from dpfed_kan.sites.entries import RunEntry
from dpfed_kan.sites.plan import Plan
from dpfed_kan.sites.policy import PlanRefused, Policy, relation_covers, unit_covers
from dpfed_kan.sites.spending import Charge, Charged, Spending, together


def comparable(entries: list[RunEntry], policy: Policy) -> list[RunEntry]:
    """Refuse to add up what was not promised in the policy's terms."""
    for entry in entries:
        mechanism = entry.plan.mechanism
        if entry.charge.num_rounds > 0 and not (
            unit_covers(mechanism, policy.privacy_unit)
            and relation_covers(mechanism.neighboring_relation, policy.neighboring_relation)
        ):
            raise PlanRefused(
                rule="privacy_unit and neighboring_relation",
                asked="more of records of which a run has spent under "
                f"{mechanism.privacy_unit}, {mechanism.neighboring_relation}",
                allowed=f"{policy.privacy_unit}, {policy.neighboring_relation}",
                way_out="a budget for ever keeps its unit and relation: put the policy back",
            )
    return entries


def spent_together(entries: list[RunEntry], policy: Policy, *more: Charged) -> Spending:
    """Return what runs cost together under a policy, and one more that is only thought of."""
    charged = [
        Charged(plan=entry.plan, site=entry.site, charge=entry.charge, whole=entry.whole)
        for entry in entries
    ]
    return together(
        [*charged, *more], plans_chosen=policy.plans_chosen, budget_delta=policy.budget_delta
    )


def admitted(
    related: list[RunEntry], plan: Plan, site: str, whole: Charge, policy: Policy
) -> float:
    """Return the δ to set aside for an early stop, where the budget has room for it.

    None is, where plans were fixed in advance: such runs are charged whole.

    Raises:
        PlanRefused: If there is no room for the whole run.
    """
    budget = {"epsilon": policy.budget_epsilon, "delta": policy.budget_delta}
    may_stop = whole.num_rounds > 1 and policy.plans_chosen == "adaptively"
    for stop_delta in (plan.target_delta, 0.0) if may_stop else (0.0,):
        charge = replace(whole, delta=whole.delta + stop_delta)
        asked = Charged(plan=plan, site=site, charge=charge, whole=whole)
        total = spent_together(related, policy, asked)
        if total.keeps(**budget):
            return stop_delta
    raise _no_room(related, total, policy, asked=whole)


def check_lowered(related: list[RunEntry], entry: RunEntry, policy: Policy) -> None:
    """Refuse to go on with a run for which a budget that was lowered since has no room.

    Args:
        related: All runs on its records, itself included.
        entry: The run.
        policy: With the budget of today.

    Raises:
        PlanRefused: If all together exceed it.
    """
    total = spent_together(comparable(related, policy), policy)
    if not total.keeps(epsilon=policy.budget_epsilon, delta=policy.budget_delta):
        others = [other for other in related if other.run != entry.run]
        raise _no_room(others, total, policy, asked=entry.charge)


def _no_room(
    related: list[RunEntry], total: Spending, policy: Policy, *, asked: Charge
) -> PlanRefused:
    before = spent_together(related, policy)
    still_open = sum(entry.closed is None and not entry.complete for entry in related)
    return PlanRefused(
        rule="budget_epsilon" if total.epsilon > policy.budget_epsilon else "budget_delta",
        asked=f"ε={asked.epsilon:.4g} at δ={asked.delta:g}, which makes ε={total.epsilon:.4g} at "
        f"δ={total.delta:g} with the ε={before.epsilon:.4g} at δ={before.delta:g} that "
        f"{before.num_runs} runs on these records have spent or reserved",
        allowed=f"ε={policy.budget_epsilon:g} at δ={policy.budget_delta:g} for ever",
        way_out="plan for less"
        + (
            f", or close those of {still_open} open runs that will not be gone on with"
            if still_open
            else ""
        ),
    )
