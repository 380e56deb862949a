"""Real files of hospitals from the configuration to what a run leaves behind."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfed_kan.config import to_config
from dpfed_kan.data.federation import FederatedData
from dpfed_kan.data.files import CSVFiles, SiteFile
from dpfed_kan.data.partition import Natural
from dpfed_kan.report import as_json, save
from dpfed_kan.run import run
from dpfed_kan.schema_file import load_schema
from tests.conftest import ROOT

FIXTURES = ROOT / "tests" / "data" / "fixtures"


def hospitals(*names: str, root: Path = FIXTURES, min_records: int = 10) -> Any:
    files = tuple(SiteFile(site=name, path=f"{name}.csv") for name in names)
    schema = load_schema(FIXTURES / "schema.yaml")
    source = CSVFiles(root=str(root), files=files, schema=schema)
    data = FederatedData(source=source, partition=Natural(), min_records=min_records)
    return to_config(data)


def test_a_site_of_one_class_trains_and_reports_valid_json(  # D06
    tmp_path: Path, experiment: Callable[..., Any]
) -> None:
    planned = experiment(data=hospitals("base_site_a", "d06_single_class"))
    report = as_json(run(planned, tmp_path / "run"))
    text = json.dumps(report, allow_nan=False)
    measured = json.loads(text)["diagnostics_not_private"]
    assert measured["per_site"]["d06_single_class"]["auc"] is None
    assert measured["mean_over_sites"]["num_sites_with_auc"] == 1
    assert measured["mean_over_sites"]["auc"] == measured["per_site"]["base_site_a"]["auc"]
    assert "not covered by the guarantee" in measured["note"]


def test_no_value_of_a_record_leaves_with_a_run(  # the canary
    tmp_path: Path,
    experiment: Callable[..., Any],
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    text = (FIXTURES / "base_site_a.csv").read_text()
    canaried = text.replace("A0003,", "CANARYPATIENT,").replace("350", "347.7308931")
    assert canaried.count("347.7308931") == 1
    (tmp_path / "base_site_a.csv").write_text(canaried)
    planned = experiment(data=hospitals("base_site_a", root=tmp_path, min_records=5))
    result = run(planned, tmp_path / "run")
    save(result.directory, as_json(result))
    assert (tmp_path / "run" / "report.html").is_file()
    shown = capfd.readouterr()
    left = shown.out + shown.err + caplog.text + repr(planned) + repr(result)
    for path in (tmp_path / "run").rglob("*"):
        left += path.read_bytes().decode("latin-1")
    for canary in ("CANARY", "347.7308", np.float64(347.7308931).tobytes().decode("latin-1")):
        assert canary not in left


def test_a_run_without_usable_rows_leaves_no_model(  # F04
    tmp_path: Path, experiment: Callable[..., Any]
) -> None:
    with pytest.raises(ValueError, match="no usable rows at any site"):
        run(experiment(data=hospitals("f04_header_only")), tmp_path / "run")
    assert not (tmp_path / "run").exists()
