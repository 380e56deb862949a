"""The plots over rounds: loss, accuracy, ε, noise; each with its table."""

from __future__ import annotations

from collections.abc import Callable

from dpfed_kan.page.drawing import Frame, Line, line_plot, widened
from dpfed_kan.page.elements import Markup, element, join, table
from dpfed_kan.page.values import Report, shown, shown_bound

NOT_PRIVATE = element("strong", "Not private.", class_="mark")
_ROWS = 25


def figure(drawn: Markup, caption: Markup | str, *more: Markup) -> Markup:
    """Return a figure with its caption, and what comes under it."""
    return element("figure", drawn, element("figcaption", caption), *more)


def numbers(summary: str, shown_table: Markup) -> Markup:
    """Return a table that unfolds."""
    return element("details", element("summary", summary), shown_table)


def loss_plot(report: Report) -> Markup | str:
    """Return held-out loss over rounds."""
    rows = _measured(report, "held_out_loss")
    if not rows:
        return ""
    points = _points(rows, "held_out_loss")
    drawn = line_plot(
        [Line(name="held-out loss", points=points, marks=True)],
        alternative=_from_to("Held-out loss", rows, "held_out_loss"),
        x_label="round",
        y_label="mean loss",
        frame=Frame(x=_rounds(rows), y=widened([y for _, y in points])),
    )
    return figure(drawn, join("Loss on held-out records over the rounds. ", NOT_PRIVATE))


def accuracy_plot(report: Report) -> Markup | str:
    """Return held-out accuracy over rounds, beside the base rate."""
    rows = _measured(report, "held_out_accuracy")
    if not rows:
        return ""
    points = _points(rows, "held_out_accuracy")
    lines = [Line(name="accuracy", points=points, marks=True)]
    measured = report["diagnostics_not_private"]
    base: list[float] = []
    if measured.has("base_rate"):
        base = [measured["base_rate"].value]
        ends = [(x, base[0]) for x in _rounds(rows)]
        lines.append(Line(name="base rate: always the larger class", points=ends, style=1))
    drawn = line_plot(
        lines,
        alternative=_from_to("Held-out accuracy", rows, "held_out_accuracy")
        + (f" The base rate is {shown(base[0], '.3f')}." if base else ""),
        x_label="round",
        y_label="accuracy",
        frame=Frame(x=_rounds(rows), y=widened([*base, *(y for _, y in points)])),
    )
    return figure(drawn, join("Accuracy on held-out records over the rounds. ", NOT_PRIVATE))


def epsilon_plot(report: Report) -> Markup | str:
    """Return ε over rounds, with the table of all that was measured over rounds."""
    rows = [row for row in _measured(report, "epsilon") if not row["epsilon"].is_infinite]
    every = table(
        "ε so far, and loss and accuracy on held-out records (not private)",
        ["round", "ε", "loss", "accuracy"],
        [_row(row) for row in _few(list(report["curves"]["rounds"]))],
    )
    under = numbers("The numbers of the plots over rounds", every)
    if not rows:
        return under if len(report["curves"]["rounds"]) else ""
    points = [(0.0, 0.0), *_points(rows, "epsilon")]
    delta = report["statement"]["spent"]["delta"]
    drawn = line_plot(
        [Line(name="ε", points=points)],
        alternative=_from_to("ε", rows, "epsilon", shown_bound)
        + f" It is an upper bound at δ = {delta.value:g}, at the worst site.",
        x_label="round",
        y_label="ε so far",
        frame=Frame(x=(0.0, _rounds(rows)[1]), y=widened([y for _, y in points], to=[0.0])),
    )
    caption = join(
        "ε that the rounds so far have spent, at δ = ",
        delta.number("g"),
        ": an upper bound at the worst site, for the unit, relation, sampling, trust and method of "
        "the statement on top.",
    )
    return figure(drawn, caption, under)


def noise_plot(report: Report) -> Markup | str:
    """Return the noise of each round and of the sum of rounds."""
    rows = list(report["curves"]["noise"])
    if not rows:
        return ""
    lines = [
        Line(name="noise of one round", points=_points(rows, "std")),
        Line(
            name="noise of the sum of all rounds so far",
            points=_points(rows, "std_of_sum"),
            style=1,
        ),
    ]
    ys = [y for line in lines for _, y in line.points]
    last = rows[-1]
    drawn = line_plot(
        lines,
        alternative="Standard deviation of the noise in one coordinate. "
        f"Of one round: {shown(rows[0]['std'].value, '.3g')} in the first, "
        f"{shown(last['std'].value, '.3g')} in the last. Of the sum of all rounds: "
        f"{shown(last['std_of_sum'].value, '.3g')}.",
        x_label="round",
        y_label="standard deviation",
        frame=Frame(x=_rounds(rows), y=widened(ys, to=[0.0])),
    )
    every = table(
        "Noise in one coordinate of the sum over sites, before it is divided by the batch size",
        ["round", "std", "correlation with the round before", "std of the sum"],
        [
            [
                row["round"].number("g"),
                row["std"].number(".4g"),
                row["correlation_with_previous"].number(".3f"),
                row["std_of_sum"].number(".4g"),
            ]
            for row in _few(rows)
        ],
    )
    caption = (
        "Noise of each round, and of the sum of the rounds so far. It is drawn once for each "
        "round and is public in size, not in value."
    )
    return figure(drawn, caption, numbers("The numbers of this plot", every))


def _measured(report: Report, key: str) -> list[Report]:
    return [row for row in report["curves"]["rounds"] if row.has(key)]


def _points(rows: list[Report], key: str) -> list[tuple[float, float]]:
    return [(row["round"].value, row[key].value) for row in rows]


def _rounds(rows: list[Report]) -> tuple[float, float]:
    first, last = rows[0]["round"].value, rows[-1]["round"].value
    return (first, last) if last > first else (first - 1, last)


def _from_to(
    what: str,
    rows: list[Report],
    key: str,
    show: Callable[[float], str] = lambda value: shown(value, ".3f"),
) -> str:
    first, last = rows[0], rows[-1]
    return (
        f"{what}: {show(first[key].value)} in round {first['round'].text}, "
        f"{show(last[key].value)} in round {last['round'].text}."
    )


def _row(row: Report) -> list[str]:
    return [
        row["round"].number("g"),
        row["epsilon"].bound() if row.has("epsilon") else "",
        row["held_out_loss"].number() if row.has("held_out_loss") else "",
        row["held_out_accuracy"].number() if row.has("held_out_accuracy") else "",
    ]


def _few(rows: list[Report]) -> list[Report]:
    """Return at most so many rows, with the first two and the last."""
    if len(rows) <= _ROWS:
        return rows
    step = (len(rows) - 1) / (_ROWS - 2)
    places = sorted({1, *(round(step * k) for k in range(_ROWS - 1))})
    return [rows[place] for place in places]
