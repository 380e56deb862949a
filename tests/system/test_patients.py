"""`privacy.privacy_unit=patient` from the configuration to the report."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfed_kan.report import as_json
from dpfed_kan.run import run
from dpfed_kan.streams import Streams

HEADER = "who,x,z,y\n"


def write(path: Path, *, first: int, shared: int = 0) -> None:
    rng = np.random.default_rng(first)
    rows = []
    for patient in range(40):
        name = f"p{patient}" if patient < shared else f"p{first + patient}"
        for _ in range(1 + patient % 3):
            x, z = rng.uniform(-1, 1, 2)
            rows.append(f"{name},{x:.3f},{z:.3f},{int(x > 0)}")
    path.write_text(HEADER + "\n".join(rows) + "\n")


def data(root: Path) -> dict[str, Any]:
    number = {"_target_": "dpfed_kan.data.schema.Numeric", "low": -1, "high": 1}
    return {
        "_target_": "dpfed_kan.data.federation.FederatedData",
        "source": {
            "_target_": "dpfed_kan.data.files.CSVFiles",
            "root": str(root),
            "files": [{"site": site, "path": f"{site}.csv"} for site in ("a", "b")],
            "schema": {
                "patient_id": "who",
                "columns": [{**number, "name": "x"}, {**number, "name": "z"}],
                "label": {"name": "y", "positive": [1], "negative": [0]},
            },
        },
        "partition": {"_target_": "dpfed_kan.data.partition.Natural"},
    }


def test_a_run_over_patients_says_patient_and_counts_patients(
    tmp_path: Path, experiment: Callable[..., Any]
) -> None:
    write(tmp_path / "a.csv", first=100)
    write(tmp_path / "b.csv", first=200)
    planned = experiment(data=data(tmp_path), privacy__privacy_unit="patient")
    report = as_json(run(planned, tmp_path / "run"))
    assert report["guarantee"]["unit"] == "patient"
    assert "of one patient" in report["guarantee"]["sentence"]
    sizes = report["public"]["num_records"]
    assert sum(sizes.values()) == 64  # four fifths of 80 patients
    federation = planned.data.load(Streams.from_seed(0))
    assert {s: len(set(v.patients)) for s, v in federation.shards.items()} == sizes


def test_a_patient_at_two_sites_is_refused_or_multiplies(
    tmp_path: Path, experiment: Callable[..., Any]
) -> None:
    write(tmp_path / "a.csv", first=100, shared=5)
    write(tmp_path / "b.csv", first=200, shared=5)

    def planned(**settings: Any) -> Any:
        return experiment(data=data(tmp_path), privacy__privacy_unit="patient", **settings)

    with pytest.raises(ValueError, match=r"some patient has records at 2 sites"):
        run(planned(), tmp_path / "refused")
    assert not (tmp_path / "refused").exists()
    twice = planned(privacy__sites_per_patient=2, noise__correlation=0.0, evaluate_every=10)
    once = as_json(run(twice, tmp_path / "r"))
    assert once["guarantee"]["unit"] == "patient with records at up to 2 sites"
    assert "times 2 by group privacy" in once["guarantee"]["accountant"]


def test_patients_must_be_named(experiment: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="declare patient_id"):
        run(experiment(privacy__privacy_unit="patient"), Path("never"))
