"""kill -9 of random processes of a pilot at random moments: every run ends, nothing is spent twice.

    KILLS=60 KILLS_SEED=1 python -m pytest -m trial -n 0 -s tests/system/test_random_kills.py
    KILLS=4 KILLS_TRANSPORT=native python -m pytest ...   # the slow transport: runs of 3 rounds

What is shown is read off the files that the server and the sites have written.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from dpfed_kan.pilot.trial import write_trial
from dpfed_kan.sites.chain import Chain
from dpfed_kan.sites.verifying import verify
from tests.system.killing import NUM_ROUNDS, TRANSPORT, Killer, Told, count
from tests.system.pilot_outside import events, pilot, run_name
from tests.system.test_pilot import final_params, free_ports, report

pytestmark = [pytest.mark.trial, pytest.mark.xdist_group("pilot")]
KILLS = int(os.environ.get("KILLS", "2"))
SEED = int(os.environ.get("KILLS_SEED", "1"))
SECONDS = float(os.environ.get("KILLS_SECONDS", "1500"))  # no kill after these
MOST_IN_A_RUN = 15
UNSEEDED_EVERY = 3  # a third of the runs draw from the operating system's entropy
STUDY = [f"num_rounds={NUM_ROUNDS}", "privacy.target_epsilon=null", "noise.noise_multiplier=4.0"]
SITES = ("hospital-1", "hospital-2", "hospital-3")


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A pilot of invented hospitals with a policy and a ledger at each, that is up."""
    directory = tmp_path_factory.mktemp("kills")
    write_trial(directory)
    for name, changes in (
        ("pilot.yaml", {"port": free_ports(5)}),
        ("policy.yaml", {"budget_epsilon": 1e6, "budget_delta": 0.9}),
    ):
        content = yaml.safe_load((directory / name).read_text()) | changes
        (directory / name).write_text(yaml.safe_dump(content))
    done = pilot("up", str(directory))
    assert done.returncode == 0, done.stderr
    yield directory
    pilot("down", str(directory))


def answered(trial: Path, site: str, run: str) -> list[tuple[int, str, str]]:
    """(round, digest of the broadcast, digest of the reply) of each commit at a site."""
    with closing(Chain(trial / "run" / "sites" / site / "site.ledger")) as chain:
        rows = [json.loads(row.content) for row in chain.rows("commit", run=run)]
    return [(row["round_index"], row["broadcast"], row["reply"]) for row in rows]


class Observer:
    """Looks at the files right after a kill, whatever is half done there."""

    def __init__(self, trial: Path) -> None:
        self.trial = trial
        self.releases: dict[Path, list[dict[str, object]]] = {}
        self.answers: dict[tuple[Path, str], list[tuple[int, str, str]]] = {}

    def __call__(self, output_dir: Path) -> None:
        if not (output_dir / "run_id").exists():
            return
        used = len(events(output_dir))
        run = run_name(output_dir)
        seen = {site: answered(self.trial, site, run) for site in SITES}
        done = events(output_dir)
        for site, rows in seen.items():
            rounds = [row[0] for row in rows]
            # site ledger >= replies the server has used: it holds each of them, and once
            assert rounds == list(range(len(rounds))) and len(rounds) >= used, (site, rounds, used)
            # a broadcast of round t shows the release of round t - 1: server ledger >= releases
            assert len(done) >= len(rounds) - 1, (site, rounds, len(done))
            before = self.answers.get((output_dir, site), [])
            assert rows[: len(before)] == before
            self.answers[output_dir, site] = rows
        before = self.releases.get(output_dir, [])
        assert done[: len(before)] == before  # what was released stays what it was
        self.releases[output_dir] = done


def check_ended(trial: Path, output_dir: Path, observer: Observer) -> None:
    """Check a run that has ended, from the files alone."""
    observer(output_dir)
    assert report(output_dir)["deployment"]["rounds_contributed_zero"] == {}
    done = events(output_dir)
    assert [row["round_index"] for row in done] == list(range(NUM_ROUNDS))
    rounds = [
        json.loads(line)["round"]
        for line in (output_dir / "metrics.jsonl").read_text().splitlines()
    ]
    assert rounds == list(range(1, NUM_ROUNDS + 1))
    for site in SITES:
        rows = answered(trial, site, run_name(output_dir))
        # one broadcast and one reply a round and site over the whole life: one sum under each Z_t
        assert [row[0] for row in rows] == list(range(NUM_ROUNDS))
        assert len({row[1] for row in rows}) == NUM_ROUNDS
        with closing(Chain(trial / "run" / "sites" / site / "site.ledger")) as chain:
            assert verify(chain).bad_row is None


def test_every_run_ends_and_no_noise_meets_two_sums(
    trial: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def say(line: str) -> None:
        with capsys.disabled():
            print(time.strftime("%H:%M:%S"), line, flush=True)

    observer = Observer(trial)
    killer = Killer(trial, seed=SEED, kills=KILLS, seconds=SECONDS, observe=observer, say=say)
    unbroken = tmp_path / "unbroken"
    done = pilot("run", str(trial), str(unbroken), *STUDY, "seed=11")
    assert done.returncode == 0, done.stdout
    check_ended(trial, unbroken, observer)
    told: list[Told] = []
    while killer.left and time.monotonic() < killer.until:
        output_dir = tmp_path / f"run-{len(told)}"
        seeded = len(told) % UNSEEDED_EVERY != UNSEEDED_EVERY - 1
        say(f"{output_dir.name}: {'seeded' if seeded else 'of entropy'}, {killer.left} kills left")
        words = [*STUDY, *(["seed=11"] if seeded else []), f"runtime.transport={TRANSPORT}"]
        told.append(killer.train(output_dir, *words, most=MOST_IN_A_RUN))
        check_ended(trial, output_dir, observer)
        if seeded:  # the same digests: the same noise met the same sums, in the end and on the way
            assert events(output_dir) == events(unbroken)
            assert final_params(output_dir) == final_params(unbroken)
    logs = [trial / "run" / "sites" / site / "site.log" for site in SITES]
    said = "".join(path.read_text() for path in logs if path.exists())
    assert "answered already" not in said  # no site was asked for a second sum
    logs = [path.read_text(errors="replace") for path in tmp_path.glob("run-*.log")]
    assert logs
    assert "already released" not in "".join(logs)  # and the server made none
    held = sum(one.refused_as_held for one in told)
    say(
        f"{len(told)} runs, {sum(one.attempts for one in told)} commands, {count(told)}, "
        f"{held} refused since another process had the run"
    )
    assert pilot("down", str(trial)).returncode == 0
    assert killer.left_behind() == []
