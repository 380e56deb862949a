"""What a federation looks like before training: sizes, q_k, ε_k; and class shares.

Class shares are facts about records: for simulations and for a site's own eyes. `Planned`, which
every run shows, is without them: all of it is public.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from dpfed_kan.data.records import Records
from dpfed_kan.experiment import Experiment
from dpfed_kan.privacy.accounting.guarantee import NonPrivate, PrivacyGuarantee
from dpfed_kan.privacy.accounting.sites import account_run
from dpfed_kan.privacy.joint_sampling import expected_shares
from dpfed_kan.privacy.ledger import describe
from dpfed_kan.privacy.mechanism import Mechanism, PrivacyUnit
from dpfed_kan.simulated_sites import SimulatedSites
from dpfed_kan.sites.plan import Plan, SiteSize, columns_hash

_SITES_SHOWN = 20
_NEEDS_PLOTS = "a heat map needs the extra: pip install 'dpfed-kan[plots]'"


@dataclass(frozen=True, kw_only=True)
class SitePlan:
    """One site.

    Args:
        site: Its name.
        num_records: Records it trains on.
        num_units: n_k, in units of privacy.
        class_shares: Class to its share of the labels: -1 and +1, or 0 to K-1; empty where
            numbers are to be predicted.
        expected_share: q_k, the expected share of n_k that joins a round.
        epsilon: ε_k of the whole horizon.
    """

    site: str
    num_records: int
    num_units: int
    class_shares: Mapping[str, float]
    expected_share: float
    epsilon: float


@dataclass(frozen=True, kw_only=True)
class Planned:
    """What everybody may know of a run before its first round.

    Args:
        num_records: Site name to n_k, in units of privacy.
        expected_shares: Site name to q_k, the expected share of n_k that joins a round.
        epsilon: Upper bound on ε_k of the whole horizon at every site: the worst site's.
        privacy_unit: What is counted.
        sentence: That guarantee in words: δ, unit, relation, sampling, trust and method.
    """

    num_records: Mapping[str, int]
    expected_shares: Mapping[str, float]
    epsilon: float
    privacy_unit: PrivacyUnit
    sentence: str


def planned(
    mechanism: Mechanism,
    num_records: Mapping[str, int],
    *,
    guarantee: PrivacyGuarantee | NonPrivate,
    privacy_unit: PrivacyUnit,
) -> Planned:
    """Return what is planned, from public facts and an account that was made already."""
    return Planned(
        num_records=num_records,
        expected_shares=expected_shares(mechanism.sampling, num_records),
        epsilon=guarantee.epsilon,
        privacy_unit=privacy_unit,
        sentence=guarantee.sentence,
    )


@dataclass(frozen=True, kw_only=True)
class PlannedFederation:
    """A federation before training.

    Args:
        rows: One for each site, in the order of names.
        left_out: Sites left out, with the reason.
        plan: What each site is asked to approve.
    """

    rows: tuple[SitePlan, ...]
    left_out: Mapping[str, str]
    plan: Plan


def plan_sites(experiment: Experiment) -> PlannedFederation:
    """Load the data and account for the whole horizon; nothing is trained.

    Raises:
        ValueError: If the experiment cannot be run.
    """
    sites = SimulatedSites(experiment, experiment.streams())
    sizes = sites.num_records
    mechanism = experiment.mechanism(sizes)
    found = account_run(mechanism, num_records=sizes, delta=experiment.privacy.target_delta)
    shares = expected_shares(mechanism.sampling, sizes)
    rows = tuple(
        SitePlan(
            site=site,
            num_records=len(shard),
            num_units=sites.num_records[site],
            class_shares=_class_shares(shard),
            expected_share=shares[site],
            epsilon=found.sites[site].epsilon,
        )
        for site, shard in sites.federation.shards.items()
    )
    plan = plan_of(
        experiment,
        mechanism=mechanism,
        num_records=sizes,
        num_params=len(sites.params.trainable),
        like=sites.federation.held_out,
        metrics_leave=False,
    )
    return PlannedFederation(rows=rows, left_out=dict(sites.federation.left_out), plan=plan)


def plan_of(
    experiment: Experiment,
    *,
    mechanism: Mechanism,
    num_records: Mapping[str, int],
    num_params: int,
    like: Records,
    metrics_leave: bool,
) -> Plan:
    """Return what each site is asked to approve.

    Args:
        experiment: Of the study.
        mechanism: Its noise calibrated.
        num_records: Site name to n_k, in units of privacy.
        num_params: D.
        like: Any records of the study, for their columns.
        metrics_leave: Whether sites are asked for measurements on their own records.
    """
    rule = experiment.update
    start = rule.start(np.zeros(num_params), num_rounds=experiment.num_rounds)
    return Plan(
        mechanism=mechanism,
        target_delta=experiment.privacy.target_delta,
        sites=tuple(SiteSize(name=name, num_records=n) for name, n in num_records.items()),
        num_params=num_params,
        model=describe(experiment.model),
        update=describe(rule),
        columns_sha256=columns_hash(like.feature_names, like.num_classes),
        clips_in_transform=start.transform is not None,
        metrics_leave=metrics_leave,
    )


def _class_shares(shard: Records) -> dict[str, float]:
    if shard.num_classes is None:
        return {}
    classes = (-1, 1) if shard.num_classes == 2 else range(shard.num_classes)
    signed = shard.num_classes == 2
    return {f"{k:+d}" if signed else str(k): float((shard.labels == k).mean()) for k in classes}


def as_table(rows: Sequence[SitePlan], *, unit: str) -> Table:
    """Return the plan as a table for people."""
    table = Table(title="Sites before training (class shares: facts about records, not private)")
    table.add_column("site")
    classes = [f"class {name}" for name in rows[0].class_shares]
    for name in (f"{unit}s n_k", "of records", *classes, "q_k", "ε_k"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.site,
            str(row.num_units),
            str(row.num_records),
            *(f"{share:.1%}" for share in row.class_shares.values()),
            f"{row.expected_share:.3g}",
            _number(row.epsilon),
        )
    return table


def as_public_table(plan: Planned) -> Table | Text:
    """Return n_k, q_k and ε_k of each site as a table; of many sites, their spread in a line.

    The worst site's ε_k is its own, and a bound for sites that sample their records more seldom:
    `dpfed-kan plan` has theirs.
    """
    sizes, shares = plan.num_records, plan.expected_shares
    epsilon = _number(plan.epsilon)
    if len(sizes) > _SITES_SHOWN:
        spread = [
            " / ".join(f"{of(values):.6g}" for of in (min, median, max))
            for values in (sizes.values(), shares.values())
        ]
        return Text(
            f"Planned for {len(sizes)} sites: {plan.privacy_unit}s n_k {spread[0]}, q_k "
            f"{spread[1]} (least / median / most), ε_k at most {epsilon}"
        )
    table = Table(title="Planned", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("site")
    for name in (f"{plan.privacy_unit}s n_k", "q_k", "ε_k"):
        table.add_column(name, justify="right")
    most = max(shares.values())
    for site, size in sorted(sizes.items()):
        bound = epsilon if math.isclose(shares[site], most) else f"≤ {epsilon}"
        table.add_row(site, str(size), f"{shares[site]:.3g}", bound)
    return table


def _number(epsilon: float) -> str:
    return "∞" if math.isinf(epsilon) else f"{epsilon:.3f}"


def save_heat_map(rows: Sequence[SitePlan], path: Path) -> None:
    """Draw sites against classes, shaded by the number of records.

    Raises:
        ValueError: If matplotlib is not installed, there are no classes, or the file cannot be
            written.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise ValueError(_NEEDS_PLOTS) from None
    names = list(rows[0].class_shares)
    if not names:
        raise ValueError("a heat map needs classes; the labels are numbers to predict")
    shares = np.array([list(row.class_shares.values()) for row in rows])
    counts = np.rint(shares * np.array([[row.num_records] for row in rows])).astype(int)
    size = (4 + 0.5 * len(names), 1.5 + 0.35 * len(rows))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(counts, aspect="auto", cmap="Blues", vmin=0)
    axes.set_xticks(range(len(names)), [f"class {name}" for name in names])
    axes.set_yticks(range(len(rows)), [row.site for row in rows])
    for k, pair in enumerate(counts):
        for j, count in enumerate(pair):
            dark = count > counts.max() / 2
            axes.text(j, k, str(count), ha="center", va="center", color="w" if dark else "k")
    figure.colorbar(image, label="records")
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"the heat map cannot be written to {path}: {error}") from None
