"""`python -m simulations.heart_disease.flamby ROOT`: FLamby's two published numbers, a check.

What FLamby ran (its repository owkin/FLamby: dataset.py at f1e0564, config_heart_disease.json at
88fbe60, common.py, fed_benchmark.py): 13 columns, a linear layer and a sigmoid, batches of 4.
Pooled: Adam at 1e-3, 50 epochs, columns standardized by all training records. FedAvg: 15 rounds of
100 local SGD steps at 1e-3, hospitals weighted by their records, each hospital's columns
standardized by its own training records. Either model is tested at each hospital on columns
standardized by that hospital, also the pooled one, which was trained on other columns. The
published .735 and .685 are means over the four hospitals and five seeds. There is no privacy in it.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dpfed_kan.data.encoding import read_records
from dpfed_kan.data.heart_disease import SITES, flamby_held_out, flamby_schema
from dpfed_kan.data.records import Records
from dpfed_kan.data.schema import Categorical, Numeric, Ordinal, Schema
from dpfed_kan.privacy.clipping import Matrix, Vector

_RATE, _BATCH, _EPOCHS = 1e-3, 4, 50
_ROUNDS, _LOCAL_STEPS = 15, 100  # (486 // 4 hospitals // 4) * 50 epochs // 100 steps
_BETA_1, _BETA_2, _TINY = 0.9, 0.999, 1e-8
_SPREAD = 1e-9  # added to the standard deviation, which is 0 for a constant column
_WIDE = 1000.0

# Means over the four hospitals of flamby/results/results_benchmark_fed_heart_disease/
# heart_seed{42,...,46}.csv, "Pooled Training" and "FedAvg100", at a422b61 (42, 45, 46) and
# f553c7a (43, 44).
STORED = {
    "pooled": (0.73914, 0.73433, 0.73674, 0.73433, 0.73193),
    "fedavg": (0.69149, 0.71985, 0.64274, 0.69429, 0.67647),
}


@dataclass(frozen=True, kw_only=True)
class Split:
    """One hospital's FLamby columns and 0/1 labels.

    Args:
        train: Columns of the records to train on.
        train_labels: Their labels.
        test: Columns of the records to test on.
        test_labels: Their labels.
    """

    train: Matrix
    train_labels: Vector
    test: Matrix
    test_labels: Vector


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """What FLamby stores of a run.

    Args:
        hospitals: Mean over the hospitals, each tested on columns standardized by itself.
        pooled: Over all test records, standardized by all training records.
    """

    hospitals: float
    pooled: float


def read_splits(root: str) -> tuple[Split, ...]:
    """Return the four hospitals' records as this package's reader gives them.

    The schema's ranges are widened so that no value is clipped: the published ones clip two.
    """
    schema = replace(
        flamby_schema(),
        columns=tuple(
            replace(column, low=-_WIDE, high=_WIDE, out_of_range="reject")
            if isinstance(column, Numeric)
            else column
            for column in flamby_schema().columns
        ),
    )
    splits = []
    for site in SITES:
        records = read_records(Path(root) / f"processed.{site}.data", schema, site=site)
        held_out = flamby_held_out(records.labels)
        columns, labels = _columns(records, schema), (records.labels > 0).astype(float)
        splits.append(
            Split(
                train=columns[~held_out],
                train_labels=labels[~held_out],
                test=columns[held_out],
                test_labels=labels[held_out],
            )
        )
    return tuple(splits)


def _columns(records: Records, schema: Schema) -> Matrix:
    """Undo the public scaling: FLamby's 13 columns, the first of each category dropped."""
    unit = dict(
        zip(
            records.feature_names,
            (records.features * math.sqrt(len(records.feature_names))).T,
            strict=True,
        )
    )
    columns: list[Vector] = []
    for column in schema.columns:
        match column:
            case Numeric(name=name, low=low, high=high):
                columns.append((unit[name] + 1) / 2 * (high - low) + low)
            case Ordinal(name=name):
                columns.append((unit[name] + 1) / 2)
            case Categorical(name=name, categories=categories):
                columns += [(unit[f"{name}={c}"] + 1) / 2 for c in categories[1:]]
    return np.stack(columns, axis=1).round(9)


def pooled(hospitals: tuple[Split, ...], *, seed: int) -> Accuracy:
    """Train on all training records together."""
    everything = np.concatenate([hospital.train for hospital in hospitals])
    labels = np.concatenate([hospital.train_labels for hospital in hospitals])
    inputs = _standardized(everything, by=everything)
    return _accuracy(_adam(inputs, labels, np.random.default_rng(seed)), hospitals)


