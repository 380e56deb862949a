"""report.html: twelve groups, every number that of report.json, one file that asks for nothing."""

import itertools
import json
import math
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dpfed_kan.page.page import as_page
from dpfed_kan.report import as_json, save
from dpfed_kan.run import run
from tests.system.conftest import _experiment
from tests.system.page_reading import Node, read
from tests.system.test_hospitals import hospitals
from tests.system.test_report import NO_NOISE

GROUPS = (
    "setting",
    "unit",
    "accesses",
    "releases",
    "spent",
    "mechanism",
    "accountant",
    "tuning",
    "randomness",
    "utility",
    "audit",
    "provenance",
)
NUMBER = re.compile(r"\d+(?:\.\d+)?")
KINDS: dict[str, dict[str, Any]] = {
    "private": {"seed": None, "sampling__sampling_prob": 0.2},
    "seeded": {},
    "none": NO_NOISE | {"seed": None},
    "unfinished": {"seed": None},
    "hospitals": {"data": hospitals("base_site_a", "d06_single_class"), "seed": None},
    "own rates": {
        "sampling": {
            "_target_": "dpfed_kan.privacy.sampling.PoissonBatch",
            "site_batch_size": 5,
        },
        "data": hospitals("base_site_a", "d06_single_class"),
        "seed": None,
    },
    "one round": {"num_rounds": 1, "seed": None},
    "fixed size": {
        "sampling": {"_target_": "dpfed_kan.privacy.joint_sampling.FixedSize", "batch_size": 20},
        "privacy__neighboring_relation": "replace_one",
        "seed": None,
    },
    "bins": {
        "sampling": {"_target_": "dpfed_kan.privacy.joint_sampling.BallsInBins", "num_bins": 5},
        "noise__column_normalized": True,
        "update": {"_target_": "dpfed_kan.update.macadam.DPMacAdam", "learning_rate": 0.05},
        "seed": None,
    },
    "perceptron": {
        "model": {"_target_": "dpfed_kan.models.spec.MLP", "hidden_widths": [4]},
        "seed": None,
    },
}


