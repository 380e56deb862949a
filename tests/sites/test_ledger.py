import json
import math
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfed_kan.privacy.accounting import account
from dpfed_kan.privacy.noising import NoNoise
from dpfed_kan.privacy.sampling import FullBatch, PoissonBatch
from dpfed_kan.sites.data_set import SiteKey
from dpfed_kan.sites.entries import read_run, read_runs
from dpfed_kan.sites.heads import LedgerError
from dpfed_kan.sites.ledger import SiteLedger
from dpfed_kan.sites.plan import SiteSize
from dpfed_kan.sites.policy import PlanRefused
from dpfed_kan.sites.spending import price
from tests.conftest import ROOT
from tests.sites.sitekit import DELTA, KEY, N, data_set, open_ledger, plan, policy, reserve


def answer(ledger: SiteLedger, run: str, *rounds: int) -> None:
    for t in rounds:
        ledger.commit(run, t, broadcast=f"broadcast {t}", reply=f"reply {t}")


def spent(ledger: SiteLedger, over: Any = None, **settings: Any) -> float:
    of = data_set() if over is None else over
    return ledger.spent(of, policy=policy(**settings)).epsilon


def test_a_reservation_is_the_price_of_all_rounds(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    assert spent(ledger) == 0
    entry = reserve(ledger, "one", plan(0.8))
    assert entry.whole.epsilon == pytest.approx(0.8, abs=1e-3)
    assert entry.whole.epsilon == account(plan(0.8).mechanism, delta=DELTA).epsilon
    assert spent(ledger) == entry.whole.epsilon
    assert spent(open_ledger(tmp_path)) == entry.whole.epsilon


def test_a_site_of_budget_1_that_has_spent_08_refuses_03(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    reserve(ledger, "one", plan(0.8))
    answer(ledger, "one", *range(8))
    ledger.close_run("one")
    with pytest.raises(PlanRefused) as no:
        reserve(open_ledger(tmp_path), "two", plan(0.3))
    assert no.value.rule == "budget_epsilon"
    for words in ("ε=0.3", "ε=1.1", "ε=0.8", "1 runs", "ε=1 at δ=1e-05"):
        assert words in str(no.value)
    reserve(open_ledger(tmp_path), "three", plan(0.19))


def test_an_open_reservation_counts_as_spent(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    reserve(ledger, "one", plan(0.8))
    with pytest.raises(PlanRefused, match="1 open runs"):
        reserve(ledger, "two", plan(0.3))
    ledger.close_run("one")  # no reply left
    assert spent(ledger) == 0
    reserve(ledger, "two", plan(0.3))


@pytest.mark.parametrize("rounds", [range(8), (0, 7)])  # one that was skipped cannot come any more
def test_a_complete_run_costs_the_same_closed_or_not_and_answers_nothing_new(
    tmp_path: Path, rounds: Any
) -> None:
    ledger = open_ledger(tmp_path)
    reserve(ledger, "one", plan(0.8))
    answer(ledger, "one", *rounds[:-1])
    assert not read_run(ledger.chain, "one").complete
    answer(ledger, "one", rounds[-1])
    left_open = read_run(ledger.chain, "one")
    assert left_open.complete
    for t in range(9):
        with pytest.raises(LedgerError, match=r"another broadcast|was answered already|\[0, 8\)"):
            ledger.commit("one", t, broadcast="another", reply="another")
    answer(ledger, "one", 7)  # the server may have died before it had the last reply
    with pytest.raises(PlanRefused) as no:
        reserve(ledger, "two", plan(0.3))
    assert "open runs" not in str(no.value)
    assert ledger.close_run("one").charge == left_open.charge
    assert left_open.charge.delta == 2 * DELTA


def test_plans_fixed_in_advance_compose_to_less_than_their_sum(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    fixed = policy(plans_chosen="in_advance")
    reserve(ledger, "one", plan(0.8), under=fixed)
    reserve(ledger, "two", plan(0.3), under=fixed)
    found = ledger.spent(data_set(), policy=fixed)
    one = account(plan(0.8).mechanism, delta=1e-5).epsilon
    two = account(plan(0.3).mechanism, delta=1e-5).epsilon
    assert math.hypot(one, two) * 0.95 < found.epsilon < one + two - 0.1
    assert "fixed in advance" in found.method
    assert spent(ledger) == pytest.approx(1.1, abs=0.01)


def test_delta_is_a_budget_too(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    tight = policy(budget_epsilon=100.0, budget_delta=2.5 * DELTA)
    assert reserve(ledger, "one", plan(0.5), under=tight).stop_delta == DELTA
    with pytest.raises(PlanRefused, match="budget_delta"):
        reserve(ledger, "two", plan(0.5), under=tight)
    wider = policy(budget_epsilon=100.0, budget_delta=3.5 * DELTA)
    assert reserve(ledger, "two", plan(0.5), under=wider).stop_delta == 0


def test_no_noise_is_more_than_any_budget(tmp_path: Path) -> None:
    bare = replace(plan(0.5), mechanism=replace(plan(0.5).mechanism, noise=NoNoise()))
    with pytest.raises(PlanRefused, match="budget_epsilon"):
        reserve(open_ledger(tmp_path), "one", bare, under=policy(budget_epsilon=1e300))


@pytest.mark.parametrize("correlation", [0.0, 0.8])
def test_a_run_that_stops_is_charged_a_prefix_as_a_whole_and_no_less(
    tmp_path: Path, correlation: float
) -> None:
    ledger = open_ledger(tmp_path)
    base = plan(0.9, FullBatch(), num_rounds=16)
    noise = replace(base.mechanism.noise, correlation=correlation)  # type: ignore[type-var]
    planned = replace(base, mechanism=replace(base.mechanism, noise=noise))
    generous = policy(budget_epsilon=50.0)
    reserve(ledger, "one", planned, under=generous)
    answer(ledger, "one", 0, 1, 4)  # rounds 2 and 3 never came: they count
    closed = ledger.close_run("one").closed
    assert closed is not None
    assert closed.num_rounds == 6  # 5 rounds, up to the next eighth of 16
    price = account(planned.mechanism, delta=DELTA / 8, num_rounds=6).epsilon
    assert closed.epsilon == price > account(planned.mechanism, delta=DELTA, num_rounds=5).epsilon
    assert closed.delta == 2 * DELTA
    assert spent(ledger) == price < account(planned.mechanism, delta=DELTA).epsilon


def test_a_run_without_its_stop_delta_is_charged_whole(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    reserve(ledger, "one", plan(0.8), under=policy(budget_delta=DELTA))
    answer(ledger, "one", 0)
    closed = ledger.close_run("one").closed
    assert closed is not None
    assert (closed.num_rounds, closed.delta) == (8, DELTA)


def test_records_and_patients_that_were_charged_count_in_another_file(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    names = np.array([f"p{k}" for k in range(N)])
    reserve(ledger, "one", plan(0.8), over=data_set(0, patients=names))
    cases = {
        "the same in another order": (0, names[::-1], True),
        "other records of one patient": (
            1,
            np.array(["p7", *(f"q{k}" for k in range(1, N))]),
            True,
        ),
        "the same records of other names": (0, np.array([f"q{k}" for k in range(N)]), True),
        "other records of others": (1, np.array([f"q{k}" for k in range(N)]), False),
    }
    for name, (seed, patients, counts) in cases.items():
        other = data_set(seed, patients=patients)
        assert (spent(ledger, other) > 0) is counts, name
        if counts:
            with pytest.raises(PlanRefused):
                reserve(ledger, name, plan(0.3), over=other)
        else:
            reserve(ledger, name, plan(0.3), over=other)


def test_the_same_reply_again_is_one_spending(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    reserve(ledger, "one", plan(0.8))
    answer(ledger, "one", 0, 1, 0, 1, 1)
    assert len(ledger.chain.rows("commit")) == 2


@pytest.mark.parametrize(
    ("round_index", "broadcast", "reply", "said"),
    [
        (1, "another", "reply 1", "another broadcast"),
        (1, "broadcast 1", "another", "not the one that was given"),
        (0, "broadcast 0", "reply 0", "round 1 was answered already"),
        (8, "broadcast 8", "reply 8", r"\[0, 8\)"),
        (-1, "broadcast", "reply", r"\[0, 8\)"),
    ],
)
def test_a_second_release_of_a_round_is_refused(
    tmp_path: Path, round_index: int, broadcast: str, reply: str, said: str
) -> None:
    ledger = open_ledger(tmp_path)
    reserve(ledger, "one", plan(0.8))
    answer(ledger, "one", 1)
    with pytest.raises(LedgerError, match=said):
        ledger.commit("one", round_index, broadcast=broadcast, reply=reply)
    assert len(ledger.chain.rows("commit")) == 1


def test_a_closed_run_answers_nothing_and_is_not_opened_again(tmp_path: Path) -> None:
    ledger, other = open_ledger(tmp_path), open_ledger(tmp_path)
    reserve(ledger, "one", plan(0.8))
    answer(ledger, "one", 0)
    once = other.close_run("one")
    assert other.close_run("one") == once
    for call in (lambda: answer(ledger, "one", 0), lambda: answer(ledger, "one", 1)):
        with pytest.raises(LedgerError, match="closed"):
            call()
    with pytest.raises(LedgerError, match="closed"):
        reserve(ledger, "one", plan(0.8))
    with pytest.raises(LedgerError, match="nothing was reserved"):
        ledger.close_run("unheard of")


def test_a_run_goes_on_only_as_it_was(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    first = reserve(ledger, "one", plan(0.5))
    assert reserve(open_ledger(tmp_path), "one", plan(0.5)) == first
    for changed, said in (
        ({"of": plan(0.4)}, "plan"),
        ({"over": data_set(1)}, "data set"),
        ({"over": replace(data_set(), arrangement="another")}, "order of the records"),
    ):
        with pytest.raises(LedgerError, match=f"another {said}"):
            reserve(ledger, "one", changed.pop("of", plan(0.5)), **changed)
    with pytest.raises(LedgerError, match="another streams"):
        reserve(ledger, "one", plan(0.5), streams="others")
    assert len(read_runs(ledger.chain)) == 1


def test_a_budget_that_was_lowered_stops_a_run_that_would_go_on(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    reserve(ledger, "one", plan(0.5))
    with pytest.raises(PlanRefused, match="budget_epsilon"):
        reserve(ledger, "one", plan(0.5), under=policy(budget_epsilon=0.4))
    reserve(ledger, "one", plan(0.5), under=policy(budget_epsilon=0.5))


def test_only_the_owner_can_read_the_ledger(tmp_path: Path) -> None:
    open_ledger(tmp_path)
    assert (tmp_path / "site.ledger").stat().st_mode & 0o777 == 0o600


def test_two_runs_never_draw_from_the_same_streams(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    reserve(ledger, "one", plan(0.1), streams="s")
    with pytest.raises(PlanRefused, match="fresh streams"):
        reserve(ledger, "two", plan(0.1), streams="s")
    reserve(ledger, "two", plan(0.1), streams="s", seeded=True)


def test_a_budget_keeps_its_unit_and_relation(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    reserve(ledger, "one", plan(0.1))
    for other in ({"privacy_unit": "patient"}, {"neighboring_relation": "replace_one"}):
        with pytest.raises(PlanRefused, match="put the policy back"):
            reserve(ledger, "two", plan(0.1), under=policy(**other))
    answer(ledger, "one", 0)
    ledger.close_run("one")
    with pytest.raises(PlanRefused, match="put the policy back"):
        spent(ledger, privacy_unit="patient")


def test_another_key_does_not_open_the_ledger(tmp_path: Path) -> None:
    open_ledger(tmp_path)
    with pytest.raises(LedgerError, match="another site key"):
        SiteLedger(tmp_path / "site.ledger", key=SiteKey(key=b"x" * 32))


RACE = """
import sys, time
from pathlib import Path
from dpfed_kan.sites.policy import PlanRefused
from tests.sites.sitekit import open_ledger, plan, reserve
ledger, planned = open_ledger(Path(sys.argv[1])), plan(0.3)
print("ready", flush=True)
sys.stdin.readline()
try:
    reserve(ledger, sys.argv[2], planned)
    print("reserved")
except PlanRefused as no:
    print("refused", no.rule)
"""


def test_two_processes_cannot_both_spend_the_last_of_the_budget(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    reserve(ledger, "before", plan(0.5))
    both = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, str(tmp_path), name],
            cwd=ROOT,
            env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("one", "two")
    ]
    for process in both:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    with ledger.chain.writing():  # both find room, and wait for the right to write
        for process in both:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        time.sleep(2)
    said = sorted(process.communicate()[0] for process in both)
    assert said == ["refused budget_epsilon\n", "reserved\n"]
    assert spent(ledger) <= 1.0


FILL = """
import resource, sys
from pathlib import Path
from dpfed_kan.sites.heads import LedgerError
from tests.sites.sitekit import open_ledger
ledger = open_ledger(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)  # as a disk that is full
left = 0
try:
    for t in range(200):
        ledger.commit("one", t, broadcast="b" * 64, reply="r" * 64)
        left += 1
except LedgerError as error:
    print(left, error)
"""


@pytest.mark.parametrize("room", [3, 12])
def test_a_full_disk_is_told_and_leaves_the_ledger_whole(tmp_path: Path, room: int) -> None:
    ledger = open_ledger(tmp_path)
    reserve(ledger, "one", plan(0.5, num_rounds=200))
    size = (tmp_path / "site.ledger").stat().st_size + room * 4096
    done = subprocess.run(
        [sys.executable, "-c", FILL, str(tmp_path), str(size)],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    left, _, said = done.stdout.partition(" ")
    assert "the disk is not full" in said
    again = open_ledger(tmp_path)
    last = read_run(again.chain, "one").last_round
    assert last is not None
    assert int(left) <= last + 1 <= int(left) + 1
    again.commit("one", last + 1, broadcast="b", reply="r")


def test_a_directory_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="can be written"):
        open_ledger(tmp_path / "nowhere")
    (tmp_path / "site.ledger").write_text("not a database, but a letter")
    with pytest.raises(LedgerError, match="not a database"):
        open_ledger(tmp_path)


def test_nothing_secret_is_in_the_file(tmp_path: Path) -> None:
    names = np.array([f"patient-{k}" for k in range(N)])
    ledger = open_ledger(tmp_path)
    reserve(ledger, "one", plan(0.5), over=data_set(0, patients=names))
    answer(ledger, "one", 0)
    content = (tmp_path / "site.ledger").read_bytes()
    assert b"patient-" not in content
    assert KEY.key not in content
    assert KEY.key.hex().encode() not in content
    events = [json.loads(row.content)["event"] for row in ledger.chain.rows()]
    assert events == ["begin", "data_set", "reserve", "commit"]


def test_a_run_that_another_answered_beside_is_charged_whole(tmp_path: Path) -> None:
    """When it stopped may have depended on what the other released: no class of its own."""
    generous = policy(budget_epsilon=50.0, budget_delta=1e-4)
    ledger = open_ledger(tmp_path)
    for run in ("one", "two"):
        reserve(ledger, run, plan(0.9), under=generous)
    answer(ledger, "one", 0)
    answer(ledger, "two", 0)
    first = ledger.close_run("one")
    assert first.charge.epsilon == first.whole.epsilon
    assert first.charge.num_rounds == 8
    reserve(ledger, "three", plan(0.9), under=generous)
    answer(ledger, "three", 0)
    assert ledger.close_run("three").charge.num_rounds == 1
    assert ledger.close_run("two").charge.num_rounds == 8


def test_of_plans_fixed_in_advance_none_is_charged_less_for_stopping(tmp_path: Path) -> None:
    """The lesser of two bounds is taken: neither may depend on what was released."""
    fixed = policy(budget_epsilon=50.0, plans_chosen="in_advance")
    ledger = open_ledger(tmp_path)
    assert reserve(ledger, "one", plan(0.9), under=fixed).stop_delta == 0
    answer(ledger, "one", 0)
    ledger.close_run("one")
    assert spent(ledger, plans_chosen="in_advance") == pytest.approx(0.9, abs=1e-3)
    (tmp_path / "other").mkdir()
    other = open_ledger(tmp_path / "other")
    reserve(other, "one", plan(0.9), under=policy(budget_epsilon=50.0))
    answer(other, "one", 0)
    other.close_run("one")
    assert spent(other) < 0.6
    assert spent(other, plans_chosen="in_advance") == pytest.approx(0.9, abs=1e-3)


def test_a_patient_at_several_sites_costs_what_the_smallest_site_costs(tmp_path: Path) -> None:
    base = plan(0.5)
    planned = replace(
        base,
        mechanism=replace(
            base.mechanism,
            sampling=PoissonBatch(site_batch_size=10),
            privacy_unit="patient",
            sites_per_unit=2,
        ),
        sites=(SiteSize(name="a", num_records=4000), SiteSize(name="b", num_records=50)),
    )
    prices = [price(planned, site=site, num_rounds=8, delta=DELTA).epsilon for site in "ab"]
    assert prices[0] == prices[1]
    alone = replace(planned, mechanism=replace(planned.mechanism, sites_per_unit=1))
    assert price(alone, site="a", num_rounds=8, delta=DELTA).epsilon < 0.2 * prices[0]
