"""The small experiments of `tests/system`."""

from tests.system.conftest import experiment

__all__ = ["experiment"]
