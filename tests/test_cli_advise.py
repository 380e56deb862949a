import json
from pathlib import Path

import pytest

from dpfed_kan.cli import main
from dpfed_kan.cli_advise import best_of_each, descent, plot, verdict
from dpfed_kan.privacy.advising import advise
from dpfed_kan.privacy.descent_advice import moderate_steps
from dpfed_kan.privacy.sampling import Cyclic, Poisson

SMALL = "advise --epsilon 2 --delta 1e-4 --records 400 --batch 40 --rounds 20"


@pytest.fixture(scope="module")
def rows():
    return advise(
        target_epsilon=2.0,
        target_delta=1e-4,
        num_records=400,
        batch_size=40,
        num_rounds=20,
        correlations=(0.0, 0.5, 0.8),
        samplings=(Poisson(sampling_prob=0.1), Cyclic(num_batches=10)),
    )


def test_each_sampler_is_shown_at_its_best(rows):
    best = best_of_each(rows)
    assert len(best) == 2
    for row in best:
        mine = [r.error_per_record for r in rows if r.sampling == row.sampling]
        assert row.error_per_record == min(mine)


def test_the_verdict_says_where_correlation_pays(rows):
    said = verdict(rows)
    assert said.startswith("Least noise: ")
    pays = {r.sampling.describe() for r in best_of_each(rows) if r.correlation > 0}
    for name in pays:
        assert name in said.split("does not pay")[0]


def test_the_length_of_full_batch_descent_is_of_the_papers_order():
    """T ∝ n ε/√d: four times the features, half the steps."""
    asked = {"num_records": 2000, "epsilon": 2.0, "input_dim": 784}
    assert moderate_steps(**asked) == 143  # 4000/28
    assert moderate_steps(**asked | {"input_dim": 196}) == 286
    assert moderate_steps(**asked | {"num_records": 1, "epsilon": 0.1}) == 1
    assert "n ε/√d = 143 steps" in descent(143)
    for name, wrong in (("num_records", 0), ("epsilon", 0.0), ("input_dim", 0)):
        with pytest.raises(ValueError, match=name):
            moderate_steps(**asked | {name: wrong})


def test_the_length_is_part_of_the_answer(rows, monkeypatch, capsys):
    monkeypatch.setattr("dpfed_kan.cli_advise.advise", lambda **asked: rows)
    main([*SMALL.split(), "--input-dim", "4"])
    assert "n ε/√d = 400 steps" in " ".join(capsys.readouterr().out.split())
    main([*SMALL.split(), "--input-dim", "4", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["full_batch_steps"] == 400
    assert len(found["ranked"]) == len(rows)
    main([*SMALL.split(), "--json"])
    assert len(json.loads(capsys.readouterr().out)) == len(rows)


def test_a_picture_is_drawn(rows, tmp_path: Path):
    pytest.importorskip("matplotlib", reason="needs the extra plots")
    plot(rows, tmp_path / "a.png", title="t")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_of_an_unknown_kind_is_refused_before_the_work(capsys):
    with pytest.raises(SystemExit) as stop:
        main([*SMALL.split(), "--plot", "picture.xyz"])
    assert "to end in .png, .pdf or .svg" in str(stop.value.code)


@pytest.mark.slow
def test_the_whole_ranking_is_json_too(capsys):
    main([*SMALL.split(), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert len({row["sampling"] for row in found}) == 5
    errors = [row["error_per_record"] for row in found]
    assert errors == sorted(errors)
