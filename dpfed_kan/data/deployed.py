"""Records that stay at the sites: what a study knows of them before anybody has answered."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dpfed_kan.data.records import Records
from dpfed_kan.data.schema import Schema
from dpfed_kan.streams import Streams

SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, kw_only=True)
class SitesOwnFiles:
    """One file at each site, which nobody else reads.

    Args:
        sites: Names of the sites that take part.
        schema: What each file must look like; a site's own schema must declare the same columns
            and label.
        share_metrics: Whether sites are asked what the final model is worth on their held-out
            records; not private, and a site that does not allow it sends none.
    """

    sites: tuple[str, ...]
    schema: Schema
    share_metrics: bool = False

    def __post_init__(self) -> None:
        if not self.sites or len(set(self.sites)) != len(self.sites):
            raise ValueError("expected the sites that take part, at least one, each named once")
        for site in self.sites:
            check_site_name(site)

    def load(self, streams: Streams) -> Records:
        """Refuse: the records are not here.

        Raises:
            ValueError: Always.
        """
        raise ValueError(
            "the records are at the sites: start this experiment with `dpfed-kan pilot run` or "
            "`flwr run`, or simulate it with data=csv"
        )


def check_site_name(name: str) -> None:
    """Refuse a name that could not be told apart in a log, a path or a message.

    Raises:
        ValueError: If it is not letters, digits, _ . - and at most 64 of them.
    """
    if not SITE_NAME.fullmatch(name):
        raise ValueError(
            f"expected site={name!r} to be letters, digits, '_', '.' and '-', at most 64, "
            "the first a letter or digit"
        )
