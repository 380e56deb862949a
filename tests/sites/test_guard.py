import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfed_kan.federated.site import Broadcast
from dpfed_kan.privacy.sampling import Poisson
from dpfed_kan.privacy.transform import ClipTransform
from dpfed_kan.sites.entries import read_run
from dpfed_kan.sites.guard import GuardedSite, check_run, open_site
from dpfed_kan.sites.heads import LedgerError
from dpfed_kan.sites.policy import PlanRefused
from dpfed_kan.sites.verifying import verify
from dpfed_kan.streams import Streams
from tests.conftest import ROOT
from tests.sites.sitekit import (
    D,
    Gradients,
    Untouchable,
    broadcast,
    data_set,
    open_ledger,
    plan,
    policy,
    records,
    site,
)

SEEDED = Streams.from_seed(0).for_site("a")


def opened(directory: Path, run: str = "one", **given: Any) -> GuardedSite:
    here, asked = asking(directory, run, **given)
    return open_site(here, **asked)


def asking(directory: Path, run: str = "one", **given: Any) -> tuple[Any, dict[str, Any]]:
    of = given.get("plan", plan(0.5))
    return given.get("site", site(of)), {
        "run": run,
        "plan": of,
        "policy": given.get("policy", policy()),
        "ledger": open_ledger(directory),
        "data_set": given.get("data_set", data_set()),
    }


def test_the_guard_changes_no_reply(tmp_path: Path) -> None:
    here = site(plan(0.5))
    guarded = opened(tmp_path, site=here)
    for t in range(8):
        said = broadcast(t, 0.1 * t)
        assert guarded.work(said).value.tobytes() == here.work(said).value.tobytes()
    assert guarded.close().charge.num_rounds == 8


def test_a_site_that_has_spent_08_of_1_refuses_03_before_any_gradient(tmp_path: Path) -> None:
    first = opened(tmp_path, plan=plan(0.8))
    for t in range(8):
        first.work(broadcast(t))
    first.close()
    with pytest.raises(PlanRefused) as no:
        opened(tmp_path, "two", plan=plan(0.3), site=site(plan(0.3), Untouchable()))
    assert no.value.rule == "budget_epsilon"
    with pytest.raises(LedgerError, match="nothing was reserved"):
        open_ledger(tmp_path).commit("two", 0, broadcast="b", reply="r")


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"policy": policy(allowed_plans=())}, "allowed_plans"),
        ({"policy": policy(min_records=41)}, "min_records"),
        ({"policy": policy(budget_epsilon=0.1)}, "budget_epsilon"),
        ({"site": site(plan(0.5), Untouchable(), SEEDED)}, "allow_seeded_streams"),
        ({"data_set": data_set(n=39)}, "allowed_plans"),
        ({"site": replace(site(plan(0.5), Untouchable()), l2_clip_norm=2.0)}, "allowed_plans"),
        ({"site": replace(site(plan(0.5), Untouchable()), num_records=39)}, "allowed_plans"),
        (
            {"site": replace(site(plan(0.5), Untouchable()), sampling=Poisson(sampling_prob=0.9))},
            "allowed_plans",
        ),
        (
            {"site": replace(site(plan(0.5), Untouchable()), patients=np.arange(40))},
            "allowed_plans",
        ),
    ],
)
def test_a_refusal_comes_before_any_gradient_and_reserves_nothing(
    tmp_path: Path, changed: dict[str, Any], rule: str
) -> None:
    here, asked = asking(tmp_path, **{"site": site(plan(0.5), Untouchable()), **changed})
    for ask in (check_run, open_site):
        with pytest.raises(PlanRefused) as no:
            ask(here, **asked)
        assert no.value.rule == rule
    assert open_ledger(tmp_path).chain.rows("reserve") == []


def test_a_yes_before_the_run_writes_nothing_and_promises_nothing(tmp_path: Path) -> None:
    here, asked = asking(tmp_path, site=site(plan(0.5), Untouchable()))
    check_run(here, **asked)
    events = [json.loads(row.content)["event"] for row in open_ledger(tmp_path).chain.rows()]
    assert events == ["begin"]
    opened(tmp_path, "another", plan=plan(0.8))
    for ask in (check_run, open_site):
        with pytest.raises(PlanRefused, match="budget_epsilon"):
            ask(here, **asked)


def test_a_run_that_goes_on_hears_yes_again_until_it_is_closed(tmp_path: Path) -> None:
    here, asked = asking(tmp_path)
    open_site(here, **asked)
    check_run(here, **asked)
    with pytest.raises(LedgerError, match="another streams"):
        check_run(replace(here, streams=Streams.from_entropy()), **asked)
    asked["ledger"].close_run("one")
    with pytest.raises(LedgerError, match="closed at this site"):
        check_run(here, **asked)


def test_the_reservation_is_on_the_disk_before_the_first_gradient(tmp_path: Path) -> None:
    seen = []

    def look() -> None:
        with closing(sqlite3.connect(tmp_path / "site.ledger")) as database:
            sql = "SELECT count(*) FROM rows WHERE event = 'reserve'"
            seen.append(database.execute(sql).fetchone()[0])

    opened(tmp_path, site=site(plan(0.5), Gradients(records(), look))).work(broadcast(0))
    assert seen == [1]


