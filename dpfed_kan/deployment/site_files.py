"""What a site's administrator gives: its file, schema, state directory, and what it allows."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dpfed_kan.data.deployed import check_site_name
from dpfed_kan.streams import Streams

NodeConfig = Mapping[str, object]
_PATHS = ("data", "schema", "state")
_OPTIONAL = ("policy", "channel-ca")
_ALLOWED = ("allow-seed", "share-metrics")


@dataclass(frozen=True, kw_only=True)
class SiteFiles:
    """A site's configuration, as `flower-supernode --node-config` has it.

    Args:
        site: Name.
        data: The delimited file.
        schema: The site's copy of the agreed schema, YAML.
        state: Directory of the site's own key and log.
        policy: The site's policy, YAML; None for a trial, where the site serves what it is asked.
        channel_ca: Certificate of the authority that the data channel must show; None refuses
            that transport.
        allow_seed: Whether runs with a declared seed, which hide nothing, may use these records.
        share_metrics: Whether held-out metrics, which are not private, may leave the site.
    """

    site: str
    data: Path
    schema: Path
    state: Path
    policy: Path | None = None
    channel_ca: Path | None = None
    allow_seed: bool = False
    share_metrics: bool = False

    @property
    def ledger(self) -> Path:
        """The site's own ledger over all runs."""
        return self.state / "site.ledger"

    @property
    def ledger_key(self) -> Path:
        """The key of the ledger's digests."""
        return self.state / "ledger.key"

    @property
    def log(self) -> Path:
        """Where full tracebacks go, which leave the site in no other way."""
        return self.state / "site.log"

    def streams(self) -> Streams:
        """Return the site's own streams; the key is made at the first call and kept, mode 0600.

        Raises:
            ValueError: If the file is not a key of a site.
        """
        path = self.state / "key"
        if not path.exists():
            self.state.mkdir(mode=0o700, parents=True, exist_ok=True)
            fresh = self.state / f"key.{secrets.token_hex(8)}"
            Streams.from_entropy().save(fresh)
            try:
                os.link(fresh, path)  # whole or not at all, and never over another one
            except FileExistsError:
                pass
            finally:
                fresh.unlink()
        streams = Streams.load(path)
        if streams.seeded:
            raise ValueError(f"{path} is the key of a simulation, not of a site")
        return streams


def site_files(config: NodeConfig) -> SiteFiles:
    """Return what a node's configuration says.

    Raises:
        ValueError: If a key is missing, unknown or of the wrong kind; it is named.
    """
    known = {"site", *_PATHS, *_OPTIONAL, *_ALLOWED}
    unknown = sorted(set(config) - known)
    if unknown:
        raise ValueError(f"node-config: unknown {', '.join(unknown)}; known {', '.join(known)}")
    site = config.get("site")
    if not isinstance(site, str):
        raise ValueError("node-config: expected site to be a name")
    check_site_name(site)
    paths = {name: _path(config, name) for name in (*_PATHS, *_OPTIONAL) if name in config}
    missing = [name for name in _PATHS if name not in paths]
    if missing:
        raise ValueError(f"node-config of {site}: expected {', '.join(missing)}, absolute paths")
    allowed = {name: config.get(name, False) for name in _ALLOWED}
    if not all(isinstance(value, bool) for value in allowed.values()):
        raise ValueError(f"node-config of {site}: expected {', '.join(_ALLOWED)} true or false")
    return SiteFiles(
        site=site,
        data=paths["data"],
        schema=paths["schema"],
        state=paths["state"],
        policy=paths.get("policy"),
        channel_ca=paths.get("channel-ca"),
        allow_seed=allowed["allow-seed"] is True,
        share_metrics=allowed["share-metrics"] is True,
    )


def _path(config: NodeConfig, name: str) -> Path:
    value = config[name]
    if not isinstance(value, str) or not Path(value).is_absolute():
        raise ValueError(f"node-config: expected {name} to be an absolute path")
    return Path(value)
