"""`dpfed-kan report`: from the outside."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from dpfed_kan.cli import main
from dpfed_kan.report import as_json, save
from dpfed_kan.run import Run, resume, run
from dpfed_kan.sites.data_set import SiteKey, identify
from dpfed_kan.sites.ledger import Request, SiteLedger
from dpfed_kan.sites.policy import Policy
from dpfed_kan.streams import Streams
from tests.sites.sitekit import records
from tests.system.conftest import _experiment
from tests.system.page_reading import read
from tests.system.test_hospitals import FIXTURES, hospitals

BUDGET = 9.0


def finished(result: Run) -> Run:
    save(result.directory, as_json(result))
    return result


def said(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    main(["report", *map(str, arguments)])
    return capsys.readouterr().out


def files(directory: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in directory.iterdir() if not p.name.startswith("report")}


def test_a_run_that_is_not_over_is_reported_and_left_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "run"
    run(_experiment(), directory, stop_after=3)
    with (directory / "ledger.jsonl").open("a") as ledger:
        ledger.write('{"rele')  # another process is writing
    before = files(directory)
    found = json.loads(said(capsys, directory, "--json"))
    assert files(directory) == before
    assert (found["guarantee"]["num_rounds"], found["run"]["finished"]) == (3, False)
    assert "Unfinished" in (directory / "report.html").read_text()
    assert json.loads((directory / "report.json").read_text()) == found
    finished(resume(directory))
    again = json.loads(said(capsys, directory, "--json"))
    assert (again["guarantee"]["num_rounds"], again["run"]["finished"]) == (10, True)
    assert "Unfinished" not in (directory / "report.html").read_text()


def test_a_finished_run_is_reported_without_its_data_and_the_same_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(FIXTURES / "base_site_a.csv", tmp_path)
    directory = tmp_path / "run"
    finished(run(_experiment(data=hospitals("base_site_a", root=tmp_path)), directory))
    made, page = (directory / "report.json").read_text(), (directory / "report.html").read_text()
    fresh = json.loads(said(capsys, directory, "--fresh", "--json"))
    assert fresh["guarantee"]["epsilon"] == json.loads(made)["guarantee"]["epsilon"]
    assert fresh["curves"] == json.loads(made)["curves"]
    assert fresh["diagnostics_not_private"] == json.loads(made)["diagnostics_not_private"]
    (directory / "report.json").write_text(made)
    (tmp_path / "base_site_a.csv").unlink()
    shown = said(capsys, directory)
    assert (directory / "report.html").read_text() == page
    assert f"{len(page.encode()) / 1000:.0f} kB" in shown
    with pytest.raises(SystemExit, match=r"base_site_a\.csv"):
        main(["report", str(directory), "--fresh"])


def test_a_report_of_another_ledger_is_made_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finished(run(_experiment(num_rounds=2), tmp_path / "run"))
    path = tmp_path / "run" / "report.json"
    forged = json.loads(path.read_text())
    forged["guarantee"]["epsilon"] = 0.1
    forged["statement"]["provenance"]["ledger_sha256"] = "0" * 64
    path.write_text(json.dumps(forged))
    assert json.loads(said(capsys, tmp_path / "run", "--json"))["guarantee"]["epsilon"] > 0.1


def test_what_is_no_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="holds no run"):
        main(["report", str(tmp_path)])
    assert list(tmp_path.iterdir()) == []


def site_with_two_runs(tmp_path: Path, result: Any) -> Path:
    """A site's ledger in which this run and an earlier one like it were reserved."""
    ledger = SiteLedger(tmp_path / "site.ledger", key=SiteKey(key=b"k" * 32))
    policy = Policy(
        budget_epsilon=BUDGET,
        budget_delta=1e-2,
        min_records=20,
        allowed_plans="any",
        privacy_unit="record",
        max_sampling_prob=1.0,
        metrics_may_leave=False,
    )
    for name in ("earlier", "this"):
        asked = Request(
            run=name,
            plan=result.plan,
            site="site-1",
            policy=policy,
            data_set=identify(records(n=54), key=ledger.key),
            streams=f"{name}{Streams.from_entropy().key.hex()}",
            streams_are_seeded=False,
        )
        ledger.reserve(asked)
    ledger.chain.close()
    return tmp_path / "site.ledger"


POLICY = f"""
budget_epsilon: {BUDGET}
budget_delta: 1e-2
min_records: 20
allowed_plans: any
privacy_unit: record
max_sampling_prob: 1.0
metrics_may_leave: false
"""


def test_to_date_and_left_come_from_the_sites_ledger(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "run"
    result = finished(run(_experiment(), directory))
    ledger = site_with_two_runs(tmp_path, result)
    (tmp_path / "policy.yaml").write_text(POLICY)
    found = json.loads(
        said(
            capsys,
            directory,
            "--json",
            "--site-ledger",
            ledger,
            "--policy",
            tmp_path / "policy.yaml",
        )
    )
    (spent,) = found["statement"]["spent"]["to_date"]
    once = found["guarantee"]["epsilon_per_site"]["site-1"]
    assert spent["num_runs"] == 2
    assert spent["epsilon"] == pytest.approx(2 * once)
    assert spent["left_epsilon"] == pytest.approx(BUDGET - 2 * once)
    text = read((directory / "report.html").read_text()).by_id("spent").text()
    assert "To date, over all runs" in text
    assert "one record under zero-out" in text
    assert spent["ledger_head"] in text
    assert "this run alone" in said_then(capsys, directory).lower()


def said_then(capsys: pytest.CaptureFixture[str], directory: Path) -> str:
    said(capsys, directory)  # without a ledger nothing is said to date
    return read((directory / "report.html").read_text()).by_id("spent").text()


def test_a_ledger_without_this_run_is_refused(tmp_path: Path) -> None:
    result = finished(run(_experiment(num_rounds=2), tmp_path / "one"))
    finished(run(_experiment(num_rounds=3), tmp_path / "other"))
    ledger = site_with_two_runs(tmp_path, result)
    with pytest.raises(SystemExit, match="holds no run of this plan"):
        main(["report", str(tmp_path / "other"), "--site-ledger", str(ledger)])


def test_an_audit_that_was_run_is_told_and_one_that_contradicts_is_on_top(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "run"
    finished(run(_experiment(num_rounds=3), directory))
    assert "Not run. " in read((directory / "report.html").read_text()).by_id("audit").text()
    main(["audit", str(directory), "--runs", "40", "--rounds", "3", "--canaries", "0"])
    capsys.readouterr()
    audited = json.loads((directory / "audit.json").read_text())
    found = json.loads(said(capsys, directory, "--json"))["statement"]["audit"]
    assert found["agrees"] is audited["agrees"] is True
    assert found["bounds"][0]["epsilon_lower"] == audited["found"]["two_run"]["epsilon_lower"]
    assert len(found["bounds"]) == 1 + len(audited["controls"])
    page = read((directory / "report.html").read_text())
    assert "No lower bound exceeds" in page.by_id("audit").text()
    assert len(page.by_id("audit").all("tbody")[0].all("tr")) == len(found["bounds"])
    assert "Contradicted" not in page.all("header")[0].text()
    (directory / "audit.json").write_text(json.dumps(audited | {"agrees": False}))
    said(capsys, directory)
    assert "Contradicted" in read((directory / "report.html").read_text()).all("header")[0].text()
    (directory / "audit.json").write_text("[1]")
    with pytest.raises(SystemExit, match="audit the run again"):
        main(["report", str(directory)])
