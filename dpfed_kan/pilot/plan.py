"""`pilot.yaml`: which sites there are, where their files lie, and where the server listens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

from dpfed_kan._validate import check_count
from dpfed_kan.config import build_as
from dpfed_kan.data.deployed import check_site_name

FILE_NAME = "pilot.yaml"


@dataclass(frozen=True, kw_only=True)
class PilotSite:
    """One site of a pilot.

    Args:
        site: Name.
        data: Its delimited file; relative paths count from the pilot's directory.
        schema: Its copy of the agreed schema.
        policy: Its policy, or null.
        allow_seed: Whether runs with a declared seed may use its records.
        share_metrics: Whether held-out metrics, which are not private, may leave it.
    """

    site: str
    data: str
    schema: str
    policy: str | None = None
    allow_seed: bool = False
    share_metrics: bool = False

    def __post_init__(self) -> None:
        check_site_name(self.site)


@dataclass(frozen=True, kw_only=True)
class Pilot:
    """A pilot.

    Args:
        sites: Its sites.
        host: Address that everything listens at.
        port: Of the SuperLink; the data channel takes the next one, the SuperNodes those after.
    """

    sites: tuple[PilotSite, ...]
    host: str = "127.0.0.1"
    port: int = 9500

    def __post_init__(self) -> None:
        names = [site.site for site in self.sites]
        if not names or len(set(names)) != len(names):
            raise ValueError("expected at least one site, each named once")
        check_count("port", self.port, low=1024)

    @property
    def channel_port(self) -> int:
        """Where the data channel listens."""
        return self.port + 1

    def node_port(self, place: int) -> int:
        """Where SuperNode number `place` listens, for its own processes only."""
        return self.port + 2 + place


def load_pilot(directory: Path) -> Pilot:
    """Read a pilot's file.

    Raises:
        ValueError: If it is absent or wrong; a ConfigError names every problem.
    """
    path = directory / FILE_NAME
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(
            f"{path.absolute()} cannot be read: {error.strerror}; `dpfed-kan pilot new "
            f"{directory}` makes one with invented records"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise ValueError(f"{path} is not a YAML file in UTF-8") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no settings: expected sites")
    pilot: Pilot = build_as(Pilot, content)
    return pilot
