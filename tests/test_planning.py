"""`dpfed-kan plan`: the sites before training."""

import json
from pathlib import Path

import pytest
import yaml

from dpfed_kan.cli import main
from dpfed_kan.sites.plan import read_plan
from tests.test_config import composed


def config(tmp_path: Path, *overrides: str) -> str:
    path = tmp_path / "config.yaml"
    settings = composed("data=synthetic", "data.source.num_records=400", "seed=3", *overrides)
    path.write_text(yaml.safe_dump(settings))
    return str(path)


def test_the_plan_says_who_holds_what_at_which_epsilon(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    partition = "data.partition={_target_: dpfed_kan.data.partition.Pathological, num_sites: 3}"
    given = config(tmp_path, partition, "sampling.sampling_prob=0.3")
    main(["plan", given, "--json"])
    found = json.loads(capsys.readouterr().out)["sites"]
    assert [row["site"] for row in found] == ["site-1", "site-2", "site-3"]
    assert {row["positive_share"] for row in found} == {0.0, 1.0}
    assert sum(row["num_records"] for row in found) == 320
    assert all(row["expected_share"] == pytest.approx(0.3) for row in found)
    assert all(1.9 < row["epsilon"] <= 2.0 for row in found)
    main(["plan", given])
    said = capsys.readouterr().out
    assert "100.0%" in said
    assert "ε_k" in said


def test_the_heat_map_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    main(["plan", config(tmp_path, "noise=none"), "--plot", str(tmp_path / "sites.png")])
    assert (tmp_path / "sites.png").read_bytes().startswith(b"\x89PNG")


def test_a_file_that_is_no_configuration_is_told(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("[1, 2")
    for name, said in (("bad.yaml", "not a YAML file"), ("nowhere.yaml", "cannot be read")):
        with pytest.raises(SystemExit) as stop:
            main(["plan", str(tmp_path / name)])
        assert said in str(stop.value.code)


def test_the_plan_is_printed_with_its_hash_and_reads_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given, saved = config(tmp_path, "noise.correlation=0.5"), tmp_path / "plan.json"
    main(["plan", given, "--save", str(saved)])
    shown = capsys.readouterr().out
    main(["plan", given, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert f"plan hash: {found['plan_sha256']}" in shown
    assert found["plan"]["mechanism"]["noise"]["correlation"] == 0.5
    assert [site["name"] for site in found["plan"]["sites"]] == [r["site"] for r in found["sites"]]
    assert found["plan"]["num_params"] > 10
    main(["plan", str(saved)])
    assert f"plan hash: {found['plan_sha256']}" in capsys.readouterr().out
    plan = read_plan(saved.read_text())
    assert plan.sha256 == found["plan_sha256"]
    assert plan.metrics_leave is plan.clips_in_transform is False


@pytest.mark.parametrize(
    ("override", "changes"),
    [
        ("num_rounds=81", True),
        ("privacy.l2_clip_norm=0.4", True),
        ("privacy.target_epsilon=1", True),
        ("update=macadam", True),
        ("model.hidden_width=9", True),
        ("evaluate_every=7", False),
    ],
)
def test_what_touches_privacy_changes_the_hash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], override: str, changes: bool
) -> None:
    hashes = set()
    for more in ((), (override,)):
        main(["plan", config(tmp_path, *more), "--json"])
        hashes.add(json.loads(capsys.readouterr().out)["plan_sha256"])
    assert (len(hashes) == 2) is changes


@pytest.mark.parametrize("model", ["mlp", "kan"])
@pytest.mark.parametrize("update", ["macadam_bc", "adaclip", "adam"])
def test_every_kind_of_experiment_has_a_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str, update: str
) -> None:
    main(["plan", config(tmp_path, f"model={model}", f"update={update}"), "--json"])
    found = json.loads(capsys.readouterr().out)["plan"]
    assert found["clips_in_transform"] is (update != "adam")
    assert read_plan(json.dumps(found)).as_plain() == found


def test_a_file_that_is_no_plan_is_told(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(SystemExit) as stop:
        main(["plan", str(tmp_path / "bad.json")])
    assert "type to be one of" in str(stop.value.code)
