"""A page as a browser reads it: elements in a tree, with their text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = ("meta", "br", "line", "circle", "polyline")


@dataclass
class Node:
    tag: str
    attributes: dict[str, str] = field(default_factory=dict)
    children: list[Node | str] = field(default_factory=list)

    def nodes(self) -> Iterator[Node]:
        yield self
        for child in self.children:
            if isinstance(child, Node):
                yield from child.nodes()

    def all(self, *tags: str) -> list[Node]:
        return [node for node in self.nodes() if node.tag in tags]

    def by_id(self, name: str) -> Node:
        (found,) = [node for node in self.nodes() if node.attributes.get("id") == name]
        return found

    def text(self, *, without: tuple[str, ...] = ()) -> str:
        return "".join(
            child
            if isinstance(child, str)
            else ("" if child.tag in without else child.text(without=without))
            for child in self.children
        )


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.root = Node("document")
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop().tag == tag, f"{tag} is closed out of turn"

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def read(page: str) -> Node:
    reader = _Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == [reader.root], "an element is never closed"
    return reader.root
