"""The plots and tables of what was measured on held-out records: none of it is private."""

from __future__ import annotations

from dpfed_kan.page.curves import NOT_PRIVATE, figure, numbers
from dpfed_kan.page.drawing import (
    BOTTOM,
    COLORS,
    RIGHT,
    TOP,
    WIDTH,
    Frame,
    Line,
    drawing,
    line_plot,
    mark,
    shortened,
)
from dpfed_kan.page.elements import Markup, element, join, table
from dpfed_kan.page.values import Report, shown

SITES_SHOWN = 40
_ACCURACY = ("accuracy", "accuracy_interval", "base_rate")
_ROW = 36


def sites_plot(found: Report) -> Markup | str:
    """Return accuracy of each site with its interval, beside its base rate."""
    sites = _with_accuracy(found)
    if not sites:
        return ""
    height = TOP + _ROW * len(sites) + BOTTOM
    frame = Frame(x=(0.0, 1.0), y=(0.0, 1.0), height=height, left=RIGHT)
    parts, said = [], []
    for place, (name, site) in enumerate(sites):
        y = TOP + _ROW * place + 26
        low, high = (frame.across(site["accuracy_interval"][k].value) for k in (0, 1))
        base = frame.across(site["base_rate"].value)
        parts += [
            element("text", shortened(name, 44), x=RIGHT, y=y - 10, class_="name"),
            element("line", x1=RIGHT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"),
            element("line", x1=low, x2=high, y1=y, y2=y, stroke=COLORS[0], stroke_width=3),
            element(
                "line", x1=base, x2=base, y1=y - 8, y2=y + 8, stroke=COLORS[1], stroke_width=2.5
            ),
            mark(frame.across(site["accuracy"].value), y),
        ]
        said.append(
            f"{name}: {shown(site['accuracy'].value, '.3f')}, base rate "
            f"{shown(site['base_rate'].value, '.3f')}"
        )
    bottom = height - BOTTOM
    for place in range(6):
        value = place / 5
        x = frame.across(value)
        parts.append(element("text", f"{value:g}", x=x, y=bottom + 16, text_anchor="middle"))
    parts.append(element("text", "accuracy", x=WIDTH / 2, y=bottom + 33, text_anchor="middle"))
    drawn = drawing("Accuracy at each site. " + "; ".join(said) + ".", *parts, height=height)
    caption = join(
        "Accuracy on each site's held-out records: point and 95 % interval (Wilson), blue; base "
        "rate (always naming the site's larger class), orange tick. ",
        NOT_PRIVATE,
    )
    return figure(drawn, caption)


def reliability_plot(found: Report) -> Markup | str:
    """Return how often what the model calls likely is true."""
    if not found.has("reliability") or not len(found["reliability"]):
        return ""
    bins = list(found["reliability"])
    points = [(b["mean_probability"].value, b["frequency"].value) for b in bins]
    frame = Frame(x=(0.0, 1.0), y=(0.0, 1.0), height=300)
    whiskers = [
        element(
            "line",
            x1=frame.across(b["mean_probability"].value),
            x2=frame.across(b["mean_probability"].value),
            y1=frame.up(b["frequency_interval"][0].value),
            y2=frame.up(b["frequency_interval"][1].value),
            stroke=COLORS[0],
            stroke_width=1.5,
        )
        for b in bins
    ]
    diagonal = line_plot(
        [
            Line(name="this model", points=points, marks=True, joined=False),
            Line(name="perfectly calibrated", points=[(0, 0), (1, 1)], style=1),
        ],
        alternative="Predicted probability against observed frequency of the positive class: "
        + "; ".join(f"{shown(x, '.2f')} against {shown(y, '.2f')}" for x, y in points)
        + ".",
        x_label="predicted probability",
        y_label="observed frequency",
        frame=frame,
        extra=whiskers,
    )
    every = table(
        "Reliability: held-out records by predicted probability (not private)",
        ["predicted, from – to", "records", "mean predicted", "observed, 95 % interval"],
        [
            [
                join(b["low"].number(".1f"), " – ", b["high"].number(".1f")),
                b["num_records"].number("g"),
                b["mean_probability"].number(),
                join(b["frequency"].number(), " ", b["frequency_interval"].interval()),
            ]
            for b in bins
        ],
    )
    caption = join(
        "Calibration over all held-out records, with 95 % intervals (Wilson). Tenths with fewer "
        "than ",
        found["smallest_bin"].number("g"),
        " records are left out. ",
        NOT_PRIVATE,
    )
    return figure(diagonal, caption, numbers("The numbers of this plot", every))


def utility_tables(found: Report) -> Markup:
    """Return the figures of each site and of all."""
    sites = [(name, found["per_site"][name]) for name in sorted(found["per_site"].content)]
    rows = sites[:SITES_SHOWN]
    if found.has("num_records"):
        rows.append(("all records", found))
    left = len(sites) - SITES_SHOWN
    more = element("p", f"{left} more sites are in report.json.") if left > 0 else Markup("")
    return join(
        table(
            "Accuracy and base rate on held-out records, with 95 % intervals (not private)",
            ["site", "records", "accuracy", "base rate"],
            [
                [
                    name,
                    _optional(each, "num_records"),
                    _with_interval(each, "accuracy"),
                    _optional(each, "base_rate"),
                ]
                for name, each in rows
            ],
        ),
        table(
            "AUC, calibration error and loss on held-out records (not private)",
            ["site", "AUC, 95 %", "calibration error", "loss"],
            [
                [
                    name,
                    _with_interval(each, "auc"),
                    _optional(each, "calibration_error"),
                    _optional(each, "loss"),
                ]
                for name, each in rows
            ],
        ),
        more,
        element(
            "p",
            "An interval from 0 to 1 for AUC: one of the two classes has too few records there to "
            "say more.",
        )
        if any(_says_nothing(each) for _, each in rows)
        else "",
    )


def differences_table(found: Report) -> Markup | str:
    """Return the site-by-site matrix of differences of accuracy."""
    if not found.has("accuracy_differences") or not len(found["accuracy_differences"]):
        return ""
    pairs = {
        (each["site"].text, each["other"].text): each for each in found["accuracy_differences"]
    }
    names = sorted({site for site, _ in pairs})
    rows = [
        [name, *(_difference(pairs[name, other]) if other != name else "–" for other in names)]
        for name in names
    ]
    return table(
        "Accuracy of the row's site less that of the column's, with 95 % intervals (Newcombe); "
        "bold where the interval leaves out 0; not corrected for the number of pairs (not private)",
        ["site", *names],
        rows,
        wide=True,
    )


def _difference(pair: Report) -> Markup:
    low, high = pair["interval"][0].value, pair["interval"][1].value
    value = pair["difference"].number("+.2f")
    if low > 0 or high < 0:
        value = element("strong", value)
    return join(value, " ", pair["interval"].interval())


def _with_interval(found: Report, name: str) -> Markup:
    if not found.has(name):
        return join("not defined")
    interval = found[f"{name}_interval"].interval() if found.has(f"{name}_interval") else ""
    return join(found[name].number(), " ", interval)


def _says_nothing(found: Report) -> bool:
    return found.has("auc_interval") and found["auc_interval"].content == [0.0, 1.0]


def _optional(found: Report, name: str) -> Markup:
    return found[name].number() if found.has(name) else join("not defined")


def _with_accuracy(found: Report) -> list[tuple[str, Report]]:
    if not found.has("per_site"):
        return []
    sites = [(name, found["per_site"][name]) for name in sorted(found["per_site"].content)]
    return [(name, site) for name, site in sites if all(map(site.has, _ACCURACY))][:SITES_SHOWN]
