"""`python -m simulations.heart_disease.run ROOT`: the table of this folder's README."""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import numpy as np
from sklearn.metrics import roc_auc_score

from dpfed_kan.data.federation import FederatedData
from dpfed_kan.data.heart_disease import HeartDisease
from dpfed_kan.data.partition import Natural
from dpfed_kan.data.records import Records, concatenate
from dpfed_kan.privacy.clipping import Vector
from dpfed_kan.streams import Streams
from simulations.heart_disease.training import DELTA, Hyperparameters, ModelName, mechanism, train

EPSILONS = (math.inf, 3.0, 1.0, 0.5)
GRID: dict[ModelName, tuple[Hyperparameters, ...]] = {
    "kan": tuple(
        Hyperparameters(learning_rate=eta / clip, l2_clip_norm=clip)
        for eta, clip in itertools.product((0.4, 0.8, 1.6, 3.2, 6.4), (0.1, 0.3))
    ),
    "logistic": tuple(
        Hyperparameters(learning_rate=eta / clip, l2_clip_norm=clip)
        for eta, clip in itertools.product((0.05, 0.1, 0.2, 0.4, 0.8), (0.3, 1.0))
    ),
}
_FOLDS, _TUNING_SEEDS, _VALIDATED = 5, (100, 101), 0.3


def main() -> None:
    """Choose on validation records, train on all training records, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", help="directory of the four processed.*.data files")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--output", type=Path, help="JSON file for the table")
    options = parser.parse_args()
    found = experiment(options.root, seeds=range(options.seeds))
    for row in found:
        print(
            f"{row['model']:8} ε={row['epsilon']!s:8} accuracy {row['accuracy']:.3f} ± "
            f"{row['accuracy_std']:.3f}  AUC {row['auc']:.3f} ± {row['auc_std']:.3f}  "
            f"{row['accuracy_per_hospital']}  {row['chosen']}"
        )
    if options.output is not None:
        options.output.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def experiment(
    root: str,
    *,
    seeds: Iterable[int],
    epsilons: tuple[float, ...] = EPSILONS,
    grid: dict[ModelName, tuple[Hyperparameters, ...]] = GRID,
) -> list[dict[str, Any]]:
    """Return one row for each model and ε: mean and standard deviation over the seeds."""
    data = FederatedData(source=HeartDisease(root=root), partition=Natural(), test_fraction=None)
    federation = data.load(Streams.from_seed(0))
    rows: list[dict[str, Any]] = []
    for name, epsilon in itertools.product(get_args(ModelName), epsilons):
        chosen = choose(name, federation.shards, epsilon, grid[name])
        plan = mechanism(epsilon, l2_clip_norm=chosen.l2_clip_norm)
        measured = []
        for seed in seeds:
            scores, ledger = train(
                name, federation.shards, federation.held_out, chosen=chosen, plan=plan, seed=seed
            )
            measured.append(quality(scores, federation.held_out))
        spent = ledger.spent(delta=DELTA).epsilon
        accuracies = np.array([list(per_hospital.values()) for per_hospital, _ in measured])
        aucs = np.array([auc for _, auc in measured])
        rows.append(
            {
                "model": name,
                "epsilon": "infinity" if math.isinf(epsilon) else epsilon,
                "epsilon_spent": "infinity" if math.isinf(spent) else spent,
                "accuracy": float(accuracies.mean()),
                "accuracy_std": float(accuracies.mean(axis=1).std()),
                "auc": float(aucs.mean()),
                "auc_std": float(aucs.std()),
                "accuracy_per_hospital": {
                    site: round(float(mean), 3)
                    for site, mean in zip(measured[0][0], accuracies.mean(axis=0), strict=True)
                },
                "chosen": asdict(chosen),
            }
        )
    return rows


def choose(
    name: ModelName,
    shards: dict[str, Records],
    epsilon: float,
    grid: tuple[Hyperparameters, ...],
) -> Hyperparameters:
    """Return the hyperparameters of least logistic loss on validation records.

    Each hospital's training records are cut at random into 70 and 30 per cent, five times; the
    test records are not looked at. This choice is not covered by the ε of the training.
    """
    if len(grid) == 1:
        return grid[0]
    plans = {c: mechanism(epsilon, l2_clip_norm=c) for c in {h.l2_clip_norm for h in grid}}
    losses = {candidate: 0.0 for candidate in grid}
    for fold in range(_FOLDS):
        fitted, validated = _cut(shards, np.random.default_rng(fold))
        for candidate, seed in itertools.product(grid, _TUNING_SEEDS):
            plan = plans[candidate.l2_clip_norm]
            scores, _ = train(name, fitted, validated, chosen=candidate, plan=plan, seed=seed)
            losses[candidate] += float(np.logaddexp(0, -validated.labels * scores).mean())
    return min(grid, key=lambda candidate: losses[candidate])


def quality(scores: Vector, records: Records) -> tuple[dict[str, float], float]:
    """Return the accuracy at each hospital and the pooled AUC."""
    right = (scores > 0) == (records.labels > 0)
    per_hospital = {
        str(site): float(right[records.sites == site].mean())
        for site in np.unique(np.asarray(records.sites))
    }
    return per_hospital, float(roc_auc_score(records.labels, scores))


def _cut(
    shards: dict[str, Records], rng: np.random.Generator
) -> tuple[dict[str, Records], Records]:
    fitted, validated = {}, []
    for site, shard in shards.items():
        order = rng.permutation(len(shard))
        num_validated = round(_VALIDATED * len(shard))
        validated.append(shard.take(order[:num_validated]))
        fitted[site] = shard.take(order[num_validated:])
    return fitted, concatenate(validated)


if __name__ == "__main__":
    main()
