import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dpfed_kan.report import as_json, print_report, sentence
from dpfed_kan.run import Run, run

NO_NOISE = {
    "noise": {"_target_": "dpfed_kan.privacy.noising.NoNoise"},
    "privacy__target_epsilon": 1.0,
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("report")


def shown(result: Run) -> str:
    console = Console(file=io.StringIO(), width=160)
    print_report(result, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_an_epsilon_is_never_alone(directory: Path, experiment: Callable[..., Any]) -> None:
    result = run(experiment(num_rounds=2), directory / "private")
    stated = as_json(result)["guarantee"]
    for name in (
        "epsilon",
        "delta",
        "unit",
        "neighboring_relation",
        "sampling",
        "num_rounds",
        "trust",
        "accountant",
        "independent_check",
        "noise_source",
        "worst_site",
    ):
        assert stated[name] not in (None, ""), name
    assert set(stated["epsilon_per_site"]) == {"site-1", "site-2", "site-3"}
    assert max(stated["epsilon_per_site"].values()) == stated["epsilon"]
    said = sentence(result)
    for words in ("0.001", "record", "zero-out", "Poisson, q=0.3", "2 rounds", "trusted", "SEEDED"):
        assert words in said
    assert "PLD" in said
    assert " ".join(said.split()) in " ".join(shown(result).split())


def test_what_is_private_is_kept_apart(directory: Path, experiment: Callable[..., Any]) -> None:
    report = as_json(run(experiment(num_rounds=1), directory / "apart"))
    assert "accuracy" in report["diagnostics_not_private"]
    assert "accuracy" not in json.dumps({k: report[k] for k in ("private", "public", "guarantee")})
    assert "not covered by the guarantee" in report["diagnostics_not_private"]["note"]


def test_without_noise_infinity_is_said_aloud_in_valid_json(
    directory: Path, experiment: Callable[..., Any]
) -> None:
    result = run(experiment(num_rounds=1, **NO_NOISE), directory / "none")
    text = json.dumps(as_json(result), allow_nan=False)
    stated = json.loads(text)["guarantee"]
    assert (stated["private"], stated["epsilon"]) == (False, "infinity")
    assert set(stated["epsilon_per_site"].values()) == {"infinity"}
    assert "NO PRIVACY: ε = ∞" in shown(result)
    assert "delta" not in stated


def test_a_fresh_run_says_where_its_noise_came_from(
    directory: Path, experiment: Callable[..., Any]
) -> None:
    result = run(experiment(num_rounds=1, seed=None), directory / "fresh")
    assert "operating system's entropy" in sentence(result)
    assert "SEEDED" not in sentence(result)
    assert as_json(result)["guarantee"]["noise_source"] == "operating system entropy"


def test_neither_key_nor_batch_count_is_in_any_file_but_the_key(
    directory: Path, experiment: Callable[..., Any]
) -> None:
    result = run(experiment(num_rounds=2, seed=None), directory / "quiet")
    secret = (directory / "quiet" / "key").read_text().split()[1]
    for path in (directory / "quiet").iterdir():
        if path.name != "key":
            assert secret.encode() not in path.read_bytes()
    assert "seed: null" in result.directory.config_path.read_text()