class Reports(dict[str, Any]):
    """Reports of runs of each kind, each made when it is first asked for."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root

    def __missing__(self, kind: str) -> Any:
        stop = 4 if kind == "unfinished" else None
        result = run(_experiment(**KINDS[kind]), self.root / kind, stop_after=stop)
        save(result.directory, as_json(result))
        self[kind] = json.loads(result.directory.report_path.read_text())
        return self[kind]


class Pages(dict[str, Node]):
    def __init__(self, reports: Reports) -> None:
        super().__init__()
        self.reports = reports

    def __missing__(self, kind: str) -> Node:
        report = self.reports[kind]
        self[kind] = read((self.reports.root / kind / "report.html").read_text())
        assert read(as_page(report)) == self[kind]
        return self[kind]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    return Reports(tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def pages(reports: Reports) -> Pages:
    return Pages(reports)


def at(report: Any, pointer: str) -> Any:
    for step in pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        report = report[int(name) if isinstance(report, list) else name]
    return report


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)
    elif isinstance(value, str):
        yield value


@pytest.mark.parametrize("kind", KINDS)
def test_the_twelve_groups_are_there_in_their_order(kind: str, pages: dict[str, Node]) -> None:
    page = pages[kind]
    (main,) = page.all("main")
    sections = [node for node in main.children if isinstance(node, Node)]
    assert tuple(section.attributes["id"] for section in sections) == GROUPS
    for section in sections:
        assert section.tag == "section"
        assert len(section.text()) > 60, section.attributes["id"]
    links = [link.attributes["href"] for link in page.all("nav")[0].all("a")]
    assert links == [f"#{name}" for name in GROUPS]


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_is_that_of_the_report(
    kind: str, pages: dict[str, Node], reports: dict[str, Any]
) -> None:
    page, report = pages[kind], reports[kind]
    numbers = page.all("data")
    assert len(numbers) > 60
    for number in numbers:
        value = at(report, number.attributes["data-from"])
        assert json.loads(number.attributes["value"]) == value
        shown = number.text().replace("−", "-")
        if value == "infinity":
            assert shown == "∞"
            continue
        digits = shown.partition("e")[0].partition(".")[2]
        last = 10.0 ** -len(digits)
        nearest = abs(float(shown) - value) <= (0.5 + 1e-6) * last
        bound = 0 <= float(shown) - value <= last
        assert nearest or bound, number.attributes
    known = {
        digits
        for text in strings(report)
        if not re.fullmatch(r"[0-9a-f]{64}", text)
        for digits in NUMBER.findall(text)
    }
    for section in page.all("section"):
        text = section.text(without=("data", "svg", "code"))
        for digits in NUMBER.findall(text):
            known_words = {"0", "1", "95", "256"}  # intervals of 95 %, SHA-256
            assert digits in known_words or digits in known, f"{digits} in: {text[:80]}"


def test_a_bound_is_never_rounded_down(reports: dict[str, Any]) -> None:
    report = json.loads(json.dumps(reports["private"]))
    report["guarantee"]["epsilon"] = 2.0001
    headline = read(as_page(report)).all("header")[0].text()
    assert "ε = 2.001" in headline


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_asked_of_anybody(kind: str, reports: dict[str, Any]) -> None:
    text = as_page(reports[kind])
    assert len(text.encode()) < 2_000_000
    page = read(text)
    allowed = {"html", "head", "meta", "title", "style", "body", "header", "nav", "main", "section"}
    allowed |= {"footer", "h1", "h2", "h3", "p", "ul", "ol", "li", "dl", "dt", "dd", "a", "div"}
    allowed |= {"span", "strong", "sup", "code", "br", "data", "details", "summary", "document"}
    allowed |= {"table", "caption", "thead", "tbody", "tr", "th", "td", "figure", "figcaption"}
    allowed |= {"svg", "g", "line", "polyline", "circle", "text"}
    for node in page.nodes():
        assert node.tag in allowed
        for name, value in node.attributes.items():
            assert not name.startswith("on")
            assert name not in ("src", "srcset", "action", "style", "http-equiv", "xlink:href")
            assert name != "href" or value.startswith("#")
    for asking in ("url(", "@import", "@font-face", "://", "javascript:"):
        assert asking not in text


@pytest.mark.parametrize("kind", KINDS)
def test_who_cannot_see_it_can_read_it(kind: str, pages: dict[str, Node]) -> None:
    page = pages[kind]
    assert page.all("html")[0].attributes["lang"] == "en"
    assert page.all("title")[0].text()
    for landmark in ("header", "nav", "main", "footer", "h1"):
        assert len(page.all(landmark)) == 1, landmark
    skip = page.all("body")[0].all("a")[0]
    assert page.by_id(skip.attributes["href"][1:]).tag == "main"
    levels = [int(node.tag[1]) for node in page.all("h1", "h2", "h3")]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert len({n.attributes["id"] for n in page.nodes() if "id" in n.attributes}) == len(
        [n for n in page.nodes() if "id" in n.attributes]
    )
    for node in page.nodes():
        label = node.attributes.get("aria-labelledby")
        assert label is None or page.by_id(label).text()
    for made in page.all("table"):
        assert made.all("caption")[0].text()
        head, body = made.all("thead")[0], made.all("tbody")[0]
        assert {th.attributes["scope"] for th in head.all("th")} == {"col"}
        for row in body.all("tr"):
            assert [th.attributes["scope"] for th in row.all("th")] == ["row"]
            assert len(row.all("th", "td")) == len(head.all("th"))
    for figure in page.all("figure"):
        assert figure.all("figcaption")[0].text()
        (svg,) = figure.all("svg")
        assert svg.attributes["role"] == "img"
        assert len(svg.attributes["aria-label"]) > 30
    assert len(page.all("svg")) == len(page.all("figure"))


def test_an_epsilon_is_never_alone(pages: dict[str, Node]) -> None:
    page = pages["private"]
    statement = page.all("header")[0].text()
    for words in ("at δ = 0.001", "one record", "zero-out", "Poisson, q=0.2", "trusted", "PLD"):
        assert words in statement, words
    spent = page.by_id("spent").text()
    for words in ("of one record under zero-out", "Worst site", "This run", "To date, and left"):
        assert words in spent, words
    assert "this run alone" in spent.lower()


def test_the_worst_site_is_the_headline(reports: dict[str, Any], pages: dict[str, Node]) -> None:
    report, page = reports["own rates"], pages["own rates"]
    per_site = report["guarantee"]["epsilon_per_site"]
    assert len(set(per_site.values())) == 2
    worst = max(per_site, key=lambda site: per_site[site])
    shown = page.all("header")[0].all("data")[0]
    assert json.loads(shown.attributes["value"]) == per_site[worst]
    rows = page.by_id("spent").all("tbody")[0].all("tr")
    assert [row.all("th")[0].text() for row in rows] == sorted(
        per_site, key=lambda site: -per_site[site]
    )
    assert f"Worst site{worst}: ε = " in page.by_id("spent").text()


def test_what_must_not_be_overlooked_is_on_top(pages: dict[str, Node]) -> None:
    def banners(kind: str) -> str:
        top = pages[kind].all("header")[0]
        return " ".join(n.text() for n in top.nodes() if n.attributes.get("class") == "banner")

    assert banners("private") == ""
    assert "Seeded, not private" in banners("seeded")
    assert "No privacy: ε = ∞" in banners("none")
    assert "Unfinished" in banners("unfinished")
    assert "Seeded, with seed 0: not private" in pages["seeded"].by_id("randomness").text()


def test_without_noise_nothing_is_promised(pages: dict[str, Node]) -> None:
    page = pages["none"]
    shown = [n for n in page.nodes() if "epsilon none" in n.attributes.get("class", "")]
    assert [n.text() for n in shown] == ["ε = ∞"]
    assert "What that means" not in page.by_id("spent").text()
    cells = [row.all("td")[0].text() for row in page.by_id("spent").all("tbody")[0].all("tr")]
    assert set(cells) == {"∞"}
    captions = [n.text() for n in page.by_id("accesses").all("caption")]
    assert captions == ["Not covered by ε"]
    assert "Gradients on the training records" in page.by_id("accesses").text()
    assert "without noise" in page.by_id("releases").text()
    assert "nothing is promised: no noise" in page.by_id("setting").text()


def test_an_unfinished_run_states_the_whole_plan(
    reports: dict[str, Any], pages: dict[str, Node]
) -> None:
    spent = reports["unfinished"]["statement"]["spent"]
    assert reports["unfinished"]["guarantee"]["num_rounds"] == 4
    assert spent["epsilon_of_the_whole_plan"] > reports["unfinished"]["guarantee"]["epsilon"]
    shown = f"{math.ceil(spent['epsilon_of_the_whole_plan'] * 1000 - 1e-6) / 1000:.3f}"
    assert f"whole plan holds: ε = {shown}" in pages["unfinished"].by_id("spent").text()
    finished = reports["private"]
    assert (
        finished["statement"]["spent"]["epsilon_of_the_whole_plan"]
        == (finished["guarantee"]["epsilon"])
    )


def test_figures_of_records_are_marked(pages: dict[str, Node]) -> None:
    utility = pages["hospitals"].by_id("utility")
    for made in utility.all("table"):
        words = made.all("caption")[0].text()
        assert "not private" in words or "Strength of the edges" in words
    figures = utility.all("figure")
    edges = [f for f in figures if f.all("figcaption")[0].text().startswith("From ")]
    for figure in figures:
        assert figure in edges or "Not private." in figure.all("figcaption")[0].text()
    assert len(edges) == 8
    assert len(figures) - len(edges) == 4  # accuracy of sites, calibration, loss, accuracy
    assert not [f for f in pages["perceptron"].all("figcaption") if f.text().startswith("From ")]


def test_plots_have_a_point_for_each_number(
    reports: dict[str, Any], pages: dict[str, Node]
) -> None:
    rounds = reports["private"]["curves"]["rounds"]
    assert [row["round"] for row in rounds] == list(range(1, 11))
    loss = next(f for f in pages["private"].all("figure") if "Loss on" in f.text())
    (line,) = loss.all("polyline")
    assert len(line.attributes["points"].split()) == len(loss.all("circle")) == len(rounds)
    heights = [float(point.split(",")[1]) for point in line.attributes["points"].split()]
    losses = [row["held_out_loss"] for row in rounds]
    assert heights.index(min(heights)) == losses.index(max(losses))  # up is more
    assert heights.index(max(heights)) == losses.index(min(losses))


def test_without_amplification_never_says_less(reports: dict[str, Any]) -> None:
    for kind in ("private", "own rates", "one round", "fixed size", "bins"):
        report = reports[kind]
        without = report["statement"]["accountant"]["without_amplification"]["epsilon"]
        assert without >= report["guarantee"]["epsilon"], kind


INJECTED = "<script>alert('x')</script>\"><img src=x onerror=alert(1)>&"


def test_names_that_hold_html_are_shown_as_they_are(reports: dict[str, Any]) -> None:
    text = json.dumps(reports["hospitals"])
    names = {*reports["hospitals"]["guarantee"]["epsilon_per_site"]}
    names |= {edge["input"] for edge in reports["hospitals"]["curves"]["edges"]["strongest"]}
    for place, name in enumerate(sorted(names)):
        text = text.replace(json.dumps(name), json.dumps(f"{INJECTED}{place}"))
    page = as_page(json.loads(text))
    read_again = read(page)
    assert not read_again.all("script", "img")
    assert "<script" not in page
    assert INJECTED in read_again.by_id("spent").text()
    assert INJECTED in read_again.by_id("utility").text()


def test_a_thousand_sites_make_a_page_that_can_be_mailed(reports: dict[str, Any]) -> None:
    report = json.loads(json.dumps(reports["hospitals"]))
    measured = report["diagnostics_not_private"]
    one = next(iter(measured["per_site"].values()))
    row = report["statement"]["spent"]["per_site"][0]
    measured["per_site"] = {f"site {k}": one for k in range(1000)}
    report["statement"]["spent"]["per_site"] = [row | {"site": f"site {k}"} for k in range(1000)]
    start = time.perf_counter()
    page = as_page(report)
    assert time.perf_counter() - start < 2
    assert len(page) < 300_000
    assert page.count("more sites are in report.json") == 2
