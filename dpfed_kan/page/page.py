"""The page: the statement on top, twelve sections, one file that asks for nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dpfed_kan.page import account, guarantee
from dpfed_kan.page.curves import NOT_PRIVATE, accuracy_plot, loss_plot
from dpfed_kan.page.edges import edge_plots
from dpfed_kan.page.elements import Markup, element, join, listed, table
from dpfed_kan.page.guarantee import sentence
from dpfed_kan.page.measured import (
    differences_table,
    reliability_plot,
    sites_plot,
    utility_tables,
)
from dpfed_kan.page.style import STYLE
from dpfed_kan.page.values import Report

_TITLE = "Privacy report of a federated training"
_CONTRADICTED = (
    "The audit measured more than the account allows: by chance that happens in few audits; if it "
    "happens again, ε is wrong."
)
_NO_MATRIX = (
    "All sites share one model, so there is no matrix of models trained at one site and measured "
    "at another. The matrix of sites here compares how well the one model does at each."
)


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section of the page.

    Args:
        id: To link to.
        title: Its heading.
        content: From the report to what it says.
    """

    id: str
    title: str
    content: Callable[[Report], Markup]


def as_page(report: Mapping[str, Any]) -> str:
    """Return the page of a report, as `report.json` has it.

    Guarantees:
        Every number comes from the report and says where from. There is no script, and nothing
        is loaded from anywhere.
    """
    part = Report(content=report)
    body = join(
        element("a", "Skip to the report", href="#report", class_="skip"),
        element(
            "header",
            element("h1", _TITLE),
            element(
                "p",
                f"Made {part['run']['made_at'].text} with dpfed_kan {part['run']['version'].text}.",
            ),
            *banners(part),
            _headline(part),
        ),
        element(
            "nav",
            element(
                "ol", *(element("li", element("a", s.title, href=f"#{s.id}")) for s in SECTIONS)
            ),
            aria_label="Sections",
        ),
        element("main", *(_section(s, part) for s in SECTIONS), id="report"),
        element(
            "footer",
            element(
                "p",
                "Every number of this page is in report.json, beside it; each says in its source "
                "(data-from) where.",
            ),
        ),
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", _TITLE),
        element("style", STYLE),
    )
    return "<!DOCTYPE html>\n" + element("html", head, element("body", body), lang="en") + "\n"


def banners(report: Report) -> list[Markup]:
    """Return what must not be overlooked."""
    found = []
    if not report["guarantee"]["private"].content:
        found.append(
            _banner("No privacy: ε = ∞. ", "No noise was added; the models may reveal any record.")
        )
    if report["statement"]["randomness"]["seeded"].content:
        found.append(
            _banner(
                "Seeded, not private. ",
                "The noise comes from a seed, and who knows the seed can take it off. This is a "
                "simulation; its models must not be released as private.",
            )
        )
    if not report["run"]["finished"].content:
        found.append(
            _banner(
                "Unfinished. ",
                "This run has not come to its last round; what is said is about the rounds so far.",
            )
        )
    audited = report["statement"]["audit"]
    if audited["run"].content and not audited["agrees"].content:
        found.append(_banner("Contradicted. ", _CONTRADICTED))
    return found


def _banner(strong: str, text: str) -> Markup:
    return element("p", element("strong", strong), text, class_="banner")


def _headline(report: Report) -> Markup:
    promised = report["guarantee"]
    if not promised["private"].content:
        return element(
            "div",
            element("p", "ε = ", promised["epsilon"].bound(), class_="epsilon none"),
            element("p", sentence(promised["sentence"].text)),
            class_="headline",
        )
    return element(
        "div",
        element(
            "p",
            "ε = ",
            promised["epsilon"].bound(),
            element("span", " at δ = ", promised["delta"].number("g"), class_="delta"),
            class_="epsilon",
        ),
        element(
            "p",
            f"of one {promised['unit'].text} at the worst site, under "
            f"{guarantee.relation(promised['neighboring_relation'])} neighbors, after ",
            promised["num_rounds"].number("g"),
            f" rounds; sampling: {promised['sampling'].text}; the server is trusted; an upper "
            f"bound, by: {promised['accountant'].text}.",
        ),
        element("p", "In full: ", promised["sentence"].text, class_="full"),
        class_="headline",
    )


