"""`dpfed-kan plan`: the sites before training."""

import json
from pathlib import Path

import pytest
import yaml

from dpfed_kan.cli import main
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
    assert {row["class_shares"]["+1"] for row in found} == {0.0, 1.0}
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
