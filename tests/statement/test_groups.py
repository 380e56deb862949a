"""Groups of the statement against closed forms and published examples."""

from pathlib import Path
from typing import Any

import pytest
from scipy.stats import norm

from dpfed_kan.assessment import Assessment, Quality
from dpfed_kan.cli import main
from dpfed_kan.report import as_json
from dpfed_kan.run import run
from dpfed_kan.statement.groups import accuracy_differences
from dpfed_kan.statement.words import setting_in_words
from tests.system.conftest import _experiment


def site(right: int, of: int, low: float, high: float) -> Quality:
    return Quality(
        num_records=of,
        accuracy=right / of,
        accuracy_interval=(low, high),
        base_rate=0.5,
        auc=None,
        auc_interval=None,
        auc_reason=None,
        loss=0.0,
        brier=None,
        calibration_error=None,
    )


def test_newcombes_published_example() -> None:  # 56/70 less 48/80: .0524 to .3339
    sites = {"a": site(56, 70, 0.6918, 0.8771), "b": site(48, 80, 0.4904, 0.7004)}
    found = accuracy_differences(
        Assessment(
            pooled=sites["a"],
            per_site=sites,
            mean_accuracy=None,
            mean_auc=None,
            num_sites_with_auc=0,
        )
    )
    there, back = found
    assert (there["site"], there["other"]) == ("a", "b")
    assert there["difference"] == pytest.approx(0.2)
    assert there["interval"] == pytest.approx([0.0524, 0.3339], abs=2e-4)
    assert back["interval"] == pytest.approx([-0.3339, -0.0524], abs=2e-4)


def test_epsilon_without_amplification_is_that_of_one_gaussian(tmp_path: Path) -> None:
    quiet = _experiment(noise__correlation=0.0, num_rounds=4)
    report = as_json(run(quiet, tmp_path / "run"))
    without = report["statement"]["accountant"]["without_amplification"]
    mu, eps = 4**0.5 / 2.0, without["epsilon"]  # T rounds of std κ = 2 are one of std κ/√T
    delta = norm.cdf(mu / 2 - eps / mu) - 2.718281828459045**eps * norm.cdf(-mu / 2 - eps / mu)
    assert delta == pytest.approx(1e-3, rel=1e-4)
    assert eps > report["guarantee"]["epsilon"]
    assert "full batch" in without["method"]


def test_the_hashes_are_those_that_sites_approve_and_files_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import hashlib

    found = as_json(run(_experiment(num_rounds=2), tmp_path / "run"))["statement"]["provenance"]
    main(["plan", str(tmp_path / "run" / "config.yaml")])
    assert f"plan hash: {found['plan_sha256']}" in capsys.readouterr().out
    for name, file in (("ledger_sha256", "ledger.jsonl"), ("config_sha256", "config.yaml")):
        text = (tmp_path / "run" / file).read_bytes()
        assert found[name] == hashlib.sha256(text).hexdigest()


def test_a_setting_that_has_no_words_is_refused() -> None:
    with pytest.raises(TypeError, match="no words for the runtime object"):
        setting_in_words(object())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"privacy__neighboring_relation": "replace_one"}, "replaced by any other"),
        ({"seed": None}, "zero in one of them"),
    ],
)
def test_the_relation_is_told_in_words(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    told = as_json(run(_experiment(num_rounds=1, **changes), tmp_path / "run"))["statement"]["unit"]
    assert words in told["relation_in_words"]
