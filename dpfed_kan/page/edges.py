"""The plots of the strongest edge functions: what a KAN can be read by."""

from __future__ import annotations

from dpfed_kan.page.curves import figure, numbers
from dpfed_kan.page.drawing import Frame, Line, line_plot, shortened
from dpfed_kan.page.elements import Markup, element, join, table
from dpfed_kan.page.values import Report, shown


def edge_plots(report: Report) -> Markup | str:
    """Return the strongest edge functions of the first layer."""
    if not report["curves"].has("edges"):
        return ""
    edges = report["curves"]["edges"]
    shown_edges = list(edges["strongest"])
    values = [
        y for e in shown_edges for key in ("values", "values_at_start") for y in e[key].content
    ]
    spread = max(abs(y) for y in values) or 1.0
    plots = [_edge(edge, spread) for edge in shown_edges]
    every = table(
        "Strength of the edges that are drawn: root mean square about the mean",
        ["input → hidden unit", "now", "at the start"],
        [
            [
                join(e["input"].text, " → ", e["unit_index"].number("g")),
                e["strength"].number(".3g"),
                e["strength_at_start"].number(".3g"),
            ]
            for e in shown_edges
        ],
    )
    return join(
        element(
            "p",
            "The strongest of the ",
            edges["num_edges"].number("g"),
            f" functions on the first layer, over {edges['range'].text}. Solid: the released "
            "model. Dashed: the random start, so that the gap between the two is what training "
            "made, noise included. Of an input that is a code only the ends occur, or evenly "
            "spaced places between. They are made from released parameters and are covered by ε.",
        ),
        element("div", *plots, class_="small"),
        numbers("The numbers of these plots", every),
    )


def _edge(edge: Report, spread: float) -> Markup:
    last = len(edge["values"]) - 1
    lines = [
        Line(
            name=name,
            points=[(k / last, y) for k, y in enumerate(edge[key].content)],
            style=style,
        )
        for key, name, style in (
            ("values_at_start", "at the start", 1),
            ("values", "released", 0),
        )
    ]
    name, unit = edge["input"].text, edge["unit_index"].text
    frame = Frame(x=(0.0, 1.0), y=(-1.05 * spread, 1.05 * spread), height=170)
    drawn = line_plot(
        lines,
        alternative=f"Function of {name} into hidden unit {unit}, from "
        f"{shown(edge['values'][0].value, '.2f')} at {edge['low'].text} to "
        f"{shown(edge['values'][last].value, '.2f')} at {edge['high'].text}; at the start from "
        f"{shown(edge['values_at_start'][0].value, '.2f')} to "
        f"{shown(edge['values_at_start'][last].value, '.2f')}.",
        x_label=shortened(name),
        y_label="output",
        frame=frame,
        x_ends=(edge["low"].text, edge["high"].text),
        legend=False,
    )
    return figure(drawn, join("From ", name, " into unit ", edge["unit_index"].number("g")))
