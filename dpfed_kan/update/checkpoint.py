"""An update state as plain arrays and back, for the checkpoint: the same code for every rule."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfed_kan.update.rule import UpdateState

_TYPE = "state_type"
_HERE = "dpfed_kan.update."


def to_arrays(state: UpdateState) -> dict[str, Any]:
    """Return every field of a state by its name, and the name of its type."""
    cls = type(state)
    members = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
    return {_TYPE: f"{cls.__module__}.{cls.__qualname__}", **members}


def from_arrays(saved: Mapping[str, NDArray[Any]]) -> UpdateState:
    """Return the state that `to_arrays` wrote; entries that are none of its fields are left.

    Raises:
        ValueError: If the type is not one of this package's states, or a field is missing.
    """
    cls = _state_type(str(saved[_TYPE]) if _TYPE in saved else "nothing")
    fields = [field.name for field in dataclasses.fields(cls)]
    missing = [name for name in fields if name not in saved]
    if missing:
        raise ValueError(f"the checkpoint of a {cls.__name__} lacks {', '.join(missing)}")
    members: dict[str, Any] = {name: _restored(saved[name]) for name in fields}
    return cls(**members)


def _restored(value: NDArray[Any]) -> NDArray[np.float64] | int:
    array = np.asarray(value)
    return int(array) if array.ndim == 0 and array.dtype.kind in "iu" else array


def _state_type(name: str) -> type[UpdateState]:
    module, _, kind = name.rpartition(".")
    found = None
    if module.startswith(_HERE):
        try:
            found = getattr(importlib.import_module(module), kind, None)
        except ModuleNotFoundError:
            found = None
    if not (isinstance(found, type) and issubclass(found, UpdateState)):
        raise ValueError(f"expected the checkpoint to hold a state of {_HERE}*, got {name}")
    return found
