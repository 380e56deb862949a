"""Three real sites in this process: the app of a deployment, an invented trial, a threaded grid."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from dpfed_kan.config import build, drop_interpolated, to_config
from dpfed_kan.deployment.serving import OwnSite
from dpfed_kan.experiment import Experiment
from dpfed_kan.flower.deployed_client import deployed_client_app
from dpfed_kan.flower.grid import InProcessGrid
from dpfed_kan.pilot.certificates import make_certificates
from dpfed_kan.pilot.trial import write_trial
from dpfed_kan.schema_file import load_schema
from dpfed_kan.sites.chain import Chain
from tests.conftest import ROOT

SITES = ("hospital-1", "hospital-2", "hospital-3")


class ThreadedGrid(InProcessGrid):
    """Each message is answered in a thread of its own, as by a process of its own."""

    def push_messages(self, messages):
        messages = list(messages)
        identifiers = []
        for message in messages:
            done = threading.Event()
            answer = super().push_messages
            box: list[str] = []

            def deliver(message=message, box=box, done=done, answer=answer):
                box.extend(answer([message]))
                done.set()

            threading.Thread(target=deliver, daemon=True).start()
            while not done.wait(0.001) and not message.metadata.message_id:
                pass
            identifiers.append(box[0] if box else message.metadata.message_id)
        return identifiers


@dataclass(frozen=True)
class Trial:
    """A directory with three hospitals' files, and what is run over them."""

    directory: Path
    seed: int | None = 3

    def composed(self, *overrides: str) -> Experiment:
        with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            config = compose("config", overrides=list(overrides))
        settings: Any = OmegaConf.to_container(config, resolve=True)
        del settings["resume"]
        drop_interpolated(settings)
        schema = load_schema(self.directory / "schema.yaml")
        settings["data"]["source"]["schema"] = to_config(schema)
        experiment: Experiment = build(settings)
        return experiment

    @property
    def common(self) -> list[str]:
        return [
            f"seed={'null' if self.seed is None else self.seed}",
            "num_rounds=5",
            "privacy.target_epsilon=null",
            "noise.noise_multiplier=2.0",
        ]

    def deployed(self, *overrides: str) -> Experiment:
        return self.composed(
            "data=at_sites",
            "runtime=deployed",
            f"data.source.sites=[{','.join(SITES)}]",
            "data.source.schema=given",
            "runtime.transport=native",
            "runtime.meeting_timeout=60",
            *self.common,
            *overrides,
        )

    def channel(self, *overrides: str) -> Experiment:
        make_certificates(self.directory, host="127.0.0.1")
        return self.deployed(
            "runtime.transport=channel",
            "runtime.channel_address='127.0.0.1:0'",
            f"runtime.channel_certificate={self.directory / 'server.pem'}",
            f"runtime.channel_key={self.directory / 'server.key'}",
            "runtime.timeout=120",
            *overrides,
        )

    def simulated(self, *overrides: str) -> Experiment:
        files = ",".join(f"{{site: {site}, path: {site}.csv}}" for site in SITES)
        return self.composed(
            "data=csv",
            "runtime=in_process",
            "data.held_out_by=site",
            f"data.source.root={self.directory}",
            f"data.source.files=[{files}]",
            "data.source.schema=given",
            *self.common,
            *overrides,
        )

    def node(self, site: str, **more: Any) -> Mapping[str, Any]:
        config = {
            "site": site,
            "data": str(self.directory / f"{site}.csv"),
            "schema": str(self.directory / "schema.yaml"),
            "state": str(self.directory / "state" / site),
            "channel-ca": str(self.directory / "ca.crt"),
            "allow-seed": True,
            **more,
        }
        return {key: value for key, value in config.items() if value is not None}

    def guarded(self, name: str = "policy", **rules: Any) -> list[Mapping[str, Any]]:
        """Return nodes with the trial's policy but for some rules, in a file of this name."""
        path = self.directory / f"{name}.yaml"
        policy = yaml.safe_load((self.directory / "policy.yaml").read_text())
        path.write_text(yaml.safe_dump(policy | rules))
        return [self.node(site, policy=str(path)) for site in SITES]

    def rows(self, site: str, event: str) -> list[Any]:
        """Return what a site's ledger holds of one event."""
        with closing(Chain(self.directory / "state" / site / "site.ledger")) as chain:
            return [json.loads(row.content) for row in chain.rows(event)]

    def grid(self, *nodes: Mapping[str, Any]) -> ThreadedGrid:
        configs = nodes or tuple(self.node(site) for site in SITES)
        app = deployed_client_app(OwnSite())
        return ThreadedGrid(app, len(configs), node_configs=configs)


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    write_trial(tmp_path / "trial")
    return Trial(directory=tmp_path / "trial")