def test_no_reply_leaves_before_it_is_on_the_disk(tmp_path: Path) -> None:
    touched = threading.Event()
    guarded = opened(tmp_path, site=site(plan(0.5), Gradients(records(), touched.set)))
    replies: list[Any] = []
    worker = threading.Thread(target=lambda: replies.append(guarded.work(broadcast(0))))
    with closing(sqlite3.connect(tmp_path / "site.ledger", isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")  # nobody else can write
        worker.start()
        assert touched.wait(10)
        time.sleep(0.5)
        assert replies == []
        database.execute("ROLLBACK")
    worker.join(20)
    assert len(replies) == 1
    assert read_run(open_ledger(tmp_path).chain, "one").last_round == 0


def test_the_same_broadcast_has_the_same_reply_and_costs_once(tmp_path: Path) -> None:
    here = site(plan(0.5))
    first = opened(tmp_path, site=here).work(broadcast(3, 0.2))
    again = opened(tmp_path, site=here).work(broadcast(3, 0.2))  # as after a crash
    assert first.value.tobytes() == again.value.tobytes()
    assert len(open_ledger(tmp_path).chain.rows("commit")) == 1


def test_another_broadcast_for_an_answered_round_is_refused_before_any_gradient(
    tmp_path: Path,
) -> None:
    of = replace(plan(0.5), clips_in_transform=True)
    here = site(of)
    opened(tmp_path, plan=of, site=here).work(broadcast(3, 0.2))
    blind = opened(tmp_path, plan=of, site=replace(here, gradients=Untouchable()))
    transform = ClipTransform(center=np.zeros(D), scale=np.ones(D))
    for other in (
        broadcast(3, 0.3),
        replace(broadcast(3, 0.2), transform=transform),
        replace(broadcast(3, 0.2), counts={"a": 7}),
        broadcast(2, 0.2),
        broadcast(8, 0.2),
    ):
        with pytest.raises(LedgerError):
            blind.work(other)


def test_a_broadcast_that_was_not_planned_is_refused(tmp_path: Path) -> None:
    guarded = opened(tmp_path, site=site(plan(0.5), Untouchable()))
    transform = ClipTransform(center=np.zeros(D), scale=np.ones(D))
    with pytest.raises(PlanRefused, match="transform"):
        guarded.work(replace(broadcast(0), transform=transform))
    with pytest.raises(ValueError, match="as planned"):
        guarded.work(Broadcast(round_index=0, params=np.zeros(D + 1)))


def test_other_streams_or_code_do_not_give_a_second_reply(tmp_path: Path) -> None:
    here = site(plan(0.5))
    opened(tmp_path, site=here).work(broadcast(0, 0.2))
    with pytest.raises(LedgerError, match="another streams"):
        opened(tmp_path, site=replace(here, streams=Streams.from_entropy()))
    other = replace(here, gradients=Gradients(records(1)))
    with pytest.raises(LedgerError, match="not the one that was given"):
        opened(tmp_path, site=other).work(broadcast(0, 0.2))


def test_a_round_that_fails_at_the_site_costs_nothing_and_can_be_asked_again(
    tmp_path: Path,
) -> None:
    here = site(plan(0.5))

    def fail() -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        opened(tmp_path, site=replace(here, gradients=Gradients(records(), fail))).work(
            broadcast(0)
        )
    assert read_run(open_ledger(tmp_path).chain, "one").last_round is None
    opened(tmp_path, site=here).work(broadcast(0, 0.5))


def test_after_closing_no_process_answers(tmp_path: Path) -> None:
    here = site(plan(0.5))
    one, two = opened(tmp_path, site=here), opened(tmp_path, site=here)
    one.work(broadcast(0))
    two.close()
    with pytest.raises(LedgerError, match="closed"):
        one.work(broadcast(0))


WORK = """
import sys
from pathlib import Path
from dpfed_kan.sites.guard import open_site
from dpfed_kan.streams import Streams
from tests.sites.sitekit import broadcast, data_set, open_ledger, plan, policy, site
of = plan(0.5, num_rounds=4000)
guarded = open_site(
    site(of, streams=Streams.from_seed(0).for_site("a")),
    run="one", plan=of, policy=policy(allow_seeded_streams=True),
    ledger=open_ledger(Path(sys.argv[1])), data_set=data_set(),
)
for t in range(int(sys.argv[2]), 4000):
    print(t, guarded.work(broadcast(t)).value.tobytes().hex(), flush=True)
"""


def test_a_site_that_is_killed_has_paid_for_every_reply_that_left(tmp_path: Path) -> None:
    first, answers = 0, {}
    for kill in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", WORK, str(tmp_path), str(first)],
            cwd=ROOT,
            env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(4)]
        time.sleep(0.05 + 0.1 * kill)
        os.kill(process.pid, signal.SIGKILL)
        lines += process.stdout.read().splitlines()
        process.stdout.close()
        process.wait()
        for line in lines:
            t, _, value = line.strip().partition(" ")
            if value and len(value) == 16 * D:
                assert answers.setdefault(int(t), value) == value  # resent, not recomputed anew
        ledger = open_ledger(tmp_path)
        assert verify(ledger.chain).bad_row is None
        last = read_run(ledger.chain, "one").last_round
        assert last is not None
        assert last >= max(answers)
        ledger.chain.close()
        first = last  # the server may not have it: it is asked for again
    assert len(answers) >= 10
