"""`python -m simulations.heart_disease.flamby ROOT`: FLamby's setting, a check.

13 raw features without any scaling, a linear layer and a sigmoid, batches of 4 (FLamby, arXiv
2210.04620, and its fed_heart_disease settings). Pooled: Adam at 1e-3, 50 epochs. FedAvg: 15 rounds
of 100 local SGD steps at 1e-3 (their rate is not known to us), the hospitals' params averaged with
equal weights. There is no privacy in it. Published accuracy: .735 pooled, .685 FedAvg.
"""

from __future__ import annotations

import argparse
import math

import numpy as np

from dpfed_kan.data.heart_disease import HeartDisease, flamby_schema
from dpfed_kan.data.records import Records
from dpfed_kan.data.schema import Categorical, Numeric, Ordinal
from dpfed_kan.privacy.clipping import Matrix, Vector
from dpfed_kan.streams import Streams

_RATE, _BATCH, _EPOCHS = 1e-3, 4, 50
_ROUNDS, _LOCAL_STEPS = 15, 100  # (486 // 4 hospitals // 4) * 50 epochs // 100 steps
_BETA_1, _BETA_2, _TINY = 0.9, 0.999, 1e-8


def raw_features(records: Records) -> Matrix:
    """Undo the public scaling: FLamby's 13 columns, the first of each category dropped.

    Values beyond a public range stay at its end; in these files that is one in a thousand.
    """
    unit = dict(
        zip(
            records.feature_names,
            (records.features * math.sqrt(len(records.feature_names))).T,
            strict=True,
        )
    )
    columns: list[Vector] = []
    for column in flamby_schema().columns:
        match column:
            case Numeric(name=name, low=low, high=high):
                columns.append((unit[name] + 1) / 2 * (high - low) + low)
            case Ordinal(name=name):
                columns.append((unit[name] + 1) / 2)
            case Categorical(name=name, categories=categories):
                columns += [(unit[f"{name}={c}"] + 1) / 2 for c in categories[1:]]
    return np.stack(columns, axis=1)


def pooled_accuracy(root: str, *, seed: int) -> float:
    """Train on all hospitals' training records and return the accuracy on all test records."""
    records = HeartDisease(root=root).load(Streams.from_seed(0))
    held_out = np.asarray(records.held_out)
    inputs, labels = raw_features(records), (records.labels > 0).astype(float)
    params = _adam(inputs[~held_out], labels[~held_out], np.random.default_rng(seed))
    scores = _with_ones(inputs[held_out]) @ params
    return float(((scores > 0) == (labels[held_out] > 0)).mean())


def fedavg_accuracy(root: str, *, seed: int) -> float:
    """Train by FedAvg and return the accuracy on all test records."""
    records = HeartDisease(root=root).load(Streams.from_seed(0))
    if records.sites is None:
        raise ValueError("expected records that say which hospital they come from")
    held_out = np.asarray(records.held_out)
    inputs, labels = _with_ones(raw_features(records)), (records.labels > 0).astype(float)
    rng = np.random.default_rng(seed)
    shards = [
        (inputs[mine], labels[mine])
        for name in np.unique(records.sites)
        for mine in [np.asarray(records.sites == name) & ~held_out]
    ]
    params = _initial(inputs.shape[1], rng)
    for _ in range(_ROUNDS):
        local = [_sgd(params, *shard, rng) for shard in shards]
        params = np.asarray(np.mean(local, axis=0))
    scores = inputs[held_out] @ params
    return float(((scores > 0) == (labels[held_out] > 0)).mean())


def _sgd(params: Vector, inputs: Matrix, labels: Vector, rng: np.random.Generator) -> Vector:
    for _ in range(_LOCAL_STEPS):
        batch = rng.choice(len(inputs), size=min(_BATCH, len(inputs)), replace=False)
        params = params - _RATE * _gradient(params, inputs[batch], labels[batch])
    return params


def _gradient(params: Vector, inputs: Matrix, labels: Vector) -> Vector:
    scores = np.clip(inputs @ params, -500, 500)
    return np.asarray(inputs.T @ (1 / (1 + np.exp(-scores)) - labels) / len(labels))


def _initial(dimension: int, rng: np.random.Generator) -> Vector:
    bound = 1 / math.sqrt(dimension - 1)  # torch.nn.Linear's initialization
    return rng.uniform(-bound, bound, size=(dimension,))


def _adam(inputs: Matrix, labels: Vector, rng: np.random.Generator) -> Vector:
    inputs = _with_ones(inputs)
    params = _initial(inputs.shape[1], rng)
    first: Vector = np.zeros(len(params))
    second: Vector = np.zeros(len(params))
    step = 0
    for _ in range(_EPOCHS):
        order = rng.permutation(len(inputs))
        for batch in np.split(order, range(_BATCH, len(order), _BATCH)):
            step += 1
            gradient = _gradient(params, inputs[batch], labels[batch])
            first = _BETA_1 * first + (1 - _BETA_1) * gradient
            second = _BETA_2 * second + (1 - _BETA_2) * gradient**2
            mean = first / (1 - _BETA_1**step)
            scale = np.sqrt(second / (1 - _BETA_2**step)) + _TINY
            params = params - _RATE * mean / scale
    return np.asarray(params)


def _with_ones(inputs: Matrix) -> Matrix:
    return np.concatenate([inputs, np.ones((len(inputs), 1))], axis=1)


def main() -> None:
    """Print the accuracy of several seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", help="directory of the four processed.*.data files")
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    for name, accuracy_fn, published in (
        ("pooled", pooled_accuracy, ".735"),
        ("FedAvg", fedavg_accuracy, ".685"),
    ):
        found = [accuracy_fn(options.root, seed=seed) for seed in range(options.seeds)]
        mean, std = np.mean(found), np.std(found)
        print(
            f"{name} accuracy {mean:.3f} ± {std:.3f} over {len(found)} seeds; published {published}"
        )


if __name__ == "__main__":
    main()
