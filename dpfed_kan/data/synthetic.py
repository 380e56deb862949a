"""Synthetic logistic data: for experiments in which nobody's records are at stake."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpfed_kan._validate import check_count, check_positive
from dpfed_kan.data.records import Records
from dpfed_kan.streams import Streams


@dataclass(frozen=True, kw_only=True)
class SyntheticLogistic:
    """x uniform on [−1, 1]^d / √d; y = +1 with probability 1 / (1 + exp(−s·√d·⟨w, x⟩)).

    w is a random unit vector; √d·⟨w, x⟩ has standard deviation 1/√3 whatever d.

    Args:
        num_records: n.
        input_dim: d.
        steepness: s > 0; the larger, the fewer labels are flipped by chance.
    """

    num_records: int = 5000
    input_dim: int = 20
    steepness: float = 8.0

    def __post_init__(self) -> None:
        check_count("num_records", self.num_records)
        check_count("input_dim", self.input_dim)
        check_positive("steepness", self.steepness)

    def load(self, streams: Streams) -> Records:
        """Draw the records from the stream named synthetic_data."""
        rng = streams.generator("synthetic_data")
        direction = rng.standard_normal(self.input_dim)
        direction /= np.linalg.norm(direction)
        cube = rng.uniform(-1.0, 1.0, (self.num_records, self.input_dim))
        prob = 1 / (1 + np.exp(-self.steepness * (cube @ direction)))
        return Records(
            features=cube / np.sqrt(self.input_dim),
            labels=np.where(rng.random(self.num_records) < prob, 1.0, -1.0),
            feature_names=tuple(f"x{index}" for index in range(self.input_dim)),
        )
