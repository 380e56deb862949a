"""Sites that sample at different rates: a guarantee for each, the worst one as the headline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dpfed_kan.privacy.accounting.guarantee import NonPrivate, PrivacyGuarantee
from dpfed_kan.privacy.accounting.several_sites import account
from dpfed_kan.privacy.joint_sampling import FixedSize
from dpfed_kan.privacy.mechanism import Mechanism


@dataclass(frozen=True, kw_only=True)
class SitesGuarantee:
    """What every site's records are guaranteed.

    Args:
        sites: By site; each covers that site's own records, with its own inclusion probability.
        worst_site: The site with the largest ε.
    """

    sites: Mapping[str, PrivacyGuarantee | NonPrivate]
    worst_site: str

    @property
    def epsilon(self) -> float:
        """ε of the worst site: the headline."""
        return self.sites[self.worst_site].epsilon

    @property
    def sentence(self) -> str:
        """The worst site's guarantee, with its name."""
        return f"at site {self.worst_site}, the worst: {self.sites[self.worst_site].sentence}"


def records_of_account(mechanism: Mechanism, num_records: Mapping[str, int], site: str) -> int:
    """Return the n that a site's account depends on: of all sites if their draw is joint."""
    joint = isinstance(mechanism.sampling, FixedSize)
    return sum(num_records.values()) if joint else num_records[site]


def account_run(
    mechanism: Mechanism,
    *,
    num_records: Mapping[str, int],
    delta: float,
    num_rounds: int | None = None,
    cross_check: bool = False,
) -> SitesGuarantee:
    """Return the guarantee of every site of one run; sites that sample alike share the work.

    Where a unit may have records at several sites, each site's figure is that of the site with
    the fewest: the steps of group privacy go through the unit's other sites, at their rates.

    Args:
        mechanism: Of the run.
        num_records: By site, n_k.
        delta: δ in (0, 1).
        num_rounds: Rounds that happened; None for the whole horizon.
        cross_check: As in `account`.
    """
    done: dict[tuple[Mechanism, int | None], PrivacyGuarantee | NonPrivate] = {}
    sites: dict[str, PrivacyGuarantee | NonPrivate] = {}
    fewest = min(num_records.values(), default=0)
    for site, size in num_records.items():
        met = mechanism.at_site(fewest if mechanism.sites_per_unit > 1 else size)
        joint = isinstance(met.sampling, FixedSize)
        size_of_account = records_of_account(met, num_records, site) if joint else None
        key = (met, size_of_account)
        if key not in done:
            done[key] = account(
                met,
                delta=delta,
                num_rounds=num_rounds,
                num_records=size_of_account,
                cross_check=cross_check,
            )
        sites[site] = done[key]
    worst = max(sites, key=lambda site: sites[site].epsilon)
    return SitesGuarantee(sites=sites, worst_site=worst)


def account_sites(
    mechanisms: Mapping[str, Mechanism],
    *,
    delta: float,
    num_rounds: int | None = None,
    num_records: Mapping[str, int] | None = None,
    quick: bool = False,
) -> SitesGuarantee:
    """Return the guarantee of every site's records, q_k by q_k.

    Args:
        mechanisms: By site, with that site's inclusion probability (never the pooled one).
        delta: δ in (0, 1).
        num_rounds: Rounds that happened; None for the whole horizon.
        num_records: By site, n_k; δ must be below every 1/n_k.
        quick: Only the bounds that take milliseconds.

    Raises:
        ValueError: If there are no sites, δ is too large for one, which is named, or a unit may
            have records at several sites: `account_run` knows the rates of the others.
    """
    if not mechanisms:
        raise ValueError("expected at least one site to account for")
    if any(mechanism.sites_per_unit > 1 for mechanism in mechanisms.values()):
        raise ValueError("a unit with records at several sites is accounted for by account_run")
    guarantees: dict[str, PrivacyGuarantee | NonPrivate] = {}
    for site, mechanism in mechanisms.items():
        try:
            guarantees[site] = account(
                mechanism,
                delta=delta,
                num_rounds=num_rounds,
                num_records=None if num_records is None else num_records[site],
                quick=quick,
            )
        except ValueError as error:
            raise ValueError(f"site {site}: {error}") from error
    worst = max(guarantees, key=lambda site: guarantees[site].epsilon)
    return SitesGuarantee(sites=guarantees, worst_site=worst)
