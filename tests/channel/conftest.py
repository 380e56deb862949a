"""A channel server with a real certificate, and what a site would be."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from dpfed_kan.channel.client import serve
from dpfed_kan.channel.server import ChannelServer
from dpfed_kan.federated.replies import Inbox
from dpfed_kan.federated.server import Server
from dpfed_kan.federated.site import Broadcast, Reply
from dpfed_kan.pilot.certificates import make_certificates
from dpfed_kan.privacy.mechanism import Mechanism
from dpfed_kan.privacy.noising import GaussianNoise
from dpfed_kan.privacy.sampling import FullBatch
from dpfed_kan.update.sgd import ProjectedSGD

RUN = "ab" * 16
DIMENSION = 6
SIZES = {"a": 10, "b": 10}


def answer(site):
    def work(broadcast: Broadcast) -> Reply:
        value = broadcast.params / 10 + SIZES[site] / 100
        return Reply(site=site, round_index=broadcast.round_index, value=value)

    return work


@dataclass
class Link:
    """A listening server, its tokens, and the authority that sites know it by."""

    directory: Path
    server: ChannelServer
    tokens: dict[str, str]
    outcomes: dict[str, object] = field(default_factory=dict)

    @property
    def authority(self) -> bytes:
        return (self.directory / "ca.crt").read_bytes()

    def join(self, site, work=None, **changed) -> threading.Thread:
        settings = {
            "site": site,
            "run_id": RUN,
            "address": self.server.address,
            "token": self.tokens[site],
            "certificate_authority": self.authority,
            "dimension": DIMENSION,
            "patience": 3.0,
            **changed,
        }

        def run():
            try:
                self.outcomes[site] = serve(work or answer(site), **settings)
            except Exception as error:
                self.outcomes[site] = error

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def round(self, round_index, timeout=60.0) -> Inbox:
        inbox = Inbox(plan(), run_id=RUN, round_index=round_index, dimension=DIMENSION)
        params = np.linspace(-1, 1, DIMENSION)
        broadcast = Broadcast(round_index=round_index, params=params)
        self.server.collect(broadcast, inbox, timeout=timeout)
        return inbox


def plan() -> Server:
    mechanism = Mechanism(
        sampling=FullBatch(),
        noise=GaussianNoise(noise_multiplier=1.0, correlation=0.0),
        l2_clip_norm=1.0,
        num_rounds=100,
    )
    return Server(
        mechanism=mechanism,
        update_rule=ProjectedSGD(learning_rate=0.1, projection_radius=10.0),
        num_records=SIZES,
        batch_size=20.0,
    )


@pytest.fixture
def link(tmp_path: Path):
    make_certificates(tmp_path, host="127.0.0.1")
    server = ChannelServer(
        sites=SIZES,
        run_id=RUN,
        dimension=DIMENSION,
        address="127.0.0.1:0",
        certificate=(tmp_path / "server.pem").read_bytes(),
        key=(tmp_path / "server.key").read_bytes(),
    )
    yield Link(directory=tmp_path, server=server, tokens=server.tokens.issue(SIZES))
    server.close()
