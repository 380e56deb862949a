"""A site's no, which may be told: it names a rule, in words of this program."""

from __future__ import annotations

import re

_WORDS = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ,;:_.'()`/%εδ=+-]{0,400}")


class Refusal(Exception):
    """The site will not take part, or not in this round.

    Args:
        rule: Which rule, in words of this program: no data.
    """

    def __init__(self, rule: str) -> None:
        super().__init__(rule)
        self.rule = rule


def told_rule(text: str) -> str | None:
    """Return what a site says that its rule is, if it is plain words."""
    return text if _WORDS.fullmatch(text) else None
