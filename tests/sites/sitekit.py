"""What the tests of this folder share: small records, real mechanisms, gradients to watch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from dpfed_kan.data.records import Records
from dpfed_kan.federated.site import Broadcast, Site
from dpfed_kan.privacy.calibration import calibrate
from dpfed_kan.privacy.clipping import GradientBlock, Vector
from dpfed_kan.privacy.joint_sampling import Sampling
from dpfed_kan.privacy.mechanism import Mechanism
from dpfed_kan.privacy.noising import GaussianNoise
from dpfed_kan.privacy.sampling import Poisson
from dpfed_kan.sites.data_set import DataSet, SiteKey, identify
from dpfed_kan.sites.entries import RunEntry
from dpfed_kan.sites.ledger import Request, SiteLedger
from dpfed_kan.sites.plan import Plan, SiteSize, columns_hash
from dpfed_kan.sites.policy import Policy
from dpfed_kan.streams import Streams

N, D = 40, 3
DELTA = 1e-6
COLUMNS = ("age", "bp", "chol")
KEY = SiteKey(key=b"k" * 32)


def records(seed: int = 0, n: int = N, **settings: Any) -> Records:
    rng = np.random.default_rng(seed)
    return Records(
        features=rng.uniform(-1, 1, (n, D)),
        labels=rng.choice([-1.0, 1.0], n),
        feature_names=COLUMNS,
        **settings,
    )


def data_set(seed: int = 0, **settings: Any) -> DataSet:
    return identify(records(seed, **settings), key=KEY)


@cache
def mechanism(epsilon: float, sampling: Sampling | None = None, **settings: Any) -> Mechanism:
    """A real mechanism whose whole run costs just about this ε at DELTA."""
    planned = Mechanism(
        sampling=Poisson(sampling_prob=0.2) if sampling is None else sampling,
        noise=GaussianNoise(noise_multiplier=None),
        l2_clip_norm=1.0,
        **{"num_rounds": 8, **settings},
    )
    return calibrate(planned, target_epsilon=epsilon, target_delta=DELTA)


def plan(epsilon: float = 0.5, sampling: Sampling | None = None, **settings: Any) -> Plan:
    return Plan(
        mechanism=mechanism(epsilon, sampling, **settings),
        target_delta=DELTA,
        sites=(SiteSize(name="a", num_records=N), SiteSize(name="b", num_records=50)),
        num_params=D,
        model={"type": "Linear"},
        update={"type": "ProjectedSGD", "learning_rate": 0.1},
        columns_sha256=columns_hash(COLUMNS, 2),
        clips_in_transform=False,
        metrics_leave=False,
    )


def policy(**settings: Any) -> Policy:
    given: dict[str, Any] = {
        "budget_epsilon": 1.0,
        "budget_delta": 1e-5,
        "min_records": 20,
        "allowed_plans": "any",
        "privacy_unit": "record",
        "max_sampling_prob": 1.0,
        "metrics_may_leave": False,
    }
    return Policy(**given | settings)


class Gradients:
    """Of a linear model over the records; `watch` is called whenever they are asked for."""

    num_params = D

    def __init__(self, over: Records, watch: Callable[[], None] = lambda: None) -> None:
        self.over, self.watch = over, watch

    def blocks(self, params: Vector, indices: Any) -> tuple[GradientBlock, ...]:
        self.watch()
        features = self.over.features[indices]
        residuals = np.tanh(features @ params) - self.over.labels[indices]
        return (GradientBlock(left=residuals[:, None], right=features),)


class Untouchable:
    """Gradients that must not be asked for anything."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"a gradient was touched: {name}")


def site(of: Plan, gradients: Any = None, streams: Streams | None = None) -> Site:
    met = of.mechanism.at_site(N)
    return Site(
        name="a",
        num_records=N,
        gradients=Gradients(records()) if gradients is None else gradients,
        sampling=met.sampling,  # type: ignore[arg-type]
        l2_clip_norm=met.l2_clip_norm,
        streams=Streams.from_entropy() if streams is None else streams,
    )


def broadcast(round_index: int, value: float = 0.0) -> Broadcast:
    return Broadcast(round_index=round_index, params=np.full(D, value))


def reserve(
    ledger: SiteLedger,
    run: str,
    of: Plan,
    *,
    under: Policy | None = None,
    over: DataSet | None = None,
    streams: str | None = None,
    seeded: bool = False,
) -> RunEntry:
    return ledger.reserve(request(run, of, under=under, over=over, streams=streams, seeded=seeded))


def request(
    run: str,
    of: Plan,
    *,
    under: Policy | None = None,
    over: DataSet | None = None,
    streams: str | None = None,
    seeded: bool = False,
) -> Request:
    return Request(
        run=run,
        plan=of,
        site="a",
        policy=policy() if under is None else under,
        data_set=data_set() if over is None else over,
        streams=f"streams of {run}" if streams is None else streams,
        streams_are_seeded=seeded,
    )


def open_ledger(directory: Path) -> SiteLedger:
    return SiteLedger(directory / "site.ledger", key=KEY)
