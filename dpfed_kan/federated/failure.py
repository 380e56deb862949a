"""What may be told of an exception near records."""

from __future__ import annotations

import logging
import re
import traceback

_TOLD = re.compile(r"\w+ at [\w.<>-]+:\d+")


def type_and_place(error: BaseException) -> str:
    """Return all that may be told of an exception near records: its type, file and line."""
    frames = traceback.walk_tb(error.__traceback__)
    place = [(frame.f_code.co_filename, line) for frame, line in frames][-1]
    module = place[0].replace("\\", "/").rsplit("/", 1)[-1]
    return f"{type(error).__name__} at {module}:{place[1]}"


def site_log(site: object) -> logging.Logger:
    """Return a site's own log, which may hold what the server must not see; it goes nowhere else.

    Args:
        site: Its name.
    """
    log = logging.getLogger(f"dpfed_kan.site.{str(site).replace('.', '_')}")
    log.propagate = False
    return log


def told_place(text: str) -> str | None:
    """Return what a site says of a failure, if it is a type and a place and nothing else."""
    return text if len(text) < 200 and _TOLD.fullmatch(text) else None
