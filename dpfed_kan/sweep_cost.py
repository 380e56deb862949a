"""What it costs a record that all runs of a sweep were looked at, and the best one chosen."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dpfed_kan.config import build
from dpfed_kan.experiment import Experiment
from dpfed_kan.privacy.accounting import composition
from dpfed_kan.privacy.accounting.sites import records_of_account
from dpfed_kan.privacy.ledger import describe, read_spent
from dpfed_kan.privacy.mechanism import Mechanism
from dpfed_kan.statement.tuned import FILE_NAME
from dpfed_kan.sweep import Sweep, read_config


@dataclass(frozen=True, kw_only=True)
class SweepCost:
    """The composed cost of a sweep.

    Args:
        epsilon: Upper bound on ε of all runs together.
        delta: Its δ, the least of the runs'.
        num_runs: Runs that released something: each is a look at the records.
        num_rounds: Rounds of all of them.
        largest: The largest ε that one of the finished runs reports.
        method: How the runs were composed.
        protects: Of what: unit and neighboring relation.
        sharing_noise: Runs that have their declared seed, and so their noise, in common with
            another: what they would cost with noise of their own is stated, not what they cost.
    """

    epsilon: float
    delta: float
    num_runs: int
    num_rounds: int
    largest: float
    method: str
    protects: str
    sharing_noise: int

    @property
    def sentence(self) -> str:
        """What choosing costs, in two or three sentences."""
        together = "∞" if math.isinf(self.epsilon) else f"{self.epsilon:.4g}"
        one = "∞" if math.isinf(self.largest) else f"{self.largest:.4g}"
        one = f" (at most {one} here)" if self.largest > 0 else ""
        return (
            f"Choosing the best run is not covered by the ε of one run{one}. If all were on the "
            "same records, and the runs and their rounds were fixed before the first, the "
            f"{self.num_runs} runs that released anything ({self.num_rounds} rounds; every seed, "
            f"failed and unfinished runs too) together cost {self.protects} ε ≤ {together} at "
            f"δ={self.delta:g}, whichever is chosen; accountant: {self.method}." + self._shared
        )

    @property
    def _shared(self) -> str:
        if not self.sharing_noise:
            return ""
        return (
            f" That is with fresh noise in each: {self.sharing_noise} of them share a declared "
            "seed and so their noise, which cancels between two of them. As simulations they "
            "protect nobody; without seed= each run has noise of its own."
        )


def composed_cost(sweep: Sweep) -> SweepCost | None:
    """Return the cost of a sweep on the same records, or None if nothing was released.

    Failed and unfinished runs count with the rounds that they released; runs of different seeds
    are different looks. Each run enters as its worst site meets it, at the least δ of all.

    Guarantees:
        An upper bound on ε of the whole sweep, the choice of its best run included, if the
        sweep was fixed before it began, none of its runs was stopped because of what it showed,
        and each had noise of its own (CASES.md P12).

    Raises:
        ValueError: If a run's ledger is not of its configuration, or the runs do not compose.
    """
    repetitions: dict[tuple[Mechanism, int], int] = {}
    deltas, sizes = [], []
    seeds: Counter[int] = Counter()
    for run in sweep.runs:
        ledger = run.path / "ledger.jsonl"
        if not ledger.is_file():
            continue
        experiment: Experiment = build(read_config(run.path))
        plan, num_rounds = read_spent(ledger)
        mechanism = _of_plan(experiment, plan, ledger)
        num_records = {site: int(number) for site, number in plan["num_records"].items()}
        smallest = min(num_records, key=lambda site: num_records[site])
        met = mechanism.at_site(num_records[smallest])
        if met.noise_multiplier > 0:
            met = replace(met, l2_clip_norm=1.0)  # of which ε is independent
        if num_rounds > 0:
            repetitions[met, num_rounds] = repetitions.get((met, num_rounds), 0) + 1
            if experiment.seed is not None:
                seeds[experiment.seed] += 1
        deltas.append(experiment.privacy.target_delta)
        sizes.append(records_of_account(mechanism, num_records, smallest))
    if not repetitions:
        return None
    looks = [
        composition.Run(mechanism=mechanism, num_rounds=num_rounds, repetitions=number)
        for (mechanism, num_rounds), number in repetitions.items()
    ]
    bound = composition.compose(looks, delta=min(deltas), num_records=min(sizes))
    return SweepCost(
        epsilon=bound.epsilon,
        delta=min(deltas),
        num_runs=sum(repetitions.values()),
        num_rounds=sum(look.num_rounds * look.repetitions for look in looks),
        largest=max((run.metrics.get("epsilon", 0.0) for run in sweep.runs), default=0.0),
        method=bound.method,
        protects=_protects(looks[0].mechanism),
        sharing_noise=sum(number for number in seeds.values() if number > 1),
    )


def _protects(mechanism: Mechanism) -> str:
    return f"one {mechanism.privacy_unit} under {mechanism.neighboring_relation} neighbors"


def leave_cost(sweep: Sweep, cost: SweepCost | None) -> None:
    """Leave a sweep's cost beside each run that released anything, for `dpfed-kan report` to state.

    Where the cost could not be found (None), what an earlier summary has left is removed.

    Args:
        sweep: As read.
        cost: Its own.

    Raises:
        ValueError: If a run's directory cannot be written to.
    """
    for run in sweep.runs:
        path = run.path / FILE_NAME
        try:
            if cost is None:
                path.unlink(missing_ok=True)
            elif (run.path / "ledger.jsonl").is_file():
                content = asdict(cost)
                if math.isinf(cost.epsilon):
                    content["epsilon"] = "infinity"
                path.write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")
        except OSError as error:
            raise ValueError(f"{path} cannot be written: {os.strerror(error.errno or 0)}") from None


def _of_plan(experiment: Experiment, plan: Mapping[str, Any], ledger: Path) -> Mechanism:
    """Return the experiment's mechanism with the noise multiplier that the ledger holds.

    Raises:
        ValueError: If that is not the ledger's mechanism.
    """
    multiplier = float(plan["plan"]["noise"]["noise_multiplier"])
    if multiplier > 0:
        experiment = replace(
            experiment,
            noise=replace(experiment.noise, noise_multiplier=multiplier),
            privacy=replace(experiment.privacy, target_epsilon=None),
        )
    mechanism = experiment.mechanism(plan["num_records"])
    if json.loads(json.dumps(describe(mechanism))) != plan["plan"]:
        raise ValueError(f"{ledger} was not written under the config.yaml beside it")
    return mechanism
