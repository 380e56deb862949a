"""The model: a two-layer Kolmogorov-Arnold network on public, fixed B-spline grids.

`BSplineBasis` is the basis, `TwoLayerKAN` the network's public shape (what the yaml builds) and
`KANGradients` the port through which a site gets per-example gradients as factored blocks. The
layer knows nothing of sites, rounds or noise, and no grid ever depends on data.

The shape is there at once; what computes loads torch when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dpfed_kan.kan.shape import MAX_NUM_BASIS, MAX_SPLINE_DEGREE, KANParams, TwoLayerKAN

if TYPE_CHECKING:
    from dpfed_kan.kan.basis import BSplineBasis
    from dpfed_kan.kan.gradients import KANGradients
    from dpfed_kan.kan.model import decision_function

__all__ = [
    "MAX_NUM_BASIS",
    "MAX_SPLINE_DEGREE",
    "BSplineBasis",
    "KANGradients",
    "KANParams",
    "TwoLayerKAN",
    "decision_function",
]
_HOMES = {"BSplineBasis": "basis", "KANGradients": "gradients", "decision_function": "model"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
