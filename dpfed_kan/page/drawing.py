"""Plots as SVG: lines over an axis, small enough to read on a telephone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dpfed_kan.page.elements import Markup, element, join

WIDTH, HEIGHT = 360, 230
LEFT, RIGHT, TOP, BOTTOM = 50, 12, 12, 40
COLORS = ("#0b4f8a", "#b3400e", "#3f6b1f", "#6a3d8f")
_LEGEND_LINE = 17
DASHES = (None, "6 4", "2 3", "9 3 2 3")


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line.

    Args:
        name: In the legend.
        points: (x, y).
        style: Which color and dash, from 0.
        marks: Whether points are marked.
        joined: Whether points are joined.
    """

    name: str
    points: Sequence[tuple[float, float]]
    style: int = 0
    marks: bool = False
    joined: bool = True


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Where data lie on the drawing.

    Args:
        x: Least and greatest value across.
        y: Least and greatest value up.
        height: Of the drawing.
        left: Room for what stands left of the frame.
    """

    x: tuple[float, float]
    y: tuple[float, float]
    height: int = HEIGHT
    left: int = LEFT

    def across(self, value: float) -> float:
        """Return where a value is, from the left."""
        share = (value - self.x[0]) / (self.x[1] - self.x[0])
        return round(self.left + share * (WIDTH - RIGHT - self.left), 1)

    def up(self, value: float) -> float:
        """Return where a value is, from the top."""
        share = (value - self.y[0]) / (self.y[1] - self.y[0])
        return round(self.height - BOTTOM - share * (self.height - BOTTOM - TOP), 1)


def widened(values: Sequence[float], *, to: Sequence[float] = ()) -> tuple[float, float]:
    """Return a range that holds values, with some room, and is never empty."""
    low, high = min([*values, *to]), max([*values, *to])
    room = 0.05 * (high - low) or max(0.05 * abs(high), 1e-3)
    return low - (0.0 if low in to else room), high + (0.0 if high in to else room)


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Return round numbers in a range: multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * k for k in (1, 2, 5, 10) if power * k >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    count = math.floor(high / step + 1e-9) - first + 1
    return [round((first + k) * step, 12) for k in range(count)]


def line_plot(
    lines: Sequence[Line],
    *,
    alternative: str,
    x_label: str,
    y_label: str,
    frame: Frame,
    x_ends: tuple[str, str] | None = None,
    extra: Sequence[Markup] = (),
    legend: bool = True,
) -> Markup:
    """Return a plot of lines.

    Args:
        lines: To draw.
        alternative: What it shows, for who cannot see it.
        x_label: Of the axis across.
        y_label: Of the axis up.
        frame: Of the axes.
        x_ends: What stands at the two ends of the axis across, in place of numbers.
        extra: What else is drawn.
        legend: Whether more than one line is named under the plot.
    """
    drawn = [mark for line in lines for mark in _line(line, frame)]
    named = list(lines) if legend and len(lines) > 1 else []
    return drawing(
        alternative,
        axes(frame, x_label=x_label, y_label=y_label, x_ends=x_ends),
        *drawn,
        *extra,
        *_legend(named, frame.height),
        height=frame.height + _LEGEND_LINE * len(named),
    )


def axes(
    frame: Frame, *, x_label: str, y_label: str, x_ends: tuple[str, str] | None = None
) -> Markup:
    """Return grid, ticks and labels."""
    bottom, top = frame.height - BOTTOM, TOP
    parts = []
    for value in ticks(*frame.y):
        y = frame.up(value)
        parts += [
            element("line", x1=frame.left, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"),
            element("text", _tick(value), x=frame.left - 5, y=y + 4, text_anchor="end"),
        ]
    if x_ends is None:
        for value in ticks(*frame.x):
            x = frame.across(value)
            parts += [
                element("line", x1=x, x2=x, y1=bottom, y2=bottom + 4, class_="axis"),
                element("text", _tick(value), x=x, y=bottom + 17, text_anchor="middle"),
            ]
    else:
        for text, x, anchor in (
            (x_ends[0], frame.left, "start"),
            (x_ends[1], WIDTH - RIGHT, "end"),
        ):
            parts.append(element("text", shortened(text), x=x, y=bottom + 17, text_anchor=anchor))
    middle = (frame.left + WIDTH - RIGHT) / 2
    parts += [
        element("line", x1=frame.left, x2=WIDTH - RIGHT, y1=bottom, y2=bottom, class_="axis"),
        element("line", x1=frame.left, x2=frame.left, y1=top, y2=bottom, class_="axis"),
        element("text", x_label, x=middle, y=bottom + 34, text_anchor="middle"),
        element(
            "text",
            y_label,
            x=-(top + bottom) / 2,
            y=12,
            text_anchor="middle",
            transform="rotate(-90)",
        ),
    ]
    return element("g", *parts)


def drawing(alternative: str, *parts: Markup, height: int) -> Markup:
    """Return an SVG image with its text alternative."""
    return element(
        "svg",
        element("title", alternative),
        *parts,
        viewBox=f"0 0 {WIDTH} {height}",
        role="img",
        aria_label=alternative,
    )


def mark(x: float, y: float, style: int = 0, *, hollow: bool = False) -> Markup:
    """Return a point."""
    color = COLORS[style]
    fill = "#ffffff" if hollow else color
    return element("circle", cx=x, cy=y, r=3.5, fill=fill, stroke=color, stroke_width=1.5)


def _line(line: Line, frame: Frame) -> list[Markup]:
    places = [(frame.across(x), frame.up(y)) for x, y in line.points]
    parts = []
    if line.joined:
        parts.append(
            element(
                "polyline",
                points=" ".join(f"{x},{y}" for x, y in places),
                fill="none",
                stroke=COLORS[line.style],
                stroke_width=2,
                stroke_dasharray=DASHES[line.style],
            )
        )
    if line.marks:
        parts += [mark(x, y, line.style) for x, y in places]
    return parts


def _legend(lines: Sequence[Line], top: int) -> list[Markup]:
    rows = []
    for place, line in enumerate(lines):
        y = top + 12 + _LEGEND_LINE * place
        stroke = element(
            "line",
            x1=LEFT,
            x2=LEFT + 28,
            y1=y - 4,
            y2=y - 4,
            stroke=COLORS[line.style],
            stroke_width=2,
            stroke_dasharray=DASHES[line.style],
        )
        sample = stroke if line.joined else mark(LEFT + 14, y - 4, line.style)
        rows.append(join(sample, element("text", line.name, x=LEFT + 36, y=y)))
    return rows


def _tick(value: float) -> str:
    return f"{value:.6g}".replace("-", "−")


def shortened(text: str, most: int = 24) -> str:
    """Return a text that fits the drawing."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
