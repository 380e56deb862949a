"""A sweep's table as CSV and as one HTML page without anything from outside."""

from __future__ import annotations

import csv
import html
import io
import math
from collections.abc import Callable, Sequence

from dpfed_kan.sweep import METRICS, Group, Sweep, Value, groups, utility
from dpfed_kan.sweep_cost import SweepCost

_WIDTH, _HEIGHT, _MARGIN = 560, 320, 48
_STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:76rem;margin:2rem auto;padding:0 1rem}
table{font-size:.85rem;border-collapse:collapse;margin:1rem 0;
display:block;overflow-x:auto}
th,td{border:1px solid #bbb;padding:.2rem .5rem;text-align:right;white-space:nowrap}
th{background:#f3f3f3}
td.text,th.text{text-align:left}.failed,.unfinished{color:#a00;font-weight:bold}
p.cost{border-left:4px solid #a00;padding:.5rem 1rem;background:#fff4f2}
svg{width:100%;max-width:40rem}"""
_NOTE = (
    "Accuracy, AUC and loss are measured on held-out records without noise: they are facts about "
    "those records and are not covered by any ε."
)


def as_csv(sweep: Sweep) -> str:
    """Return mean and sd over seeds, a line for each group of the other swept settings."""
    file = io.StringIO()
    rows = csv.writer(file, lineterminator="\n")
    numbers = [f"{name}_{kind}" for name in METRICS for kind in ("mean", "sd")]
    rows.writerow([*sweep.swept, "runs", *numbers, "frontier"])
    for group in groups(sweep):
        found = [part.get(name, "") for name in METRICS for part in (group.means, group.deviations)]
        settings = [group.settings[name] for name in sweep.swept]
        rows.writerow([*settings, group.num_runs, *found, int(group.on_frontier)])
    return file.getvalue()


def as_html(sweep: Sweep, *, cost: SweepCost | None, cost_problem: str = "") -> str:
    """Return the page: status, cost, means, frontier, heat map, every run."""
    found = groups(sweep)
    parts = [
        "<h1>Sweep</h1>",
        f"<p>{html.escape(status_line(sweep))}</p>",
        f'<p class="cost">{html.escape(cost_line(cost, cost_problem))}</p>',
        f"<h2>Mean ± standard deviation over seeds</h2><p>{_NOTE}</p>",
        _means(sweep, found),
    ]
    if any(math.isfinite(group.means.get("epsilon", math.inf)) for group in found):
        parts += ["<h2>Privacy and utility</h2>", _frontier(found)]
    if len(sweep.swept) == 2:
        parts += ["<h2>Heat map</h2>", _heat_map(sweep.swept, found)]
    parts += ["<h2>Every run</h2>", _every_run(sweep)]
    body = "\n".join(part for part in parts if part)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width"><title>Sweep</title><style>{_STYLE}</style></head>\n'
        f"<body><main>{body}</main></body></html>\n"
    )


def status_line(sweep: Sweep) -> str:
    """Say how many runs there are of each status."""
    return (
        f"{len(sweep.runs)} runs: {sweep.count('ok')} ok, {sweep.count('failed')} failed, "
        f"{sweep.count('unfinished')} unfinished."
    )


def cost_line(cost: SweepCost | None, problem: str) -> str:
    """Say what choosing costs, or why that is not known."""
    if problem:
        return (
            "Choosing the best run is not covered by the ε of one run, and the cost of all runs "
            f"together was not found: {problem}"
        )
    return "Nothing was released." if cost is None else cost.sentence


def with_deviation(group: Group, name: str) -> str:
    """Return mean ± sd of a metric as text."""
    if name not in group.means:
        return "none"
    if math.isinf(group.means[name]):
        return "∞"
    spread = f" ± {group.deviations[name]:.2g}" if name in group.deviations else ""
    return f"{group.means[name]:.3g}{spread}"


def _means(sweep: Sweep, found: Sequence[Group]) -> str:
    rows = [
        [
            *(_cell(group.settings[name], text=True) for name in sweep.swept),
            _cell(group.num_runs),
            *(_cell(with_deviation(group, name)) for name in METRICS),
            _cell("yes" if group.on_frontier else ""),
        ]
        for group in found
    ]
    return _table([*sweep.swept, "runs", *METRICS, "frontier"], rows)


def _every_run(sweep: Sweep) -> str:
    rows = []
    for run in sweep.runs:
        metrics = [run.metrics.get(name) for name in METRICS]
        rows.append(
            [
                _cell(run.path.name, text=True),
                _cell(sweep.shown(run), text=True),
                f'<td class="text {run.status}">{run.status}</td>',
                *(_cell("" if number is None else f"{number:.4g}") for number in metrics),
                _cell(run.reason, text=True),
            ]
        )
    return _table(["run", "settings", "status", *METRICS, "reason"], rows)


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in names)
    lines = "\n".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{lines}\n</tbody></table>"


def _cell(value: Value, *, text: bool = False) -> str:
    kind = ' class="text"' if text else ""
    return f"<td{kind}>{html.escape(str(value))}</td>"


def _frontier(found: Sequence[Group]) -> str:
    """Draw utility against ε; the groups on the frontier are filled and joined by a line."""
    points = []
    for group in found:
        useful = utility(group)
        if useful is not None and math.isfinite(group.means["epsilon"]):
            points.append((group.means["epsilon"], abs(useful[1]), useful[0], group))
    if not points:
        return ""
    name = points[0][2]
    points = [point for point in points if point[2] == name]
    across, up = _scale([p[0] for p in points], _WIDTH), _scale([p[1] for p in points], _HEIGHT)
    joined = sorted((p for p in points if p[3].on_frontier), key=lambda p: p[:2])
    line = " ".join(f"{across(p[0]):.1f},{_HEIGHT - up(p[1]):.1f}" for p in joined)
    dots = "\n".join(
        f'<circle cx="{across(epsilon):.1f}" cy="{_HEIGHT - up(value):.1f}" r="5" '
        f'stroke="#036" fill="{"#036" if group.on_frontier else "#fff"}"><title>'
        f"{html.escape(_label(group))}: ε {epsilon:.4g}, {name} {value:.4g}</title></circle>"
        for epsilon, value, _, group in points
    )
    edge = _MARGIN - 12
    axes = f"M{edge} {edge}V{_HEIGHT - edge}H{_WIDTH - edge}"
    ends = (
        f'<text x="{_MARGIN}" y="{_HEIGHT - 8}">ε {min(p[0] for p in points):.3g}</text>'
        f'<text x="{_WIDTH - 8}" y="{_HEIGHT - 8}" text-anchor="end">ε '
        f"{max(p[0] for p in points):.3g}</text>"
        f'<text x="4" y="{_HEIGHT - _MARGIN}">{min(p[1] for p in points):.3g}</text>'
        f'<text x="4" y="{_MARGIN}">{max(p[1] for p in points):.3g}</text>'
    )
    return (
        f'<figure><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" font-size="13" '
        f'aria-label="{name} against ε of each group; the figures are in the table above">'
        f'<path d="{axes}" fill="none" stroke="#999"/>'
        f'<polyline points="{line}" fill="none" stroke="#036"/>{dots}{ends}</svg>'
        f"<figcaption>Held-out {name} against ε; filled: no other group has a smaller ε and at "
        "least its utility.</figcaption></figure>"
    )


def _scale(values: Sequence[float], size: int) -> Callable[[float], float]:
    low, high = min(values), max(values)
    spread = (high - low) or 1.0
    return lambda value: _MARGIN + (value - low) / spread * (size - 2 * _MARGIN)


def _heat_map(swept: Sequence[str], found: Sequence[Group]) -> str:
    """Return the utility over two swept settings as a table whose cells are shaded."""
    useful = {
        tuple(group.settings[name] for name in swept): (group, pair[1])
        for group in found
        if (pair := utility(group)) is not None
    }
    if not useful:
        return ""
    low, high = (of(value for _, value in useful.values()) for of in (min, max))
    down, across = (
        sorted({key[place] for key in useful}, key=lambda v: (isinstance(v, str), v))
        for place in (0, 1)
    )
    name = "accuracy" if "accuracy" in next(iter(useful.values()))[0].means else "loss"
    rows = []
    for first in down:
        row = [f'<th scope="row" class="text">{html.escape(str(first))}</th>']
        for second in across:
            if (first, second) not in useful:
                row.append("<td>none</td>")
                continue
            group, value = useful[first, second]
            share = (value - low) / ((high - low) or 1.0)
            color = f"hsl(210 70% {95 - 35 * share:.0f}%)"
            row.append(f'<td style="background:{color}">{with_deviation(group, name)}</td>')
        rows.append(row)
    caption = f"{name}: {swept[0]} down, {swept[1]} across"
    return f"<p>{html.escape(caption)}</p>" + _table(["", *map(str, across)], rows)


def _label(group: Group) -> str:
    return ", ".join(f"{name}={value}" for name, value in group.settings.items()) or "all runs"
