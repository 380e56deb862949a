"""What a site's records have spent over all runs, from the site's own ledger."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from dpfed_kan.sites.budget import comparable, spent_together
from dpfed_kan.sites.chain import Chain
from dpfed_kan.sites.entries import RunEntry, read_runs
from dpfed_kan.sites.policy import Policy
from dpfed_kan.sites.spending import Charged, Spending, together
from dpfed_kan.sites.verifying import verify


def spent_to_date(path: Path, *, plan_sha256: str, policy: Policy | None) -> dict[str, Any]:
    """Return what the records that a site trained this plan on have spent, and what is left.

    Args:
        path: Of the site's ledger.
        plan_sha256: Of the run that is reported.
        policy: Of the site, which states its budget; None leaves it open what is left.

    Raises:
        ValueError: If the ledger fails, or holds no run of this plan.
    """
    with closing(Chain(path)) as chain:
        found = verify(chain)
        if found.bad_row is not None:
            raise ValueError(f"{path}, row {found.bad_row}: {found.problem}")
        entries = read_runs(chain)
        here = [entry for entry in entries if entry.plan.sha256 == plan_sha256]
        if not here:
            raise ValueError(
                f"{path} holds no run of this plan, {plan_sha256}: give the ledger of a site that "
                f"took part (`dpfed-kan ledger show {path}` lists its runs)"
            )
        sharing = chain.overlapping(here[-1].data_set)
        related = [entry for entry in entries if entry.data_set in sharing]
    total = _total(related, policy)
    mechanism = here[-1].plan.mechanism
    return {
        "site": here[-1].site,
        "epsilon": total.epsilon,
        "delta": total.delta,
        "num_runs": total.num_runs,
        "method": total.method,
        "unit": mechanism.privacy_unit,
        "neighboring_relation": mechanism.neighboring_relation,
        "budget_epsilon": None if policy is None else policy.budget_epsilon,
        "budget_delta": None if policy is None else policy.budget_delta,
        "left_epsilon": None if policy is None else max(0.0, policy.budget_epsilon - total.epsilon),
        "left_delta": None if policy is None else max(0.0, policy.budget_delta - total.delta),
        "ledger_head": found.head,
    }


def _total(related: list[RunEntry], policy: Policy | None) -> Spending:
    if policy is not None:
        return spent_together(comparable(related, policy), policy)
    terms = {
        (entry.plan.mechanism.privacy_unit, entry.plan.mechanism.neighboring_relation)
        for entry in related
    }
    if len(terms) > 1:
        raise ValueError(
            "runs on these records promised different things, "
            + "; ".join(f"one {unit} under {relation}" for unit, relation in sorted(terms))
            + ": give the site's policy, whose unit and relation decide whether they add up"
        )
    charged = [
        Charged(plan=entry.plan, site=entry.site, charge=entry.charge, whole=entry.whole)
        for entry in related
    ]
    return together(charged, plans_chosen="adaptively", budget_delta=1.0)
