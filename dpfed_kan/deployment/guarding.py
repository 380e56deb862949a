"""Put a site behind its policy and its own ledger, for the plan that the study names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypedDict

from dpfed_kan.data.records import Records
from dpfed_kan.deployment.site_files import SiteFiles
from dpfed_kan.deployment.study import Study
from dpfed_kan.federated.refusal import Refusal
from dpfed_kan.federated.site import Broadcast, Reply, Site
from dpfed_kan.planning import plan_of
from dpfed_kan.policy_file import load_policy
from dpfed_kan.sites.data_set import DataSet, SiteKey, identify
from dpfed_kan.sites.guard import GuardedSite, check_run, open_site
from dpfed_kan.sites.heads import LedgerError
from dpfed_kan.sites.ledger import SiteLedger
from dpfed_kan.sites.plan import Plan
from dpfed_kan.sites.policy import PlanRefused, Policy

_LEDGER_SAYS_NO = "the ledger of this site says no, its own log says why"


def guard(site: Site, *, files: SiteFiles, study: Study, train: Records) -> GuardedSite:
    """Say yes or no to the study's plan by the site's policy, and set its price aside.

    Args:
        site: That would do the work.
        files: With the site's policy.
        study: With the sizes of all sites, so that its plan can be written down.
        train: What the site trains on.

    Raises:
        Refusal: Naming the rule that is broken.
        ValueError: If the policy or the key cannot be used; for the site's own eyes.
    """
    with _told():
        return open_site(site, **_asked(site, files=files, study=study, train=train))


def approve(site: Site, *, files: SiteFiles, study: Study, train: Records) -> None:
    """Say no to the study's plan where `guard` would; nothing is set aside yet.

    Args:
        site: As in `guard`, like all others.
        files: With the site's policy.
        study: With the sizes of all sites.
        train: What the site trains on.

    Raises:
        Refusal: Naming the rule that is broken.
        ValueError: If the policy or the key cannot be used; for the site's own eyes.
    """
    with _told():
        asked = _asked(site, files=files, study=study, train=train)
        with closing(asked["ledger"].chain):
            check_run(site, **asked)


class _Asked(TypedDict):
    run: str
    plan: Plan
    policy: Policy
    ledger: SiteLedger
    data_set: DataSet


def _asked(site: Site, *, files: SiteFiles, study: Study, train: Records) -> _Asked:
    if files.policy is None or study.num_records is None:
        raise ValueError("a guard needs the site's policy and the sizes of the plan")
    policy = load_policy(files.policy)
    key = _key(files.ledger_key)
    return {
        "run": study.run_id,
        "plan": plan_of(
            study.experiment,
            mechanism=study.experiment.mechanism(study.num_records),
            num_records=study.num_records,
            num_params=site.gradients.num_params,
            like=train,
            metrics_leave=study.source.share_metrics,
        ),
        "policy": policy,
        "ledger": SiteLedger(files.ledger, key=key),
        "data_set": identify(train, key=key),
    }


def answer(site: GuardedSite, broadcast: Broadcast) -> Reply:
    """Answer a broadcast; what it spends is on the site's disk first.

    Raises:
        Refusal: If the plan or the ledger says no.
    """
    with _told():
        return site.work(broadcast)


@contextmanager
def _told() -> Iterator[None]:
    """Have a no travel: the rule in words of this program, of the ledger only that it says no."""
    try:
        yield
    except PlanRefused as refused:
        raise Refusal(
            f"rule {refused.rule}: the study asks for {refused.asked}, the site allows "
            f"{refused.allowed}"
        ) from refused
    except LedgerError as error:
        raise Refusal(_LEDGER_SAYS_NO) from error


def _key(path: Path) -> SiteKey:
    return SiteKey.load(path) if path.exists() else SiteKey.create(path)
