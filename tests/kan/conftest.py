"""Where the reference values and trials lie: beside the repository, not in it."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of oracles and trials; tests that need it are skipped where it is absent."""
    path = Path(__file__).parents[2].parent / "shared"
    if not path.is_dir():
        pytest.skip("no folder `shared` with oracles and trials beside the repository")
    return path
