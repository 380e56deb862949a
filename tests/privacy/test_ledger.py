import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from dpfed_kan.privacy.accounting import NonPrivate, account
from dpfed_kan.privacy.ledger import Ledger
from dpfed_kan.privacy.mechanism import Mechanism, ReleaseEvent
from dpfed_kan.privacy.noising import GaussianNoise, NoNoise
from dpfed_kan.privacy.sampling import Poisson

MECHANISM = Mechanism(
    sampling=Poisson(sampling_prob=0.1),
    noise=GaussianNoise(noise_multiplier=1.2),
    l2_clip_norm=1.0,
    num_rounds=20,
)
SIZES = {"site-1": 40}


def event(round_index: int, **changes: object) -> ReleaseEvent:
    made = ReleaseEvent(
        round_index=round_index,
        l2_sensitivity=1.0,
        noise_multiplier=1.2,
        correlation=0.0,
        column_normalized=False,
        release_sha256=f"{round_index:064x}",
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def ledger(path: Path | None = None, mechanism: Mechanism = MECHANISM) -> Ledger:
    return Ledger(mechanism=mechanism, num_records=SIZES, path=path)


def test_epsilon_continues_after_a_stop_composed_and_not_summed(tmp_path: Path) -> None:
    """Trial P06: 1.98 after 10 rounds, on resuming too, and 2.52 after 20."""
    path = tmp_path / "ledger.jsonl"
    first = ledger(path)
    for t in range(10):
        first.record(event(t))
    stopped = first.spent(delta=1e-5)
    assert "for the first " in stopped.sentence  # only true if what was seen did not stop it
    assert "else only the ε of all holds" in stopped.sentence
    resumed = ledger(path)
    assert resumed.spent(delta=1e-5).epsilon == stopped.epsilon == pytest.approx(1.98, abs=0.01)
    for t in range(10, 20):
        resumed.record(event(t))
    assert resumed.spent(delta=1e-5).epsilon == pytest.approx(2.52, abs=0.01)
    assert resumed.spent(delta=1e-5).epsilon == account(MECHANISM, delta=1e-5).epsilon
    assert "else only" not in resumed.spent(delta=1e-5).sentence


def test_only_rounds_that_happened_are_accounted() -> None:
    empty = ledger().spent(delta=1e-5)
    assert (empty.epsilon, empty.num_rounds) == (0.0, 0)
    one = ledger()
    one.record(event(0))
    assert one.spent(delta=1e-5).num_rounds == 1
    assert one.spent(delta=1e-5).epsilon > 0


def test_without_noise_the_ledger_says_infinity() -> None:
    book = ledger(mechanism=replace(MECHANISM, noise=NoNoise()))
    book.record(event(0, noise_multiplier=0.0))
    assert isinstance(book.spent(delta=1e-5), NonPrivate)


@pytest.mark.parametrize(
    ("bad", "match"),
    [
        (event(1), "expected round 0 next"),
        (event(-1), "expected round 0 next"),
        (event(0, noise_multiplier=0.6), "not released by the plan"),
        (event(0, l2_sensitivity=2.0), "not released by the plan"),
        (event(0, correlation=0.5), "not released by the plan"),
        (event(0, column_normalized=True), "not released by the plan"),
    ],
)
def test_an_event_that_the_plan_did_not_make_is_refused(bad: ReleaseEvent, match: str) -> None:
    book = ledger()
    with pytest.raises(ValueError, match=match):
        book.record(bad)
    assert book.events == []


def test_a_round_is_released_once(tmp_path: Path) -> None:
    book = ledger(tmp_path / "ledger.jsonl")
    book.record(event(0))
    book.record(event(0))  # the same release, computed again after a crash
    assert len(book.events) == 1
    with pytest.raises(ValueError, match="already released, over a different sum"):
        book.record(event(0, release_sha256="f" * 64))
    assert len((tmp_path / "ledger.jsonl").read_text().splitlines()) == 2


def test_no_round_beyond_the_horizon_is_recorded() -> None:
    book = ledger(mechanism=replace(MECHANISM, num_rounds=1))
    book.record(event(0))
    with pytest.raises(ValueError, match="beyond the horizon"):
        book.record(event(1))


@pytest.mark.parametrize(
    "other",
    [
        replace(MECHANISM, num_rounds=40),
        replace(MECHANISM, sampling=Poisson(sampling_prob=0.05)),
        MECHANISM.with_noise_multiplier(2.4),
        replace(MECHANISM, neighboring_relation="add_remove"),
    ],
)
def test_a_run_continues_under_its_own_plan_only(tmp_path: Path, other: Mechanism) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger(path).record(event(0))
    with pytest.raises(ValueError, match="another plan"):
        ledger(path, other)
    with pytest.raises(ValueError, match="another plan"):
        Ledger(mechanism=MECHANISM, num_records={"site-1": 41}, path=path)


def test_a_line_torn_by_a_crash_is_dropped_wherever_it_was_torn(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    book = ledger(path)
    for t in range(2):
        book.record(event(t))
    whole = path.read_bytes()
    ends = [index + 1 for index, byte in enumerate(whole) if byte == ord("\n")]
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        reopened = ledger(path)
        durable = max(0, sum(end <= length for end in ends) - 1)
        assert len(reopened.events) == durable
        for t in range(durable, 2):
            reopened.record(event(t))
        assert path.read_bytes() == whole


def test_the_file_is_json_lines_also_without_a_clip(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    unclipped = replace(MECHANISM, noise=NoNoise(), l2_clip_norm=float("inf"))
    free = event(0, noise_multiplier=0.0, l2_sensitivity=float("inf"))
    ledger(path, unclipped).record(free)
    for line in path.read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert ledger(path, unclipped).events == [free]


def ahead(path: Path) -> Ledger:
    return Ledger(mechanism=MECHANISM, num_records=SIZES, path=path, reserve_ahead=5)


def test_a_round_is_reserved_on_the_disk_before_it_is_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.jsonl"
    durable = [""]
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        fsync(descriptor)
        durable[0] = path.read_text()

    monkeypatch.setattr(os, "fsync", watched)
    running = ahead(path)
    for t in range(12):
        running.record(event(t))
        assert ledger_of(tmp_path, durable[0]).num_spent >= t + 1
        assert running.num_spent == t + 1
    assert len(durable[0].splitlines()) == 1 + 3 + 10  # plan, reservations, older releases
    running.settle()
    assert durable[0] == path.read_text()
    assert ledger(path).num_spent == 12


def ledger_of(tmp_path: Path, text: str) -> Ledger:
    """What somebody finds after the power has failed."""
    path = tmp_path / "found.jsonl"
    path.write_text(text)
    return ledger(path)


def test_rounds_reserved_by_a_run_that_broke_off_count_until_they_are_run(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    broken = ahead(path)
    for t in range(7):
        broken.record(event(t))
    found = ahead(path)
    assert (len(found.events), found.num_spent) == (7, 10)
    assert found.spent(delta=1e-5).num_rounds == 10
    for t in range(9):
        found.record(event(t))
    assert found.num_spent == 10
    found.settle()
    again = ahead(path)
    assert again.num_spent == 10
    for t in range(9, 20):
        again.record(event(t))
    assert (again.num_spent, ahead(path).num_spent) == (20, 20)


def test_no_reservation_goes_beyond_the_horizon(tmp_path: Path) -> None:
    running = ahead(tmp_path / "ledger.jsonl")
    for t in range(MECHANISM.num_rounds):
        running.record(event(t))
    assert ahead(tmp_path / "ledger.jsonl").num_spent == MECHANISM.num_rounds
