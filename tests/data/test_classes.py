"""A label of several classes (D05), from the schema to a trained model."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from dpfed_kan.cli import main
from dpfed_kan.config import build, to_config
from dpfed_kan.data.encoding import encode, read_records
from dpfed_kan.data.federation import FederatedData
from dpfed_kan.data.files import CSVFiles, SiteFile
from dpfed_kan.data.findings import DataError
from dpfed_kan.data.heart_disease import SITES, flamby_schema
from dpfed_kan.data.partition import Natural
from dpfed_kan.data.reader import read_table
from dpfed_kan.data.schema import Label, LabelClass, Numeric, Schema
from dpfed_kan.report import as_json
from dpfed_kan.run import run
from dpfed_kan.schema_file import load_schema
from tests.system.conftest import _experiment as small_experiment

FIXTURES = Path(__file__).parent / "fixtures"
GRADES = load_schema(FIXTURES / "schema_grades.yaml")
TRIAGE = Schema(
    columns=(Numeric(name="x", low=0, high=9),),
    label=Label(
        name="triage",
        classes=(
            LabelClass(name="green", codes=("g", "G")),
            LabelClass(name="yellow", codes=("y",)),
            LabelClass(name="red", codes=("r", 7)),
        ),
    ),
)


def triage(path: Path, *, rows: int = 150, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    values = rng.uniform(0, 9, rows)
    codes = [("g", "G", "y", "y", "r", "7.0")[int(6 * value / 9.01)] for value in values]
    lines = [f"{value:.3f},{code}" for value, code in zip(values, codes, strict=True)]
    path.write_text("\n".join(["x,triage", *lines]) + "\n")


def of_triage(root: Path, **changes: Any) -> Any:
    files = tuple(SiteFile(site=name, path=f"{name}.csv") for name in ("north", "south"))
    data = FederatedData(
        source=CSVFiles(root=str(root), files=files, schema=TRIAGE), partition=Natural()
    )
    none = {"_target_": "dpfed_kan.privacy.noising.NoNoise"}
    return small_experiment(
        data=to_config(data), noise=none, num_rounds=40, update__learning_rate=40.0, **changes
    )


def test_five_grades_are_five_classes_in_their_order() -> None:
    records = read_records(FIXTURES / "d05_labels_0_4.csv", GRADES)
    lines = (FIXTURES / "d05_labels_0_4.csv").read_text().split()[1:]
    assert records.labels.tolist() == [float(line.split(",")[-1]) for line in lines]
    assert records.num_classes == 5
    assert build(to_config(GRADES)) == GRADES


def test_several_codes_may_mean_one_class(tmp_path: Path) -> None:
    path = tmp_path / "file.csv"
    path.write_text("x,triage\n1,g\n2,7.0\n3,y\n4, G \n5,r\n")
    assert encode(read_table(path, TRIAGE), TRIAGE).labels.tolist() == [0, 2, 1, 0, 2]


def test_an_unknown_code_is_named_by_its_row_and_never_shown(tmp_path: Path) -> None:
    path = tmp_path / "file.csv"
    path.write_text("x,triage\n1,g\n2,CANARY\n3,\n4,1\n")
    with pytest.raises(DataError) as error:
        read_records(path, TRIAGE)
    assert "column 'triage': not a code of any class (declare it) in rows 3, 4, 5" in str(error)
    assert "CANARY" not in str(error)


def test_check_data_counts_the_classes_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    given = [str(FIXTURES / "schema_grades.yaml"), str(FIXTURES / "d05_labels_0_4.csv")]
    main(["check-data", *given])
    said = " ".join(capsys.readouterr().out.split())
    assert "20 of 20 rows of 20 patients, 4 none, 4 mild, 4 moderate, 4 severe, 4 very sev" in said
    main(["check-data", *given, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["positive"] is None
    assert sum(found["classes"].values()) == found["accepted"] == 20


def test_three_classes_are_learned_from_files(tmp_path: Path) -> None:
    for seed, name in enumerate(("north", "south")):
        triage(tmp_path / f"{name}.csv", seed=seed)
    softmax = {"model__loss": "softmax", "model__num_outputs": 3}
    result = run(of_triage(tmp_path, **softmax), tmp_path / "run")
    measured = as_json(result)["diagnostics_not_private"]
    assert measured["accuracy"] > measured["base_rate"] + 0.2


@pytest.mark.parametrize(
    "model", [{}, {"loss": "softmax", "num_outputs": 2}, {"loss": "softmax", "num_outputs": 4}]
)
def test_a_model_for_other_classes_is_refused_before_anything_is_written(
    tmp_path: Path, model: dict[str, Any]
) -> None:
    for name in ("north", "south"):
        triage(tmp_path / f"{name}.csv")
    planned = of_triage(tmp_path, **{f"model__{name}": value for name, value in model.items()})
    wanted = r"the data has 3 classes.*set model\.loss=softmax model\.num_outputs=3"
    with pytest.raises(ValueError, match=wanted):
        run(planned, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_two_classes_are_refused_to_softmax(tmp_path: Path) -> None:
    planned = small_experiment(model__loss="softmax", model__num_outputs=2)
    with pytest.raises(ValueError, match=r"two classes.*model\.loss=logistic model\.num_outputs=1"):
        run(planned, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_plan_has_a_share_for_each_class(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    for name in ("north", "south"):
        triage(tmp_path / f"{name}.csv")
    planned = of_triage(tmp_path, model__loss="softmax", model__num_outputs=3)
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(to_config(planned)))
    main(["plan", str(path), "--json", "--plot", str(tmp_path / "sites.png")])
    for row in json.loads(capsys.readouterr().out)["sites"]:
        assert list(row["class_shares"]) == ["0", "1", "2"]
        assert sum(row["class_shares"].values()) == pytest.approx(1.0)
    assert (tmp_path / "sites.png").is_file()
    main(["plan", str(path)])
    assert "class 2" in capsys.readouterr().out


def test_the_five_grades_of_heart_disease_are_trained(tmp_path: Path, shared_dir: Path) -> None:
    grades = tuple(LabelClass(name=f"grade {k}", codes=(k,)) for k in range(5))
    schema = replace(flamby_schema(), label=Label(name="num", classes=grades))
    files = tuple(SiteFile(site=site, path=f"processed.{site}.data") for site in SITES)
    root = str(shared_dir / "data" / "heart_disease")
    data = FederatedData(
        source=CSVFiles(root=root, files=files, schema=schema), partition=Natural()
    )
    softmax = {"model__loss": "softmax", "model__num_outputs": 5}
    planned = small_experiment(
        data=to_config(data), num_rounds=30, update__learning_rate=10.0, **softmax
    )
    result = run(planned, tmp_path / "run")
    assert result.assessment.pooled.num_records == 148
    base = result.assessment.pooled.base_rate
    assert base is not None
    assert 0.3 < base < 0.6
    assert result.assessment.pooled.accuracy is not None
    assert result.assessment.pooled.accuracy > 0.4
