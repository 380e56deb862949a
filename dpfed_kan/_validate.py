"""Checks of public settings: every error names the setting, its value and the allowed range."""

from __future__ import annotations

import math
from collections.abc import Collection
from numbers import Integral, Real


def check_number(
    name: str,
    value: float,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    low_open: bool = False,
    high_open: bool = False,
    advice: str = "",
) -> None:
    """Refuse a number outside an interval.

    Args:
        name: The setting's name as the user wrote it.
        value: The number; NaN and non-numbers are always refused.
        low: Least allowed value.
        high: Greatest allowed value.
        low_open: Whether `low` itself is refused.
        high_open: Whether `high` itself is refused.
        advice: What to do instead, added to the error.

    Raises:
        ValueError: If the value is not a number in the interval.
    """
    interval = f"{'(' if low_open else '['}{low:g}, {high:g}{')' if high_open else ']'}"
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    inside = (
        is_number
        and not math.isnan(value)
        and (value > low if low_open else value >= low)
        and (value < high if high_open else value <= high)
    )
    if not inside:
        raise ValueError(_message(name, value, interval, advice))


def check_positive(name: str, value: float, *, allow_infinity: bool = False) -> None:
    """Refuse a number that is not in (0, ∞), or (0, ∞] with `allow_infinity`."""
    check_number(name, value, low=0.0, low_open=True, high_open=not allow_infinity)


def check_count(name: str, value: int, *, low: int = 1, advice: str = "") -> None:
    """Refuse anything but an integer (NumPy's too) of at least `low`."""
    is_integer = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_integer or value < low:
        raise ValueError(_message(name, value, f"{{{low}, {low + 1}, ...}}", advice))


def check_choice(name: str, value: str, choices: Collection[str]) -> None:
    """Refuse a word that is not among `choices`."""
    if value not in choices:
        raise ValueError(_message(name, repr(value), "{" + ", ".join(choices) + "}", ""))


def _message(name: str, value: object, allowed: str, advice: str) -> str:
    return f"expected {name}={value} in {allowed}" + (f"; {advice}" if advice else "")
