import json
import math

import pytest

from dpfed_kan.cli import main

POISSON = "--sampling poisson --sampling-prob 0.025 --rounds 400 --delta 1e-5"


def answer(capsys: pytest.CaptureFixture[str], arguments: str) -> str:
    main(arguments.split())
    return capsys.readouterr().out


def test_account_states_all_that_an_epsilon_needs(capsys: pytest.CaptureFixture[str]) -> None:
    said = answer(capsys, f"account {POISSON} --noise-multiplier 6.3 --json")
    found = json.loads(said)
    assert found["epsilon"] == pytest.approx(0.2704, abs=2e-3)
    for word in ("zero-out", "record", "400 rounds", "Poisson, q=0.025", "trusted", "accountant"):
        assert word in found["sentence"]
    assert found["tried"]


def test_calibrate_answers_what_account_confirms(capsys: pytest.CaptureFixture[str]) -> None:
    cyclic = "--sampling cyclic --num-batches 40 --rounds 400 --delta 1e-5 --correlation 0.5"
    found = json.loads(answer(capsys, f"calibrate {cyclic} --epsilon 2 --json"))
    assert found["noise_multiplier"] == pytest.approx(7.280, abs=5e-4)
    again = f"account {cyclic} --noise-multiplier {found['noise_multiplier']!r} --json"
    assert json.loads(answer(capsys, again))["epsilon"] <= 2


def test_no_noise_is_said_aloud_and_stays_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert "NO PRIVACY" in answer(capsys, f"account {POISSON} --noise-multiplier 0")
    found = json.loads(answer(capsys, f"account {POISSON} --noise-multiplier 0 --json"))
    assert found["epsilon"] == "infinity"


def test_the_table_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    said = answer(capsys, f"account {POISSON} --noise-multiplier 6.3")
    assert "ε = 0.27" in said
    assert "independent check: PRV says" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (f"account {POISSON} --noise-multiplier -1", "noise_multiplier=-1.0 in [0, inf)"),
        (f"account {POISSON} --noise-multiplier nan", "noise_multiplier=nan"),
        (f"account {POISSON} --noise-multiplier 1 --correlation 1", "correlation=1.0 in [0, 1)"),
        (
            f"account {POISSON} --noise-multiplier 1 --records 100000",
            "with num_records=100000",
        ),
        (f"calibrate {POISSON} --epsilon 0", "target_epsilon=0.0 in (0, inf)"),
        (
            "account --sampling poisson --rounds 1 --delta .1 --noise-multiplier 1",
            "--sampling-prob",
        ),
        (
            "account --sampling full_batch --rounds 0 --delta .1 --noise-multiplier 1",
            "num_rounds=0",
        ),
        ("account --sampling full_batch --rounds 1 --delta 0 --noise-multiplier 1", "delta=0.0"),
    ],
)
def test_a_question_without_an_answer_ends_in_one_clear_line(arguments: str, said: str) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments.split())
    assert said in str(stop.value.code)


def test_epsilon_is_never_negative(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "--sampling poisson --sampling-prob 0.05 --rounds 10 --delta 0.3"
    found = json.loads(answer(capsys, f"account {arguments} --noise-multiplier 4 --json"))
    assert found["epsilon"] == 0
    assert not math.copysign(1, found["epsilon"]) < 0


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["account", "--help"], ["calibrate", "--help"]):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 0
    said = capsys.readouterr().out
    assert "examples:" in said
    assert "well below 1/n" in said