def fedavg(hospitals: tuple[Split, ...], *, seed: int) -> Accuracy:
    """Train by federated averaging."""
    rng = np.random.default_rng(seed)
    shards = [
        (_standardized(hospital.train, by=hospital.train), hospital.train_labels)
        for hospital in hospitals
    ]
    batches = [_batches(len(labels), rng) for _, labels in shards]
    weights = np.array([len(labels) for _, labels in shards], dtype=float)
    params = _initial(shards[0][0].shape[1], rng)
    for _ in range(_ROUNDS):
        local = []
        for (inputs, labels), source in zip(shards, batches, strict=True):
            mine = params
            for _ in range(_LOCAL_STEPS):
                batch = next(source)
                mine = mine - _RATE * _gradient(mine, inputs[batch], labels[batch])
            local.append(mine)
        params = np.asarray(np.average(local, axis=0, weights=weights))
    return _accuracy(params, hospitals)


def _accuracy(params: Vector, hospitals: tuple[Split, ...]) -> Accuracy:
    def right(test: Matrix, by: Matrix, labels: Vector) -> float:
        scores = _standardized(test, by=by) @ params
        return float(((scores > 0) == (labels > 0)).mean())

    each = [right(hospital.test, hospital.train, hospital.test_labels) for hospital in hospitals]
    return Accuracy(
        hospitals=float(np.mean(each)),
        pooled=right(
            np.concatenate([hospital.test for hospital in hospitals]),
            np.concatenate([hospital.train for hospital in hospitals]),
            np.concatenate([hospital.test_labels for hospital in hospitals]),
        ),
    )


def _standardized(columns: Matrix, *, by: Matrix) -> Matrix:
    unit = (columns - by.mean(axis=0)) / (by.std(axis=0, ddof=1) + _SPREAD)
    return np.concatenate([unit, np.ones((len(unit), 1))], axis=1)


def _batches(count: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    while True:
        order = rng.permutation(count)
        yield from np.split(order, range(_BATCH, count, _BATCH))


def _gradient(params: Vector, inputs: Matrix, labels: Vector) -> Vector:
    scores = np.clip(inputs @ params, -500, 500)
    return np.asarray(inputs.T @ (1 / (1 + np.exp(-scores)) - labels) / len(labels))


def _initial(dimension: int, rng: np.random.Generator) -> Vector:
    bound = 1 / math.sqrt(dimension - 1)  # torch.nn.Linear's initialization
    return rng.uniform(-bound, bound, size=(dimension,))


def _adam(inputs: Matrix, labels: Vector, rng: np.random.Generator) -> Vector:
    params = _initial(inputs.shape[1], rng)
    first: Vector = np.zeros(len(params))
    second: Vector = np.zeros(len(params))
    batches = _batches(len(inputs), rng)
    for step in range(1, _EPOCHS * math.ceil(len(inputs) / _BATCH) + 1):
        batch = next(batches)
        gradient = _gradient(params, inputs[batch], labels[batch])
        first = _BETA_1 * first + (1 - _BETA_1) * gradient
        second = _BETA_2 * second + (1 - _BETA_2) * gradient**2
        mean = first / (1 - _BETA_1**step)
        scale = np.sqrt(second / (1 - _BETA_2**step)) + _TINY
        params = params - _RATE * mean / scale
    return np.asarray(params)


def compare(root: str, *, seeds: Iterable[int]) -> dict[str, dict[str, float]]:
    """Return, for each method, what FLamby stored and what was found here over the seeds.

    Returns:
        Means and standard deviations, and the difference in standard errors of the two means.
    """
    hospitals = read_splits(root)
    found: dict[str, dict[str, float]] = {}
    for name, train in (("pooled", pooled), ("fedavg", fedavg)):
        runs = [train(hospitals, seed=seed) for seed in seeds]
        ours, theirs = np.array([run.hospitals for run in runs]), np.array(STORED[name])
        error = math.sqrt(sum(sample.var(ddof=1) / len(sample) for sample in (ours, theirs)))
        found[name] = {
            "flamby": float(theirs.mean()),
            "flamby_std": float(theirs.std(ddof=1)),
            "found": float(ours.mean()),
            "found_std": float(ours.std(ddof=1)),
            "num_seeds": len(runs),
            "difference_in_standard_errors": float((ours.mean() - theirs.mean()) / error),
            "found_on_all_test_records": float(np.mean([run.pooled for run in runs])),
        }
    return found


def main() -> None:
    """Print and write the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", help="directory of the four processed.*.data files")
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--output", type=Path, help="JSON file for what was found")
    options = parser.parse_args()
    found = compare(options.root, seeds=range(options.seeds))
    for name, row in found.items():
        print(
            f"{name}: FLamby {row['flamby']:.3f} ± {row['flamby_std']:.3f} (5 seeds), found "
            f"{row['found']:.3f} ± {row['found_std']:.3f} ({row['num_seeds']} seeds), apart by "
            f"{row['difference_in_standard_errors']:+.1f} standard errors; on all test records "
            f"{row['found_on_all_test_records']:.3f}"
        )
    if options.output is not None:
        options.output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
