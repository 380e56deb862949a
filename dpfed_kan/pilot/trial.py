"""A pilot to try: invented records of invented hospitals, a schema, and `pilot.yaml`."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import yaml

from dpfed_kan.pilot.plan import FILE_NAME

_NUM_RECORDS = (180, 240, 150)
_SCHEMA = {
    "columns": [
        {"type": "numeric", "name": "age", "low": 20, "high": 90},
        {"type": "numeric", "name": "pressure", "low": 80, "high": 200},
        {"type": "numeric", "name": "marker", "low": 0, "high": 10},
        {
            "type": "ordinal",
            "name": "smokes",
            "categories": ["no", "yes"],
        },
    ],
    "label": {"name": "outcome", "positive": ["ill"], "negative": ["well"]},
}
_POLICY = {
    "budget_epsilon": 10.0,
    "budget_delta": 0.005,
    "min_records": 50,
    "allowed_plans": "any",
    "privacy_unit": "record",
    "max_sampling_prob": 0.5,
    "metrics_may_leave": True,
    "allow_seeded_streams": True,
}


def write_trial(directory: Path) -> None:
    """Write three invented hospitals into a directory that holds no pilot.

    Raises:
        ValueError: If there is a pilot already, or the directory cannot be written to.
    """
    path = directory / FILE_NAME
    if path.exists():
        raise ValueError(f"{path} is there already; give another directory")
    sites = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for place, num_records in enumerate(_NUM_RECORDS, start=1):
            name = f"hospital-{place}"
            _write_records(directory / f"{name}.csv", num_records, np.random.default_rng(place))
            sites.append(
                {
                    "site": name,
                    "data": f"{name}.csv",
                    "schema": "schema.yaml",
                    "policy": "policy.yaml",
                    "allow_seed": True,
                    "share_metrics": True,
                }
            )
        schema = yaml.safe_dump(_SCHEMA, sort_keys=False)
        (directory / "schema.yaml").write_text(schema, encoding="utf-8")
        policy = yaml.safe_dump(_POLICY, sort_keys=False)
        (directory / "policy.yaml").write_text(policy, encoding="utf-8")
        text = yaml.safe_dump({"port": 9500, "sites": sites}, sort_keys=False)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{directory} cannot be written to: {error.strerror}") from None


def _write_records(path: Path, num_records: int, rng: np.random.Generator) -> None:
    age = rng.integers(25, 86, num_records)
    pressure = np.clip(rng.normal(130, 18, num_records), 85, 195).round()
    marker = np.clip(rng.gamma(3.0, 1.0, num_records), 0.1, 9.9).round(1)
    smokes = rng.random(num_records) < 0.3
    risk = (age - 55) / 12 + (pressure - 130) / 15 + (marker - 3) + 1.5 * smokes
    ill = rng.random(num_records) < 1 / (1 + np.exp(-1.5 * risk))
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["age", "pressure", "marker", "smokes", "outcome"])
        for k in range(num_records):
            words = ["yes" if smokes[k] else "no", "ill" if ill[k] else "well"]
            rows.writerow([int(age[k]), int(pressure[k]), marker[k], *words])
