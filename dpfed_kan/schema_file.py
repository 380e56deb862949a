"""A schema from the YAML file that sites have agreed on."""

from __future__ import annotations

from pathlib import Path

import yaml

from dpfed_kan.config import build_as
from dpfed_kan.data.schema import Schema


def load_schema(path: Path) -> Schema:
    """Read a schema.

    Raises:
        ValueError: If the file is absent, no YAML, or no schema; a ConfigError names every
            problem.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"the schema {path.absolute()} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise ValueError(f"the schema {path} is not a YAML file in UTF-8") from None
    if not isinstance(content, dict):
        raise ValueError(f"the schema {path} holds no settings: expected columns and label")
    schema: Schema = build_as(Schema, content)
    return schema
