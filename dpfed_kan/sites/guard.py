"""A site that has said yes once, and keeps to it: every reply is paid for before it leaves."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dpfed_kan.federated.site import Broadcast, Reply, Site
from dpfed_kan.privacy.clipping import Vector
from dpfed_kan.sites.data_set import DataSet
from dpfed_kan.sites.entries import RunEntry
from dpfed_kan.sites.ledger import Request, SiteLedger
from dpfed_kan.sites.plan import Plan, canonical
from dpfed_kan.sites.policy import PlanRefused, Policy


@dataclass(frozen=True, kw_only=True)
class GuardedSite:
    """A site behind its ledger; made by `open_site`.

    Args:
        site: That does the work.
        run: Name of the run.
        plan: That was approved.
        ledger: The site's own.
    """

    site: Site = field(repr=False)
    run: str
    plan: Plan
    ledger: SiteLedger = field(repr=False)

    def work(self, broadcast: Broadcast) -> Reply:
        """Answer a broadcast, as `Site.work`.

        Guarantees:
            When a reply is returned, its spending is on the disk. The same broadcast again has
            the same reply, spent once; another one for a round that was answered has none.

        Raises:
            LedgerError: If the round may not be answered (again), or it cannot be written down.
            PlanRefused: If the broadcast asks for what the plan does not say.
            ValueError: If the broadcast does not fit the model.
        """
        if broadcast.transform is not None and not self.plan.clips_in_transform:
            raise PlanRefused(
                rule="allowed_plans",
                asked="clipping in a transform",
                allowed="the approved plan, which has none",
                way_out="have a plan with clips_in_transform approved",
            )
        if broadcast.params.shape != (self.plan.num_params,):
            raise ValueError(
                f"expected params of shape ({self.plan.num_params},), as planned, got "
                f"{broadcast.params.shape}"
            )
        said = self.ledger.key.digest("broadcast", _bytes_of(broadcast, self.site.name))
        self.ledger.check_round(self.run, broadcast.round_index, broadcast=said)
        reply = self.site.work(broadcast)
        answer = self.ledger.key.digest("reply", _vector_bytes(reply.value))
        self.ledger.commit(self.run, broadcast.round_index, broadcast=said, reply=answer)
        return reply

    def close(self) -> RunEntry:
        """End the run at this site for good; rounds that were not answered are given back."""
        return self.ledger.close_run(self.run)


def open_site(
    site: Site,
    *,
    run: str,
    plan: Plan,
    policy: Policy,
    ledger: SiteLedger,
    data_set: DataSet,
) -> GuardedSite:
    """Say yes or no to a run, before any record is touched for it.

    Guarantees:
        When this returns, the plan has passed every rule of the policy and its worst case is set
        aside, durably. The site's gradients were not asked for anything.

    Args:
        site: That would do the work, over exactly the records that `data_set` identifies.
        run: Name of the run, the same after a crash and never used for another.
        plan: That the study asks for.
        policy: The site's.
        ledger: The site's.
        data_set: Of the site's records.

    Raises:
        PlanRefused: Naming the rule that is broken.
        LedgerError: If the run cannot be gone on with, or the ledger not be written.
    """
    ledger.reserve(_asked(site, run, plan, policy, ledger, data_set))
    return GuardedSite(site=site, run=run, plan=plan, ledger=ledger)


def check_run(
    site: Site,
    *,
    run: str,
    plan: Plan,
    policy: Policy,
    ledger: SiteLedger,
    data_set: DataSet,
) -> None:
    """Say no to a run wherever `open_site` would now; nothing is set aside, nothing promised.

    Args:
        site: As in `open_site`, like all others.
        run: Name of the run.
        plan: That the study asks for.
        policy: The site's.
        ledger: The site's.
        data_set: Of the site's records.

    Raises:
        PlanRefused: Naming the rule that is broken.
        LedgerError: If the run cannot be gone on with.
    """
    ledger.check(_asked(site, run, plan, policy, ledger, data_set))


def _asked(
    site: Site, run: str, plan: Plan, policy: Policy, ledger: SiteLedger, data_set: DataSet
) -> Request:
    """Return what is asked of the ledger, after every other rule."""
    policy.check(plan, site=site.name)
    _check_seed(site, policy)
    _check_site(site, plan, data_set)
    return Request(
        run=run,
        plan=plan,
        site=site.name,
        policy=policy,
        data_set=data_set,
        streams=ledger.key.digest("streams", site.streams.key),
        streams_are_seeded=site.streams.seeded,
    )


def _check_seed(site: Site, policy: Policy) -> None:
    if site.streams.seeded and not policy.allow_seeded_streams:
        raise PlanRefused(
            rule="allow_seeded_streams",
            asked="batches drawn from a declared seed",
            allowed="batches that nobody can predict",
            way_out="run without a seed; a trial on records that need no protection may set "
            "allow_seeded_streams: true",
        )


def _check_site(site: Site, plan: Plan, data_set: DataSet) -> None:
    """Refuse a site that would work otherwise than the plan says.

    Raises:
        PlanRefused: Naming what differs.
    """
    mechanism = plan.mechanism.at_site(plan.num_records(site.name))
    unit = mechanism.privacy_unit
    differing = (
        ("records", plan.num_records(site.name), site.num_records),
        ("records", plan.num_records(site.name), data_set.num_units(unit)),
        ("unit", unit, "record" if site.patients is None else "patient"),
        ("sampling", mechanism.sampling, site.sampling),
        ("l2_clip_norm", mechanism.l2_clip_norm, site.l2_clip_norm),
        ("columns", plan.columns_sha256, data_set.columns_sha256),
    )
    for name, planned, found in differing:
        if planned != found:
            raise PlanRefused(
                rule="allowed_plans",
                asked=f"{name} {planned}",
                allowed=f"what this site is set up for: {found}",
                way_out="set the site up as the plan says, or plan for what it has",
            )


def _bytes_of(broadcast: Broadcast, site: str) -> bytes:
    """Return all that this site is told, in one way."""
    count = None if broadcast.counts is None else broadcast.counts.get(site)
    parts = [_vector_bytes(broadcast.params)]
    if broadcast.transform is not None:
        parts += [
            _vector_bytes(broadcast.transform.center),
            _vector_bytes(broadcast.transform.scale),
        ]
    head = {
        "round_index": int(broadcast.round_index),
        "count": count,
        "lengths": [len(part) for part in parts],
    }
    return canonical(head).encode() + b"\0" + b"".join(parts)


def _vector_bytes(vector: Vector) -> bytes:
    return np.ascontiguousarray(vector, dtype="<f8").tobytes()
