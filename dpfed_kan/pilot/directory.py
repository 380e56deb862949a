"""A pilot's directory: what the user put there, and what the pilot keeps below `run/`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from dpfed_kan.pilot.plan import Pilot, PilotSite, load_pilot
from dpfed_kan.pilot.processes import Processes

NAME = "pilot"
_FLWR_SECONDS = 60.0


class PilotDirectory:
    """The files of a pilot below its directory, all of them in `run/` but the user's own.

    Args:
        path: Holds `pilot.yaml`.

    Raises:
        ValueError: If there is no such file, or it is wrong.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.pilot: Pilot = load_pilot(path)
        self.state = self.path / "run"
        self.keys = self.state / "keys"
        self.flwr_home = self.state / "flwr"
        self.processes = Processes(
            self.state / "processes.json", log_dir=self.state / "log", mark=str(self.state)
        )

    def key(self, site: PilotSite) -> Path:
        """Return a node's private key."""
        return self.keys / site.site

    def environment(self) -> dict[str, str]:
        """Return what every process of the pilot is started with."""
        return {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "FLWR_HOME": str(self.flwr_home),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "PYTHONUNBUFFERED": "1",
        }

    def flwr(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run one of Flower's own commands against this pilot's SuperLink."""
        return subprocess.run(
            ["flwr", *words],
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_FLWR_SECONDS,
            check=False,
        )

    def node_config(self, site: PilotSite) -> str:
        """Return what a SuperNode is told of its site.

        Raises:
            ValueError: If a file is missing.
        """
        state = self.state / "sites" / site.site
        config: dict[str, str | bool] = {"site": site.site, "state": str(state)}
        config["channel-ca"] = str(self.keys / "ca.crt")
        for name in ("data", "schema", "policy"):
            value = getattr(site, name)
            if value is None:
                continue
            path = (self.path / value).absolute()
            if not path.is_file():
                raise ValueError(f"{site.site}: {name} {path} is not there")
            config[name] = str(path)
        config |= {"allow-seed": site.allow_seed, "share-metrics": site.share_metrics}
        words = []
        for name, value in config.items():
            if isinstance(value, str) and ('"' in value or "\\" in value):
                raise ValueError(f"{site.site}: {name} may hold neither quotes nor backslashes")
            shown = str(value).lower() if isinstance(value, bool) else f'"{value}"'
            words.append(f"{name}={shown}")
        return " ".join(words)
