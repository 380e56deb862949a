"""The sites before training: `dpfed-kan plan`, and what a run says of them."""

import json
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from dpfed_kan.cli import main
from dpfed_kan.planning import Planned, as_public_table
from dpfed_kan.run import resume, run
from dpfed_kan.sites.plan import read_plan
from tests.system.conftest import _experiment as small_experiment
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


def shown(plan: Planned) -> str:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(as_public_table(plan))
    return capture.get()


def of_sizes(sizes: dict[str, int], epsilon: float = 1.23456) -> Planned:
    shares = {site: 10 / size for site, size in sizes.items()}
    return Planned(
        num_records=sizes,
        expected_shares=shares,
        epsilon=epsilon,
        privacy_unit="patient",
        sentence="",
    )


def test_a_run_says_what_is_planned_once_and_before_anything_is_released(tmp_path: Path) -> None:
    told: list[tuple[Planned, str]] = []

    def announce(plan: Planned) -> None:
        told.append((plan, (tmp_path / "ledger.jsonl").read_text()))

    result = run(small_experiment(), tmp_path, announce=announce, stop_after=4)
    ((plan, ledger),) = told
    assert "release" not in ledger
    assert plan.num_records == result.num_records
    assert plan.expected_shares == dict.fromkeys(plan.num_records, 0.3)
    done = resume(tmp_path, announce=announce)
    assert plan.epsilon == told[1][0].epsilon == done.guarantee.epsilon


def test_the_planned_epsilon_bounds_every_site(tmp_path: Path) -> None:
    planned = small_experiment(
        data__min_records=5,
        sampling={
            "_target_": "dpfed_kan.privacy.sampling.PoissonBatch",
            "site_batch_size": 15,
        },
        data__partition={
            "_target_": "dpfed_kan.data.partition.QuantitySkew",
            "num_sites": 3,
            "concentration": 5.0,
        },
    )
    told: list[Planned] = []
    result = run(planned, tmp_path, announce=told.append)
    for words in ("of one record", "zero-out", "trusted", "accountant"):
        assert words in told[0].sentence
    (plan,) = told
    assert len(set(plan.expected_shares.values())) == 3
    for site, epsilon in result.epsilon_per_site.items():
        assert epsilon <= plan.epsilon
        assert plan.expected_shares[site] == pytest.approx(15 / plan.num_records[site])
    assert max(result.epsilon_per_site.values()) == plan.epsilon


def test_what_a_run_says_beforehand_does_not_depend_on_what_the_records_hold(
    tmp_path: Path,
) -> None:
    told: list[Planned] = []
    for steepness in (1.0, 50.0):
        planned = small_experiment(data__source__steepness=steepness)
        run(planned, tmp_path / str(steepness), announce=told.append, stop_after=1)
    assert told[0] == told[1]


def test_a_few_sites_are_a_table_and_many_a_line() -> None:
    said = shown(of_sizes({"a": 100, "b": 20, "c": 40}))
    rows = [line.split() for line in said.splitlines()]
    assert ["site", "patients", "n_k", "q_k", "ε_k"] in rows
    assert ["a", "100", "0.1", "≤", "1.235"] in rows
    assert ["b", "20", "0.5", "1.235"] in rows
    assert "∞" in shown(of_sizes({"a": 100}, epsilon=float("inf")))
    many = shown(of_sizes({f"site-{k}": 100 + k for k in range(101)})).split()
    wanted = "Planned for 101 sites: patients n_k 100 / 150 / 200, q_k 0.05 / 0.0666667 / 0.1"
    assert " ".join(many) == f"{wanted} (least / median / most), ε_k at most 1.235"


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
