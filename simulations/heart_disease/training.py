"""One federated training of a KAN or of logistic regression, by the package's own rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from dpfed_kan.data.records import Records
from dpfed_kan.federated.server import Server, rounds
from dpfed_kan.federated.site import PerExampleGradients, Site
from dpfed_kan.kan import KANGradients, TwoLayerKAN, decision_function
from dpfed_kan.privacy.calibration import calibrate
from dpfed_kan.privacy.clipping import GradientBlock, Vector
from dpfed_kan.privacy.joint_sampling import at_site
from dpfed_kan.privacy.ledger import Ledger
from dpfed_kan.privacy.mechanism import Mechanism
from dpfed_kan.privacy.noising import GaussianNoise, NoNoise
from dpfed_kan.privacy.sampling import Poisson
from dpfed_kan.streams import Streams
from dpfed_kan.update.sgd import ProjectedSGD

DELTA = 1e-3
SAMPLING_PROB = 0.2
NUM_ROUNDS = 60
ModelName = Literal["kan", "logistic"]


@dataclass(frozen=True, kw_only=True)
class Hyperparameters:
    """What is chosen on validation records.

    Args:
        learning_rate: η.
        l2_clip_norm: C.
        hidden_width: m of the KAN.
        num_basis: p of the KAN.
    """

    learning_rate: float
    l2_clip_norm: float
    hidden_width: int = 8
    num_basis: int = 5


@dataclass(frozen=True, kw_only=True)
class LogisticGradients:
    """The one-layer model: f(x) = ⟨w, √d·x⟩ + w_0, behind the same port as the KAN.

    Args:
        records: Of one site.
    """

    records: Records

    @property
    def num_params(self) -> int:
        """Number of features, and one."""
        return len(self.records.feature_names) + 1

    def blocks(self, params: Vector, indices: np.ndarray) -> tuple[GradientBlock, ...]:
        """Return the per-example gradients as factors."""
        inputs = with_intercept(self.records)[indices]
        labels = self.records.labels[indices]
        residual = -labels / (1 + np.exp(np.clip(labels * (inputs @ params), -500, 500)))
        return (GradientBlock(left=residual[:, None], right=inputs),)


def with_intercept(records: Records) -> np.ndarray:
    """Return the encoded features on [−1, 1] and a column of ones."""
    unit = records.features * math.sqrt(records.features.shape[1])
    return np.concatenate([unit, np.ones((len(records), 1))], axis=1)


class _Model(Protocol):
    initial: Vector

    def gradients(self, shard: Records) -> PerExampleGradients: ...

    def scores(self, params: Vector, records: Records) -> Vector: ...


class _KAN:
    def __init__(self, chosen: Hyperparameters, input_dim: int, streams: Streams) -> None:
        shape = TwoLayerKAN(
            hidden_width=chosen.hidden_width, num_basis=chosen.num_basis, input_grid=None
        )
        self._model = shape.for_inputs(input_dim)
        params = self._model.initialize(input_dim, streams.generator("initial_params"))
        self.initial, self._frozen = params.trainable, params.frozen

    def gradients(self, shard: Records) -> PerExampleGradients:
        return KANGradients(
            model=self._model, frozen=self._frozen, features=shard.features, labels=shard.labels
        )

    def scores(self, params: Vector, records: Records) -> Vector:
        return decision_function(self._model, params, self._frozen, records.features)


class _Logistic:
    def __init__(self, input_dim: int) -> None:
        self.initial: Vector = np.zeros(input_dim + 1)

    def gradients(self, shard: Records) -> PerExampleGradients:
        return LogisticGradients(records=shard)

    def scores(self, params: Vector, records: Records) -> Vector:
        return np.asarray(with_intercept(records) @ params)


def mechanism(target_epsilon: float, *, l2_clip_norm: float) -> Mechanism:
    """Return the mechanism that keeps a target; infinity is the same training without noise."""
    private = math.isfinite(target_epsilon)
    plan = Mechanism(
        sampling=Poisson(sampling_prob=SAMPLING_PROB),
        noise=GaussianNoise(noise_multiplier=1.0, correlation=0.0) if private else NoNoise(),
        l2_clip_norm=1.0,
        num_rounds=NUM_ROUNDS,
    )
    if private:
        plan = calibrate(plan, target_epsilon=target_epsilon, target_delta=DELTA)
    return Mechanism(
        sampling=plan.sampling,
        noise=plan.noise,
        l2_clip_norm=l2_clip_norm,
        num_rounds=plan.num_rounds,
    )


def train(
    name: ModelName,
    shards: Mapping[str, Records],
    evaluated: Records,
    *,
    chosen: Hyperparameters,
    plan: Mechanism,
    seed: int,
) -> tuple[Vector, Ledger]:
    """Train over the hospitals; return the scores of other records, and what was released.

    The model that is evaluated is the mean of the last half of the iterates: post-processing of
    what is released anyhow, and so free.

    Args:
        name: The model.
        shards: Hospital to the records it trains on.
        evaluated: Records to score.
        chosen: Hyperparameters.
        plan: The mechanism, calibrated.
        seed: Of initialization, batches and noise.
    """
    streams = Streams.from_seed(seed)
    input_dim = evaluated.features.shape[1]
    model: _Model = _KAN(chosen, input_dim, streams) if name == "kan" else _Logistic(input_dim)
    sites = [
        Site(
            name=site,
            num_records=len(shard),
            gradients=model.gradients(shard),
            sampling=at_site(plan.sampling, len(shard)),
            l2_clip_norm=plan.l2_clip_norm,
            streams=streams.for_site(site),
        )
        for site, shard in shards.items()
    ]
    num_records = {site.name: site.num_records for site in sites}
    rule = ProjectedSGD(learning_rate=chosen.learning_rate)
    ledger = Ledger(mechanism=plan, num_records=num_records)
    server = Server(
        mechanism=plan,
        update_rule=rule,
        num_records=num_records,
        batch_size=SAMPLING_PROB * sum(num_records.values()),
    )
    states = rounds(
        server,
        rule.start(model.initial),
        sum_over_sites=server.over(lambda broadcast: [site.work(broadcast) for site in sites]),
        streams=streams,
        ledger=ledger,
    )
    iterates = [state.params for state in states]
    averaged = np.mean(iterates[NUM_ROUNDS // 2 :], axis=0)
    return model.scores(averaged, evaluated), ledger
