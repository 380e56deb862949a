"""Numbers of the report, each with where it comes from, so that a machine can check the page.

A number is `<data value="..." data-from="/guarantee/epsilon">`: its full value, and the JSON
pointer (RFC 6901) to it in `report.json`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dpfed_kan.page.elements import Markup, element, kept_together

_DIGITS = 3


@dataclass(frozen=True, kw_only=True)
class Report:
    """A report, or a part of it.

    Args:
        content: Plain data.
        pointer: Where the part is in the whole.
    """

    content: Any = field(repr=False)
    pointer: str = ""

    def __getitem__(self, key: str | int) -> Report:
        """Return a part."""
        step = str(key).replace("~", "~0").replace("/", "~1")
        return Report(content=self.content[key], pointer=f"{self.pointer}/{step}")

    def __iter__(self) -> Any:
        """Return the parts of a list."""
        return (self[place] for place in range(len(self.content)))

    def __len__(self) -> int:
        """Return how many parts there are."""
        return len(self.content)

    def has(self, key: str) -> bool:
        """Whether there is a part of that name that is not null."""
        return isinstance(self.content, Mapping) and self.content.get(key) is not None

    @property
    def text(self) -> str:
        """The part as text."""
        return str(self.content)

    @property
    def value(self) -> float:
        """The part as a number."""
        return math.inf if self.content == "infinity" else float(self.content)

    @property
    def is_infinite(self) -> bool:
        """Whether it stands for infinity."""
        return bool(self.content == "infinity")

    def number(self, spec: str = f".{_DIGITS}f") -> Markup:
        """Return a number for people, rounded to nearest; whole ones in full."""
        if isinstance(self.content, int):
            return self._data(str(self.content))
        return self._data(shown(self.value, spec))

    def bound(self) -> Markup:
        """Return an upper bound for people: rounded up, never down."""
        return self._data(shown_bound(self.value))

    def interval(self) -> Markup:
        """Return an interval of two shares."""
        return kept_together("[", self[0].number(".2f"), ", ", self[1].number(".2f"), "]")

    def _data(self, text: str) -> Markup:
        return element("data", text, value=json.dumps(self.content), data_from=self.pointer)


def shown(value: float, spec: str) -> str:
    """Return a number as it is printed."""
    if math.isinf(value):
        return "∞"
    return format(value, spec).replace("-", "−")


def shown_bound(value: float) -> str:
    """Return an upper bound as it is printed."""
    if math.isinf(value):
        return "∞"
    return f"{math.ceil(value * 10**_DIGITS - 1e-9) / 10**_DIGITS:.{_DIGITS}f}"
