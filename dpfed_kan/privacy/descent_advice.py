"""How long full-batch descent should be at an ε, by the order that [KAN-GD] 2601.22409 gives."""

from __future__ import annotations

import math

from dpfed_kan._validate import check_count, check_positive


def moderate_steps(*, num_records: int, epsilon: float, input_dim: int) -> int:
    """Return T of about n ε/√d, at least 1: where optimization, 1/T, meets noise, √d/(n ε).

    An order of magnitude for DP-GD on all records with a moderate width and a step size η of order
    one, not an optimum: the constant is not known, and clip and δ do not enter. At another η it is
    η T that counts; what was seen is in simulations/kan_gd.

    Args:
        num_records: n ≥ 1, over all sites.
        epsilon: ε > 0 of the whole run.
        input_dim: d ≥ 1, the number of features.

    Raises:
        ValueError: If an argument is out of range.
    """
    check_count("num_records", num_records)
    check_positive("epsilon", epsilon)
    check_count("input_dim", input_dim)
    return max(1, round(num_records * epsilon / math.sqrt(input_dim)))
