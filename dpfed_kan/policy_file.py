"""A site's policy from the YAML file on its own disk."""

from __future__ import annotations

from pathlib import Path

import yaml

from dpfed_kan.config import ConfigError, build_as
from dpfed_kan.sites.policy import Policy


def load_policy(path: Path) -> Policy:
    """Read a policy; a rule that is missing or misspelled is an error, never a default.

    Raises:
        ValueError: If the file is absent, no YAML, or no policy; every problem is named.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"the policy {path.absolute()} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise ValueError(f"the policy {path} is not a YAML file in UTF-8") from None
    if not isinstance(content, dict):
        raise ValueError(f"the policy {path} holds no rules: expected budget_epsilon and others")
    try:
        policy: Policy = build_as(Policy, content)
    except ConfigError as error:
        problems = [f"the policy {path}: {problem}" for problem in error.problems]
        raise ConfigError(problems) from None
    return policy
