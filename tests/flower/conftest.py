"""A small federation for the wire: three sites whose gradients are their features."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import pytest
from flwr.app import Message
from flwr.serverapp import Grid

from dpfed_kan.federated.site import Site
from dpfed_kan.flower.client_app import client_app
from dpfed_kan.flower.exchange import GridExchange, meet_sites
from dpfed_kan.flower.grid import InProcessGrid
from dpfed_kan.privacy.clipping import GradientBlock
from dpfed_kan.privacy.sampling import FullBatch
from dpfed_kan.streams import Streams

SIZES = {"site-1": 5, "site-2": 6, "site-3": 7}
DIMENSION = 4
SETTINGS = "the settings"


@dataclass(frozen=True)
class Features:
    """Example i's gradient is its row of features."""

    rows: np.ndarray = field(repr=False)

    @property
    def num_params(self):
        return self.rows.shape[1]

    def blocks(self, params, indices):
        rows = self.rows[indices]
        return (GradientBlock(left=np.ones((len(rows), 1)), right=rows),)


def site(name, num_records):
    rng = np.random.default_rng(num_records)
    return Site(
        name=name,
        num_records=num_records,
        gradients=Features(rng.standard_normal((num_records, DIMENSION))),
        sampling=FullBatch(),
        l2_clip_norm=1.0,
        streams=Streams.from_seed(0).for_site(name),
    )


SITES = [site(name, num_records) for name, num_records in SIZES.items()]


def build_site(settings, partition_id):
    return SITES[partition_id]


class TamperedGrid(InProcessGrid):
    """Changes the replies on their way back."""

    tamper: Callable[[list[Message]], Iterable[Message]] = staticmethod(lambda replies: replies)

    def send_and_receive(self, messages, *, timeout=None):
        return self.tamper(list(super().send_and_receive(messages, timeout=timeout)))


@dataclass(frozen=True)
class Federation:
    """What tests use of this file."""

    build_site = staticmethod(build_site)
    site = staticmethod(site)
    sizes = SIZES
    dimension = DIMENSION
    settings = SETTINGS

    def grid(self, build_site=build_site, num_sites=3) -> TamperedGrid:
        return TamperedGrid(client_app(build_site), num_sites)

    def meet(self, grid: Grid, **planned) -> GridExchange:
        plan = {
            "num_records": SIZES,
            "num_params": DIMENSION,
            "settings": SETTINGS,
            "timeout": 0.5,
        }
        return meet_sites(grid, **{**plan, **planned})


@pytest.fixture
def federation() -> Federation:
    return Federation()
