"""What the plots of a report are drawn from: rounds, noise, edges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dpfed_kan.data.schema import Categorical, Numeric, Ordinal, Schema
from dpfed_kan.kan import TwoLayerKAN
from dpfed_kan.kan.edges import edge_functions
from dpfed_kan.privacy.mechanism import Mechanism
from dpfed_kan.privacy.noising import noise_std
from dpfed_kan.update.rule import UpdateState

_ROUNDS_SHOWN = 100
_EDGES_SHOWN = 8
_POINTS = 41
_DIGITS = 6


def rounds(metrics: Sequence[dict[str, Any]], *, num_rounds: int) -> list[dict[str, Any]]:
    """Return the rounds in which something was measured, up to the last that counts."""
    keys = ("round", "epsilon", "held_out_loss", "held_out_accuracy")
    measured = [
        row
        for row in metrics
        if row["round"] <= num_rounds and any(row.get(key) is not None for key in keys[1:])
    ]
    return [{key: row.get(key) for key in keys} for row in _thinned(measured)]


def noise(mechanism: Mechanism) -> list[dict[str, float]]:
    """Return the noise of each round, and of the sum of the rounds so far; nothing without noise.

    The noise of round t is κ C d_t (Z_t − λ Z_{t−1}). In the sum Z_s is left with d_s − λ d_{s+1},
    and the last with d_t.
    """
    if mechanism.noise_multiplier == 0:
        return []
    given, horizon = mechanism.noise, mechanism.num_rounds
    scales, lam = given.row_scales(horizon), given.correlation
    kept = np.square(scales[:-1] - lam * scales[1:])
    before = np.concatenate([[0.0], np.cumsum(kept)])
    in_sum = mechanism.l2_clip_norm * mechanism.noise_multiplier
    found = []
    for t in _thinned(range(horizon)):
        with_previous = 0.0
        if t > 0:
            previous_spread = 1.0 if t == 1 else math.sqrt(1 + lam**2)
            with_previous = -lam / (math.sqrt(1 + lam**2) * previous_spread)
        std = noise_std(given, round_index=t, num_rounds=horizon)
        found.append(
            {
                "round": t + 1,
                "std": mechanism.l2_clip_norm * std,
                "correlation_with_previous": with_previous,
                "std_of_sum": in_sum * math.sqrt(before[t] + scales[t] ** 2),
            }
        )
    return found


def edges(
    model: object, state: UpdateState | None, names: tuple[str, ...], schema: Schema | None
) -> dict[str, Any] | None:
    """Return the strongest first-layer edges over the declared range; None if there are none.

    Args:
        model: Of the experiment.
        state: After the last round, or None before any.
        names: Of the inputs, in their order.
        schema: Which declares the inputs' ranges, or None where the source has none.
    """
    if not isinstance(model, TwoLayerKAN) or state is None:
        return None
    dim = len(names)
    fixed = model.for_inputs(dim)
    half = fixed.input_basis.high if schema is None else dim**-0.5
    now, start = (
        edge_functions(fixed, params, input_dim=dim, half_width=half, num_points=_POINTS)
        for params in (state.model_params, state.initial_params)
    )
    declared = {} if schema is None else declared_ends(schema)
    strengths, start_strengths = now.strengths, start.strengths
    ends = (f"{-half:.3g}", f"{half:.3g}")
    shown = [
        {
            "input": names[i],
            "unit_index": j,
            "low": declared.get(names[i], ends)[0],
            "high": declared.get(names[i], ends)[1],
            "strength": float(strengths[j, i]),
            "strength_at_start": float(start_strengths[j, i]),
            "values": _rounded(now.values[j, i]),
            "values_at_start": _rounded(start.values[j, i]),
        }
        for j, i in now.strongest(_EDGES_SHOWN)
    ]
    return {
        "num_edges": int(strengths.size),
        "range": "the range that the schema declares" if declared else "the model's public grid",
        "strongest": shown,
    }


def declared_ends(schema: Schema) -> dict[str, tuple[str, str]]:
    """Return what the two ends of each encoded input stand for, by its name: public words."""
    found: dict[str, tuple[str, str]] = {}
    for column in schema.columns:
        match column:
            case Numeric():
                found[column.name] = (f"{column.low:g}", f"{column.high:g}")
            case Ordinal():
                found[column.name] = (str(column.categories[0]), str(column.categories[-1]))
            case Categorical():
                for category in column.categories:
                    found[f"{column.name}={category}"] = ("no", "yes")
        if column.missing == "indicate":
            found[f"{column.name} is missing"] = ("no", "yes")
    return found


def _thinned(rows: Sequence[Any]) -> list[Any]:
    """Return at most so many rows, evenly spread, with the first two and the last."""
    if len(rows) <= _ROUNDS_SHOWN:
        return list(rows)
    places = np.unique(np.linspace(0, len(rows) - 1, _ROUNDS_SHOWN - 1).round().astype(int))
    return [rows[place] for place in sorted({*places.tolist(), 1})]


def _rounded(values: Any) -> list[float]:
    return [round(float(value), _DIGITS) for value in values]