def _section(section: Section, report: Report) -> Markup:
    title = f"{section.id}-title"
    return element(
        "section",
        element("h2", section.title, id=title),
        section.content(report),
        id=section.id,
        aria_labelledby=title,
    )


def _utility(report: Report) -> Markup:
    found = report["diagnostics_not_private"]
    note = element("p", NOT_PRIVATE, " ", sentence(found["note"].text), class_="warning")
    if not found.has("num_records") and not (found.has("per_site") and len(found["per_site"])):
        return join(note, _model(report))
    return join(
        note,
        utility_tables(found),
        element("div", sites_plot(found), reliability_plot(found), class_="pair"),
        element("div", loss_plot(report), accuracy_plot(report), class_="pair"),
        element("h3", "Sites against each other"),
        element("p", _NO_MATRIX),
        differences_table(found),
        _model(report),
    )


def _model(report: Report) -> Markup:
    plots = edge_plots(report)
    return join(element("h3", "What the model has learned"), plots) if plots else Markup("")


def _audit(report: Report) -> Markup:
    part = report["statement"]["audit"]
    said = "Run" if part["run"].content else "Not run"
    told = element("p", element("strong", said, ". "), sentence(part["note"].text))
    if not part["run"].content:
        return told
    rows = [
        [
            f"{bound['mechanism'].text}, {bound['form'].text}",
            bound["epsilon_lower"].number(),
            bound["epsilon"].bound(),
        ]
        for bound in part["bounds"]
    ]
    agreed = "No lower bound exceeds the account." if part["agrees"].content else _CONTRADICTED
    return join(
        told,
        element(
            "p",
            agreed,
            " δ = ",
            part["delta"].number("g"),
            ", confidence ",
            part["confidence"].number("g"),
            ". What was planted wrong on purpose must exceed.",
        ),
        table(
            "ε that an adversary's success proves, beside ε of the account",
            ["what was audited", "ε at least", "ε at most"],
            rows,
        ),
    )


def _provenance(report: Report) -> Markup:
    part = report["statement"]["provenance"]
    packages = ", ".join(
        f"{name} {part['packages'][name].text}" for name in part["packages"].content
    )
    facts = [
        ("Version", f"dpfed_kan {part['version'].text}, Python {part['python'].text}, {packages}"),
        ("Code: SHA-256 of all modules", _hash(part, "code_sha256")),
        ("Plan: SHA-256, as dpfed-kan plan prints it", _hash(part, "plan_sha256")),
        ("Ledger: SHA-256 of ledger.jsonl", _hash(part, "ledger_sha256")),
        ("Configuration: SHA-256 of config.yaml", _hash(part, "config_sha256")),
    ]
    return join(
        element("dl", *(join(element("dt", name), element("dd", v)) for name, v in facts)),
        element("h3", "Limits"),
        listed([item.text for item in part["limits"]]),
    )


def _hash(part: Report, name: str) -> Markup:
    return element("code", part[name].text) if part.has(name) else join("the file is not there")


SECTIONS = (
    Section(id="setting", title="Setting, and who sees what", content=guarantee.setting),
    Section(id="unit", title="What one unit is", content=guarantee.unit),
    Section(id="accesses", title="What is covered, and what not", content=guarantee.accesses),
    Section(id="releases", title="What is released", content=guarantee.releases),
    Section(id="spent", title="ε and δ of each site", content=account.spent),
    Section(id="mechanism", title="The mechanism", content=guarantee.mechanism),
    Section(id="accountant", title="The account", content=account.accountant),
    Section(id="tuning", title="Choice of settings", content=guarantee.tuning),
    Section(id="randomness", title="Randomness", content=guarantee.randomness),
    Section(id="utility", title="What the model is worth", content=_utility),
    Section(id="audit", title="Empirical audit", content=_audit),
    Section(id="provenance", title="Code, plan, ledger and limits", content=_provenance),
)
