"""The sections on what was spent: ε and δ of each site, to date, left, and the account."""

from __future__ import annotations

from dpfed_kan.page.curves import epsilon_plot
from dpfed_kan.page.elements import Markup, element, join, listed, table
from dpfed_kan.page.guarantee import relation, sentence
from dpfed_kan.page.values import Report

_SITES_SHOWN = 50
_ALONE = "this run alone: no ledger of a site was given (dpfed-kan report --site-ledger)"


def spent(report: Report) -> Markup:
    """Return what the section says."""
    part, promised = report["statement"]["spent"], report["guarantee"]
    rows = sorted(part["per_site"], key=lambda row: (-row["epsilon"].value, row["site"].text))
    protected = report["statement"]["unit"]
    unit = protected["unit"].text
    alike = [row for row in rows if row["epsilon"].content == promised["epsilon"].content]
    left = len(rows) - _SITES_SHOWN
    private = bool(promised["private"].content)
    at_delta = join(" at δ = ", part["delta"].number("g")) if private else " at any δ"
    return join(
        table(
            f"ε of each site, the worst first: of one {unit} under "
            f"{relation(protected['neighboring_relation'])}",
            ["site", "ε", "δ", f"{unit}s n", "share in a round q"],
            [
                [
                    row["site"].text,
                    row["epsilon"].bound(),
                    row["delta"].number("g") if private else "any",
                    row["num_units"].number("g"),
                    row["expected_share"].number(".3g"),
                ]
                for row in rows[:_SITES_SHOWN]
            ],
        ),
        element("p", f"{left} more sites are in report.json.") if left > 0 else "",
        element(
            "dl",
            element("dt", "Worst site"),
            element(
                "dd",
                promised["worst_site"].text,
                ", and others with the same ε" if len(alike) > 1 else "",
                ": ε = ",
                promised["epsilon"].bound(),
                at_delta,
                ". Its ε is the one in the statement on top.",
            ),
            element("dt", "This run"),
            element(
                "dd",
                "ε = ",
                promised["epsilon"].bound(),
                at_delta,
                " for ",
                promised["num_rounds"].number("g"),
                " of ",
                report["statement"]["mechanism"]["planned_rounds"].number("g"),
                " planned rounds. ",
                _whole_plan(report),
            ),
        ),
        _to_date(part),
        _meaning(report),
        epsilon_plot(report),
    )


def accountant(report: Report) -> Markup:
    """Return what the section says."""
    part = report["statement"]["accountant"]
    versions = ", ".join(
        f"{name} {part['versions'][name].text}" for name in part["versions"].content
    )
    if not part.has("method"):
        return element("p", f"No account: {part['reason'].text}. ε = ∞. Libraries: {versions}.")
    without = part["without_amplification"]
    rows = [
        [b["method"].text, b["epsilon"].bound(), b["assumption"].text]
        for b in sorted(report["guarantee"]["bounds_tried"], key=lambda b: b["epsilon"].value)
    ]
    compared = [
        [b["method"].text, b["epsilon"].number(), b["assumption"].text] for b in part["compared"]
    ]
    return join(
        element(
            "dl",
            element("dt", "Method"),
            element("dd", part["method"].text, ". It needs: ", part["assumption"].text, "."),
            element("dt", "Versions"),
            element("dd", f"dpfed_kan {report['run']['version'].text}, {versions}"),
            element("dt", "An independent accountant"),
            element("dd", part["check"].text, "."),
            element("dt", "ε without amplification by sampling"),
            element(
                "dd",
                element("strong", "ε = ", without["epsilon"].bound()),
                " at δ = ",
                report["statement"]["spent"]["delta"].number("g"),
                f" ({without['method'].text}): the same noise, clipping, rounds, unit and relation "
                f"if every record had joined every round. {sentence(without['note'].text)}",
            ),
        ),
        table(
            "All valid upper bounds that were computed; the least is the answer",
            ["method", "ε", "needs"],
            rows,
            texts=(2,),
        ),
        table(
            "Figures for comparison only, never the answer",
            ["method", "ε", "needs"],
            compared,
            texts=(2,),
        )
        if compared
        else "",
    )


def _whole_plan(report: Report) -> Markup | str:
    if report["run"]["finished"].content:
        return "That is the whole plan."
    return join(
        "The run is not finished. If when it stopped depends on what it had released, only the ε "
        "of the whole plan holds: ε = ",
        report["statement"]["spent"]["epsilon_of_the_whole_plan"].bound(),
        ".",
    )


def _to_date(part: Report) -> Markup:
    if not part.has("to_date"):
        return element(
            "dl",
            element("dt", "To date, and left"),
            element("dd", sentence(_ALONE)),
        )
    rows = [
        [
            each["site"].text,
            each["epsilon"].bound(),
            each["delta"].number("g"),
            each["num_runs"].number("g"),
            join("ε ", each["left_epsilon"].number(), ", δ ", each["left_delta"].number("g"))
            if each.has("left_epsilon")
            else "no policy given",
        ]
        for each in part["to_date"]
    ]
    notes = [
        f"{each['site'].text}: one {each['unit'].text} under "
        f"{relation(each['neighboring_relation'])}; {each['method'].text}; head of the ledger "
        f"{each['ledger_head'].text}."
        for each in part["to_date"]
    ]
    return join(
        table(
            "To date, over all runs on the same records, and left of the site's budget",
            ["site", "ε to date", "δ to date", "runs", "left"],
            rows,
        ),
        listed(notes),
    )


def _meaning(report: Report) -> Markup | str:
    if not report["guarantee"]["private"].content:
        return ""
    part = report["statement"]["spent"]
    return element(
        "p",
        "What that means: whatever is made of the released models, its probability with and "
        f"without one {report['statement']['unit']['unit'].text} differs by a factor of at most "
        "e",
        element("sup", "ε"),
        " = ",
        part["odds_factor"].number(_spec(part["odds_factor"].value)),
        ", apart from δ = ",
        part["delta"].number("g"),
        ". The smaller, the better protected.",
    )


def _spec(factor: float) -> str:
    if factor < 100:
        return ".2f"
    return ".0f" if factor < 1e9 else ".1e"
