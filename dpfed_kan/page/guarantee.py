"""The sections that say what was promised: to whom, about what, by which mechanism."""

from __future__ import annotations

from dpfed_kan.page.curves import noise_plot
from dpfed_kan.page.elements import Markup, element, join, listed, table
from dpfed_kan.page.values import Report


def setting(report: Report) -> Markup:
    """Return what the section says."""
    part = report["statement"]["setting"]
    return join(
        element("p", sentence(part["in_words"].text)),
        element(
            "p",
            "Sites that take part: ",
            part["num_sites"].number("g"),
            f". Records: {part['data'].text}. Model: {part['model'].text}.",
        ),
        _left_out(report),
        _zeroed(report),
        table(
            "Who sees what",
            ["who", "sees", "trusted"],
            [[role[key].text for key in ("who", "sees", "trusted")] for role in part["who_sees"]],
            texts=(1, 2),
        ),
    )


def unit(report: Report) -> Markup:
    """Return what the section says."""
    part = report["statement"]["unit"]
    return element(
        "dl",
        element("dt", "Unit of privacy: ", part["unit"].text),
        element("dd", part["in_words"].text, "."),
        element("dt", "Neighboring relation: ", relation(part["neighboring_relation"])),
        element("dd", part["relation_in_words"].text, "."),
    )


def accesses(report: Report) -> Markup:
    """Return what the section says."""
    part = report["statement"]["accesses"]
    return join(
        *(
            table(
                caption,
                ["access to records", "why"],
                [[each["access"].text, each["why"].text] for each in part[key]],
                texts=(1,),
            )
            for key, caption in (("covered", "Covered by ε"), ("not_covered", "Not covered by ε"))
            if len(part[key])
        )
    )


def releases(report: Report) -> Markup:
    """Return what the section says."""
    part = report["statement"]["releases"]
    return join(
        element("h3", "Released"),
        listed([item.text for item in part["released"]]),
        element("h3", "Not released"),
        listed([item.text for item in part["not_released"]]),
    )


def mechanism(report: Report) -> Markup:
    """Return what the section says."""
    part = report["statement"]["mechanism"]
    facts: list[tuple[str, str]] = [
        ("Sampling", part["sampling"].text),
        ("Share of each site in a round, q", _shares(report)),
        ("Expected batch size over all sites, B", part["expected_batch_size"].number(".4g")),
        ("Clip norm of one contribution", part["l2_clip_norm"].number("g")),
        ("Noise", part["noise"].text),
        ("Noise multiplier κ: std per clip norm", part["noise_multiplier"].number(".4g")),
        ("λ: share of the last round's draw that is taken off", part["correlation"].number("g")),
        ("Rows scaled (column-normalised)", "yes" if part["column_normalized"].content else "no"),
        (
            "Sensitivity of the sum, in clip norms",
            part["sensitivity_factor"].number("g"),
        ),
        (
            "Rounds, of those planned",
            join(part["num_rounds"].number("g"), " of ", part["planned_rounds"].number("g")),
        ),
        ("Released numbers in a round", part["num_params"].number("g")),
        ("Update rule", part["update_rule"].text),
        (
            "Where sites clip",
            "in a public transform of the gradient, made from earlier releases"
            if part["clips_in_transform"].content
            else "the gradient as it is",
        ),
        (
            "Precision of the sum",
            "float32 products; the clip is tighter by what their rounding can add"
            if part["precision"].content == "float32"
            else "float64",
        ),
        ("Sites that may hold records of one unit", part["sites_per_unit"].number("g")),
    ]
    return join(
        table("The mechanism", ["what", "value"], [list(fact) for fact in facts], texts=(1,)),
        noise_plot(report),
    )


def tuning(report: Report) -> Markup:
    """Return what the section says."""
    part = report["statement"]["tuning"]
    if not part.has("composed"):
        return element("p", element("strong", "Not charged. "), sentence(part["note"].text))
    found = part["composed"]
    return join(
        element("p", element("strong", "Not charged, but known. "), sentence(part["note"].text)),
        element(
            "p",
            "All runs of the sweep together, to ",
            found["protects"].text,
            ": ε ≤ ",
            found["epsilon"].bound(),
            " at δ = ",
            found["delta"].number("g"),
            ", ",
            found["num_runs"].number(),
            " runs of ",
            found["num_rounds"].number(),
            " rounds in all, whichever is chosen; accountant: ",
            found["method"].text,
            ".",
        ),
        _shared_noise(found),
    )


def _shared_noise(found: Report) -> Markup | str:
    if found["sharing_noise"].content == 0:
        return ""
    return element(
        "p",
        "That is with fresh noise in each: ",
        found["sharing_noise"].number(),
        " of them share a declared seed and so their noise, which cancels between two of them. As "
        "simulations they protect nobody.",
    )


def randomness(report: Report) -> Markup:
    """Return what the section says."""
    part = report["statement"]["randomness"]
    if part["seeded"].content:
        said = join("Seeded, with seed ", part["seed"].number(), ": not private. ")
    else:
        said = join("Fresh. ")
    return element("p", element("strong", said), sentence(part["note"].text))


def _left_out(report: Report) -> Markup | str:
    left_out = report["public"]["left_out"]
    if not len(left_out):
        return ""
    reasons = [left_out[site].text for site in left_out.content]
    return join(element("p", "Sites that take no part:"), listed(reasons))


def _zeroed(report: Report) -> Markup | str:
    if not report.has("deployment"):
        return ""
    counts = report["deployment"]["rounds_contributed_zero"]
    if not len(counts):
        return element("p", "Every site answered in every round.")
    rows = [[site, counts[site].number()] for site in sorted(counts.content)]
    return table("Rounds to which a site contributed zero", ["site", "rounds"], rows)


def _shares(report: Report) -> Markup:
    shares: list[Report] = sorted(
        report["statement"]["spent"]["per_site"], key=lambda row: row["expected_share"].value
    )
    least, most = shares[0]["expected_share"], shares[-1]["expected_share"]
    if f"{least.value:.3g}" == f"{most.value:.3g}":
        return most.number(".3g")
    return join(least.number(".3g"), " to ", most.number(".3g"))


def relation(part: Report) -> str:
    """Return the name of a neighboring relation."""
    return part.text.replace("_", "-")


def sentence(text: str) -> str:
    """Return a text as a sentence, or as several."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
