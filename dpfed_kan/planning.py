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
from dpfed_kan.simulated_sites import SimulatedSites

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


def plan_sites(experiment: Experiment) -> tuple[list[SitePlan], dict[str, str]]:
    """Load the data and account for the whole horizon; nothing is trained.

    Returns:
        A row for each site in the order of names, and the sites left out with the reason.

    Raises:
        ValueError: If the experiment cannot be run.
    """
    sites = SimulatedSites(experiment, experiment.streams())
    sizes = sites.num_records
    mechanism = experiment.mechanism(sizes)
    found = account_run(mechanism, num_records=sizes, delta=experiment.privacy.target_delta)
    joint = isinstance(mechanism.sampling, FixedSize)
    rows = [
        SitePlan(
            site=site,
            num_records=len(shard),
            num_units=sites.num_records[site],
            class_shares=_class_shares(shard),
            expected_share=mechanism.sampling.expected_batch_size(drawn_from) / drawn_from,
            epsilon=found.sites[site].epsilon,
        )
        for site, shard in sites.federation.shards.items()
        for drawn_from in [sum(sizes.values()) if joint else sizes[site]]
    ]
    return rows, dict(sites.federation.left_out)


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
            "∞" if math.isinf(row.epsilon) else f"{row.epsilon:.3f}",
        )
    return table


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
