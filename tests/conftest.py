"""Where the oracles are: beside the checkout, never inside it."""

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    if not SHARED.is_dir():
        pytest.skip("needs ../shared, which is laid beside the checkout of this project's machines")
    return SHARED


@pytest.fixture(scope="session")
def oracle(shared_dir: Path) -> Any:
    def load(name: str) -> Any:
        return json.loads((shared_dir / "oracles" / f"{name}.json").read_text())

    return load
