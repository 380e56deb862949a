"""`dpfed-kan ledger`: from the outside."""

import csv
import io
import json
import sqlite3
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from dpfed_kan.cli import main
from tests.sites.sitekit import data_set, open_ledger, plan, policy, reserve


@pytest.fixture
def path(tmp_path: Path) -> Path:
    ledger = open_ledger(tmp_path)
    wide = policy(budget_epsilon=5.0)
    reserve(ledger, "first", plan(0.8), under=wide)
    for t in range(8):
        ledger.commit("first", t, broadcast=f"b{t}", reply=f"r{t}")
    ledger.close_run("first")
    reserve(ledger, "second", plan(0.3), under=wide)
    reserve(ledger, "third", plan(0.3), under=wide, over=data_set(1))
    ledger.chain.close()
    return tmp_path / "site.ledger"


def said(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    main(["ledger", *map(str, arguments)])
    return capsys.readouterr().out


def test_show_says_what_each_run_is_charged(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(said(capsys, "show", path, "--json"))
    runs = {run["run"]: run for run in found["runs"]}
    assert runs["first"]["epsilon"] == pytest.approx(0.8, abs=1e-3)
    assert (runs["first"]["state"], runs["first"]["rounds_answered"]) == ("closed", 8)
    assert (runs["second"]["state"], runs["second"]["rounds_answered"]) == ("open", 0)
    assert runs["second"]["plan_sha256"] == plan(0.3).sha256
    totals = sorted(total["epsilon"] for total in found["data_sets"].values())
    assert totals == pytest.approx([0.3, 1.1], abs=2e-3)
    shown = said(capsys, "show", path)
    for words in ("first", "closed", "8 of 8", "0.8000", found["head"]):
        assert words in shown


def test_a_run_whose_rounds_were_all_answered_is_complete(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = open_ledger(path.parent)
    for t in range(8):
        ledger.commit("second", t, broadcast=f"b{t}", reply=f"r{t}")
    ledger.chain.close()
    runs = json.loads(said(capsys, "show", path, "--json"))["runs"]
    assert [run["state"] for run in runs] == ["closed", "complete", "open"]
    epsilon = [run["epsilon"] for run in runs]
    said(capsys, "close", path, "second")
    closed = json.loads(said(capsys, "show", path, "--json"))["runs"]
    assert [run["epsilon"] for run in closed] == epsilon


def test_verify_passes_a_whole_ledger(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = said(capsys, "verify", path)
    assert "15 rows, each as it was written" in shown
    heads = path.with_name(path.name + ".heads")
    heads.write_text("".join(heads.read_text().splitlines(keepends=True)[:-1]))
    assert "lacks the last 1" in said(capsys, "verify", path)


@pytest.mark.parametrize("verb", ["verify", "show", "export"])
def test_a_ledger_with_one_edited_row_fails_and_the_row_is_named(path: Path, verb: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("DROP TRIGGER rows_update")
        database.execute(
            "UPDATE rows SET content = replace(content, '\"epsilon\":0.', '\"epsilon\":0.0') "
            "WHERE number = 3"
        )
        database.commit()
    with pytest.raises(SystemExit) as stop:
        main(["ledger", verb, str(path)])
    assert "row 3: it was edited" in str(stop.value.code)  # text: exit code 1


def test_export_is_for_machines(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(said(capsys, "export", path))
    assert [row["number"] for row in rows] == list(range(1, 16))
    assert all(b["before"] == a["hash"] for a, b in pairwise(rows))
    table = list(csv.DictReader(io.StringIO(said(capsys, "export", path, "--format", "csv"))))
    assert [row["run"] for row in table] == ["first", "second", "third"]
    assert float(table[1]["epsilon"]) == pytest.approx(0.3, abs=1e-3)


def test_close_gives_back_what_an_open_run_holds(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "charged ε=0 " in said(capsys, "close", path, "second")
    found = json.loads(said(capsys, "show", path, "--json"))["data_sets"]
    assert max(total["epsilon"] for total in found.values()) == pytest.approx(0.8, abs=1e-3)


def test_what_is_no_ledger_is_told(tmp_path: Path) -> None:
    for verb in ("show", "verify", "export"):
        with pytest.raises(SystemExit) as stop:
            main(["ledger", verb, str(tmp_path / "nowhere")])
        assert "there is no ledger" in str(stop.value.code)
    assert list(tmp_path.iterdir()) == []
