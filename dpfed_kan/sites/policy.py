"""A site's policy: what it allows any study, and the refusal that names the rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dpfed_kan._validate import check_choice, check_count, check_number, check_positive
from dpfed_kan.privacy.joint_sampling import FixedSize
from dpfed_kan.privacy.mechanism import (
    NEIGHBORING_RELATIONS,
    PRIVACY_UNITS,
    Mechanism,
    NeighboringRelation,
    PrivacyUnit,
)
from dpfed_kan.sites.plan import Plan, check_sha256

PlansChosen = Literal["adaptively", "in_advance"]


class PlanRefused(ValueError):
    """A site says no; the text holds public facts only and may travel.

    Args:
        rule: Of the policy, by its name there.
        asked: What the study asks for.
        allowed: What the site allows.
        way_out: What can be done.
    """

    def __init__(self, *, rule: str, asked: str, allowed: str, way_out: str) -> None:
        super().__init__(
            f"refused by the site's rule {rule}: the study asks for {asked}, the site allows "
            f"{allowed}; {way_out}"
        )
        self.rule, self.asked, self.allowed = rule, asked, allowed


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What a site allows: the stricter of it and the study wins.

    Args:
        budget_epsilon: ε that all runs together may spend of any record of this site, for ever.
        budget_delta: δ of the same; each run takes its study's δ of it, twice if it may be charged
            less for stopping early.
        min_records: Fewest records (or patients, where they are the unit) to train on.
        allowed_plans: Hashes that `dpfed-kan plan` prints; "any" to approve every plan unseen.
        privacy_unit: What must be protected; patients under replace_one cover records too.
        max_sampling_prob: The largest share of the records that may be expected in a round.
        metrics_may_leave: Whether measurements on this site's records may leave it.
        neighboring_relation: What the budget is stated in; replace_one covers zero_out.
        plans_chosen: "adaptively" if a later plan may depend on what earlier runs released: runs
            then add up. "in_advance" is this site's word that all plans were fixed before the
            first run; whole runs then compose, which is less.
        allow_seeded_streams: Whether batches may be drawn from a declared seed: for trials only.
    """

    budget_epsilon: float
    budget_delta: float
    min_records: int
    allowed_plans: tuple[str, ...] | Literal["any"]
    privacy_unit: PrivacyUnit
    max_sampling_prob: float
    metrics_may_leave: bool
    neighboring_relation: NeighboringRelation = "zero_out"
    plans_chosen: PlansChosen = "adaptively"
    allow_seeded_streams: bool = False

    def __post_init__(self) -> None:
        check_positive("budget_epsilon", self.budget_epsilon)
        for name in ("budget_delta", "max_sampling_prob"):
            closed = name == "max_sampling_prob"
            value = getattr(self, name)
            check_number(name, value, low=0.0, high=1.0, low_open=True, high_open=not closed)
        check_count("min_records", self.min_records)
        check_choice("privacy_unit", self.privacy_unit, PRIVACY_UNITS)
        if self.neighboring_relation == "add_remove":
            raise ValueError(
                "neighboring_relation=add_remove can be promised by no run, which publishes the "
                "sites' sizes and divides by them: use zero_out or replace_one"
            )
        check_choice("neighboring_relation", self.neighboring_relation, NEIGHBORING_RELATIONS)
        check_choice("plans_chosen", self.plans_chosen, ("adaptively", "in_advance"))
        for name in ("metrics_may_leave", "allow_seeded_streams"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"expected {name} to be true or false")
        if self.allowed_plans == "any":
            return
        if isinstance(self.allowed_plans, str):
            raise ValueError("expected allowed_plans to be a list of plan hashes, or any")
        for plan_hash in self.allowed_plans:
            check_sha256("each of allowed_plans", plan_hash)

    def check(self, plan: Plan, *, site: str) -> None:
        """Refuse a plan that breaks a rule, the budget apart: the ledger keeps that.

        Args:
            plan: What the study asks for.
            site: This site's name in the plan.

        Raises:
            PlanRefused: Naming the first rule that is broken.
        """
        mechanism = plan.mechanism
        if all(known.name != site for known in plan.sites):
            raise PlanRefused(
                rule="allowed_plans",
                asked=f"a plan without the site {site!r}",
                allowed="plans that name it with its size only",
                way_out="put this site in the plan",
            )
        if self.allowed_plans != "any" and plan.sha256 not in self.allowed_plans:
            raise PlanRefused(
                rule="allowed_plans",
                asked=f"the plan {plan.sha256}",
                allowed=f"{len(self.allowed_plans)} other plans",
                way_out="look the plan over (`dpfed-kan plan`) and add its hash to allowed_plans",
            )
        if not unit_covers(mechanism, self.privacy_unit):
            raise PlanRefused(
                rule="privacy_unit",
                asked=f"protection of one {mechanism.privacy_unit}",
                allowed=f"protection of one {self.privacy_unit}",
                way_out=f"plan with privacy.privacy_unit={self.privacy_unit}",
            )
        if not relation_covers(mechanism.neighboring_relation, self.neighboring_relation):
            raise PlanRefused(
                rule="neighboring_relation",
                asked=mechanism.neighboring_relation,
                allowed=self.neighboring_relation,
                way_out=f"plan with privacy.neighboring_relation={self.neighboring_relation}",
            )
        here = plan.num_records(site)
        if here < self.min_records:
            raise PlanRefused(
                rule="min_records",
                asked=f"training on {here} {mechanism.privacy_unit}s",
                allowed=f"no fewer than {self.min_records}",
                way_out="leave this site out of the study",
            )
        share = sampling_share(plan, site=site)
        if share > self.max_sampling_prob:
            raise PlanRefused(
                rule="max_sampling_prob",
                asked=f"{share:.4g} of its {mechanism.privacy_unit}s in a round",
                allowed=f"at most {self.max_sampling_prob:.4g}",
                way_out="plan with smaller batches",
            )
        if plan.metrics_leave and not self.metrics_may_leave:
            raise PlanRefused(
                rule="metrics_may_leave",
                asked="measurements on the site's records",
                allowed="none to leave",
                way_out="plan with measurements on other records",
            )


def sampling_share(plan: Plan, *, site: str) -> float:
    """Return the share of a site's units that is expected in a round, which is public."""
    here = plan.num_records(site)
    joint = isinstance(plan.mechanism.sampling, FixedSize)
    drawn_from = sum(known.num_records for known in plan.sites) if joint else here
    return plan.mechanism.sampling.expected_batch_size(drawn_from) / drawn_from


def unit_covers(given: Mechanism, wanted: PrivacyUnit) -> bool:
    """Whether a mechanism that protects its unit protects another.

    A patient less one record is another contribution of the same patient, not none: only
    replace-one of patients covers a record.
    """
    if given.privacy_unit == wanted:
        return True
    return given.privacy_unit == "patient" and given.neighboring_relation == "replace_one"


def relation_covers(given: NeighboringRelation, wanted: NeighboringRelation) -> bool:
    """Whether ε under one relation is at least ε under the other.

    Replacing a contribution by any other of the same length covers replacing it by zero.
    """
    return given == wanted or (given, wanted) == ("replace_one", "zero_out")
