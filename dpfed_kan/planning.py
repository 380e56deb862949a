"""What a federation looks like before training: a row for each site, all that it is private about.

Class shares are facts about records: for simulations and for a site's own eyes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.table import Table

from dpfed_kan.data.records import Records
from dpfed_kan.experiment import Experiment
from dpfed_kan.privacy.accounting.sites import account_run
from dpfed_kan.privacy.joint_sampling import FixedSize
from dpfed_kan.privacy.ledger import describe
from dpfed_kan.privacy.mechanism import Mechanism
from dpfed_kan.simulated_sites import SimulatedSites
from dpfed_kan.sites.plan import Plan, SiteSize, columns_hash

_NEEDS_PLOTS = "a heat map needs the extra: pip install 'dpfed-kan[plots]'"


@dataclass(frozen=True, kw_only=True)
class SitePlan:
    """One site.

    Args:
        site: Its name.
        num_records: Records it trains on.
        num_units: n_k, in units of privacy.
        positive_share: Of its labels.
        expected_share: q_k, the expected share of n_k that joins a round.
        epsilon: ε_k of the whole horizon.
    """

    site: str
    num_records: int
    num_units: int
    positive_share: float
    expected_share: float
    epsilon: float


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A federation before training.

    Args:
        rows: One for each site, in the order of names.
        left_out: Sites left out, with the reason.
        plan: What each site is asked to approve.
    """

    rows: tuple[SitePlan, ...]
    left_out: Mapping[str, str]
    plan: Plan


def plan_sites(experiment: Experiment) -> Planned:
    """Load the data and account for the whole horizon; nothing is trained.

    Raises:
        ValueError: If the experiment cannot be run.
    """
    sites = SimulatedSites(experiment, experiment.streams())
    sizes = sites.num_records
    mechanism = experiment.mechanism(sizes)
    found = account_run(mechanism, num_records=sizes, delta=experiment.privacy.target_delta)
    joint = isinstance(mechanism.sampling, FixedSize)
    rows = tuple(
        SitePlan(
            site=site,
            num_records=len(shard),
            num_units=sites.num_records[site],
            positive_share=float((shard.labels > 0).mean()),
            expected_share=mechanism.sampling.expected_batch_size(drawn_from) / drawn_from,
            epsilon=found.sites[site].epsilon,
        )
        for site, shard in sites.federation.shards.items()
        for drawn_from in [sum(sizes.values()) if joint else sizes[site]]
    )
    plan = plan_of(
        experiment,
        mechanism=mechanism,
        num_records=sizes,
        num_params=len(sites.params.trainable),
        like=sites.federation.held_out,
        metrics_leave=False,
    )
    return Planned(rows=rows, left_out=dict(sites.federation.left_out), plan=plan)


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


def as_table(rows: Sequence[SitePlan], *, unit: str) -> Table:
    """Return the plan as a table for people."""
    table = Table(title="Sites before training (class shares: facts about records, not private)")
    table.add_column("site")
    for name in (f"{unit}s n_k", "of records", "class +1", "class -1", "q_k", "ε_k"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.site,
            str(row.num_units),
            str(row.num_records),
            f"{row.positive_share:.1%}",
            f"{1 - row.positive_share:.1%}",
            f"{row.expected_share:.3g}",
            "∞" if math.isinf(row.epsilon) else f"{row.epsilon:.3f}",
        )
    return table


def save_heat_map(rows: Sequence[SitePlan], path: Path) -> None:
    """Draw sites against classes, shaded by the number of records.

    Raises:
        ValueError: If matplotlib is not installed, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise ValueError(_NEEDS_PLOTS) from None
    positive = np.array([round(row.positive_share * row.num_records) for row in rows])
    counts = np.stack([np.array([row.num_records for row in rows]) - positive, positive], axis=1)
    figure = Figure(figsize=(5, 1.5 + 0.35 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(counts, aspect="auto", cmap="Blues", vmin=0)
    axes.set_xticks([0, 1], ["class -1", "class +1"])
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
