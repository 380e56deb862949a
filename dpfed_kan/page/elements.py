"""HTML elements whose text is escaped because there is no other way to make one."""

from __future__ import annotations

from collections.abc import Collection
from html import escape


class Markup(str):
    """Text that is HTML already; any other text is escaped where it is put into an element."""

    __slots__ = ()


_EMPTY = ("br", "meta", "circle", "line", "polyline", "polygon", "rect")


def element(tag: str, *children: str, **attributes: object) -> Markup:
    """Return an element.

    Args:
        tag: Its name.
        children: Text, which is escaped, and elements, which are not.
        attributes: `class_` is class and `data_from` is data-from; None is left out.
    """
    shown = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(str(value), quote=True)}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in _EMPTY and not children:
        return Markup(f"<{tag}{shown}/>")
    return Markup(f"<{tag}{shown}>{join(*children)}</{tag}>")


def join(*parts: str) -> Markup:
    """Return parts side by side, text escaped."""
    return Markup("".join(p if isinstance(p, Markup) else escape(p, quote=True) for p in parts))


def kept_together(*parts: str) -> Markup:
    """Return parts that stay on one line."""
    return element("span", *parts, class_="together")


def listed(items: list[str] | list[Markup]) -> Markup:
    """Return a bulleted list."""
    return element("ul", *(element("li", item) for item in items))


def table(
    caption: str,
    columns: list[str],
    rows: list[list[str]],
    *,
    texts: Collection[int] = (),
    wide: bool = False,
) -> Markup:
    """Return a table whose first column names its rows.

    Args:
        caption: What it shows.
        columns: Headings.
        rows: Cells; the first of each is the row's heading.
        texts: Columns besides the first that hold text; the others hold numbers, set to the right.
        wide: Whether it may be wider than a telephone, and is then scrolled by itself.
    """
    classes = [None if place == 0 or place in texts else "number" for place in range(len(columns))]
    head = [
        element("th", name, scope="col", class_=c) for name, c in zip(columns, classes, strict=True)
    ]
    body = [
        element(
            "tr",
            element("th", row[0], scope="row"),
            *(element("td", cell, class_=c) for cell, c in zip(row[1:], classes[1:], strict=True)),
        )
        for row in rows
    ]
    made = element(
        "table",
        element("caption", element("span", caption)),
        element("thead", element("tr", *head)),
        element("tbody", *body),
    )
    if not wide:
        return element("div", made, class_="scroll")
    return element(
        "div", made, class_="scroll wide", tabindex="0", role="region", aria_label=caption
    )
