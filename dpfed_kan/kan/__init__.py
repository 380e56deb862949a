"""The model: a two-layer Kolmogorov-Arnold network on public, fixed B-spline grids.

`BSplineBasis` is the basis, `TwoLayerKAN` the network's public shape (what the yaml builds) and
`KANGradients` the port through which a site gets per-example gradients as factored blocks. The
layer knows nothing of sites, rounds or noise, and no grid ever depends on data.
"""

from dpfed_kan.kan.basis import MAX_NUM_BASIS, MAX_SPLINE_DEGREE, BSplineBasis
from dpfed_kan.kan.gradients import KANGradients
from dpfed_kan.kan.model import KANParams, TwoLayerKAN, decision_function

__all__ = [
    "MAX_NUM_BASIS",
    "MAX_SPLINE_DEGREE",
    "BSplineBasis",
    "KANGradients",
    "KANParams",
    "TwoLayerKAN",
    "decision_function",
]
