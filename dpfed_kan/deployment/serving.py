"""The one site of this process: what Flower's ClientApp asks."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from dpfed_kan.deployment.site import DeployedSite, facts, open_site
from dpfed_kan.deployment.site_files import NodeConfig, SiteFiles, site_files
from dpfed_kan.deployment.study import study_of
from dpfed_kan.flower.deployed_records import SiteFacts


class OwnSite:
    """Opens this node's site for whichever study a message describes."""

    def log_path(self, node: NodeConfig) -> Path:
        """Return where this site's log is.

        Raises:
            ValueError: If the node's configuration is not one of a site.
        """
        return site_files(node).log

    def facts(self, settings: str, node: NodeConfig) -> SiteFacts:
        """Return what the site says before round 0."""
        return facts(site_files(node), study_of(settings))

    def open(self, settings: str, node: NodeConfig) -> DeployedSite:
        """Return the site for a study; the last one is kept."""
        return _opened(site_files(node), settings)


@lru_cache(maxsize=1)
def _opened(files: SiteFiles, settings: str) -> DeployedSite:
    study = study_of(settings)
    if study.num_records is None:
        raise ValueError("expected the sizes of all sites before any work is asked for")
    return open_site(files, study)
