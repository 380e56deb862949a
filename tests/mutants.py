"""Planted privacy bugs: each is a small edit that some test must catch.

python -m tests.mutants            # all of them
python -m tests.mutants clipping   # those whose name holds a word
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS_FAILED = 1  # pytest's exit code; any other non-zero code is no catch
TIMEOUT = 300


@dataclass(frozen=True, kw_only=True)
class Mutant:
    name: str
    path: str
    old: str
    new: str
    tests: str


MUTANTS = (
    Mutant(
        name="no clipping",
        path="dpfed_kan/privacy/clipping.py",
        old="np.minimum(1.0, l2_clip_norm / norms)",
        new="np.minimum(1.0, np.inf / norms)",
        tests="tests/privacy/test_clipping.py",
    ),
    Mutant(
        name="NaN passes",
        path="dpfed_kan/privacy/clipping.py",
        old="np.where(finite, factors, 0.0)",
        new="np.where(finite, factors, 1.0)",
        tests="tests/privacy/test_clipping.py",
    ),
    Mutant(
        name="noise std without sensitivity",
        path="dpfed_kan/privacy/mechanism.py",
        old="value + total.l2_sensitivity * noise",
        new="value + noise",
        tests="tests/privacy/test_mechanism.py",
    ),
    Mutant(
        name="noise std without sensitivity, seen from the ledger",
        path="dpfed_kan/privacy/mechanism.py",
        old="value + total.l2_sensitivity * noise",
        new="value + noise",
        tests="tests/system/test_ledger_tells_the_truth.py",
    ),
    Mutant(
        name="noise reused across rounds",
        path="dpfed_kan/privacy/noising.py",
        old='rng = streams.generator("noise", round_index=round_index)',
        new='rng = streams.generator("noise", round_index=0)',
        tests="tests/privacy/test_noising.py",
    ),
    Mutant(
        name="divided by the batch that came",
        path="dpfed_kan/federated/site.py",
        old="value=total.value)",
        new="value=total.value / max(1, len(blocks[0].left)))",
        tests="tests/system/test_ledger_tells_the_truth.py",
    ),
    Mutant(
        name="fixed-size instead of Poisson",
        path="dpfed_kan/privacy/sampling.py",
        old="np.flatnonzero(rng.random(num_records) < self.sampling_prob)",
        new="rng.permutation(num_records)[: round(self.sampling_prob * num_records)]",
        tests="tests/system/test_ledger_tells_the_truth.py",
    ),
    Mutant(
        name="recorded rate halved",
        path="dpfed_kan/privacy/ledger.py",
        old='return "infinity" if value == float("inf") else value',
        new="return value / 2 if value == 0.2 else value",
        tests="tests/system/test_ledger_tells_the_truth.py",
    ),
    Mutant(
        name="release not recorded",
        path="dpfed_kan/federated/server.py",
        old="        ledger.record(release.event)\n",
        new="",
        tests="tests/federated/test_server.py",
    ),
    Mutant(
        name="unclipped block",
        path="dpfed_kan/privacy/clipping.py",
        old="    for block in blocks:\n        left =",
        new="    for block in blocks[:1]:\n        left =",
        tests="tests/privacy/test_clipping.py",
    ),
    Mutant(
        name="lambda forgotten in the noise",
        path="dpfed_kan/privacy/noising.py",
        old="current - correlation * previous",
        new="current",
        tests="tests/system/test_ledger_tells_the_truth.py",
    ),
    Mutant(
        name="previous noise not regenerated but drawn anew",
        path="dpfed_kan/privacy/noising.py",
        old="streams, round_index=round_index - 1, dimension=dimension)",
        new="streams, round_index=round_index + 10**6, dimension=dimension)",
        tests="tests/federated/test_algorithm1.py",
    ),
    Mutant(
        name="round beyond the horizon",
        path="dpfed_kan/privacy/mechanism.py",
        old="if not 0 <= round_index < self.num_rounds:",
        new="if round_index < 0:",
        tests="tests/privacy/test_mechanism.py",
    ),
    Mutant(
        name="second sum under the same noise",
        path="dpfed_kan/privacy/ledger.py",
        old="if event != self.events[event.round_index]:",
        new="if False:",
        tests="tests/system/test_resume.py -k other_data",
    ),
    Mutant(
        name="streams shared by the sites",
        path="dpfed_kan/streams.py",
        old='_digest(self.key, "site", site, size=_KEY_BYTES)',
        new='_digest(self.key, "site", "one", size=_KEY_BYTES)',
        tests="tests/test_streams.py",
    ),
    Mutant(
        name="calibration overshoots",
        path="dpfed_kan/privacy/calibration.py",
        old="    while excess(log_multiplier) > 0:",
        new="    log_multiplier -= 1e-4\n    while False:",
        tests="tests/privacy/accounting",
    ),
    Mutant(
        name="estimate instead of upper bound",
        path="dpfed_kan/privacy/accounting/poisson.py",
        old="        sampling_prob=sampling_prob,\n        value_disc",
        new="        sampling_prob=sampling_prob, pessimistic_estimate=False,\n        value_disc",
        tests="tests/privacy/accounting",
    ),
    Mutant(
        name="accounted rate halved",
        path="dpfed_kan/privacy/accounting/poisson.py",
        old="        sampling_prob=sampling_prob,\n        value_disc",
        new="        sampling_prob=sampling_prob / 2,\n        value_disc",
        tests="tests/privacy/accounting",
    ),
)


def is_caught(mutant: Mutant) -> tuple[bool, str]:
    """Plant the bug in a copy of the project and return whether its tests fail, and their end."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "project"
        for name in ("dpfed_kan", "tests", "conf", "simulations"):
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        if (ROOT.parent / "shared").is_dir():
            (Path(scratch) / "shared").symlink_to((ROOT.parent / "shared").resolve())
        target = copy / mutant.path
        source = target.read_text(encoding="utf-8")
        if source.count(mutant.old) != 1:
            return False, f"{mutant.path} holds the old text {source.count(mutant.old)} times"
        target.write_text(source.replace(mutant.old, mutant.new), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *mutant.tests.split()],
            cwd=copy,
            env=os.environ | {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        return done.returncode == TESTS_FAILED, done.stdout[-600:] + done.stderr[-300:]


def main(words: list[str]) -> int:
    chosen = [m for m in MUTANTS if all(word.lower() in m.name.lower() for word in words)]
    with ThreadPoolExecutor(max_workers=2) as pool:
        results = list(pool.map(is_caught, chosen))
    for mutant, (caught, output) in zip(chosen, results, strict=True):
        print(f"{'caught ' if caught else 'MISSED '} {mutant.name}")
        if not caught:
            print(output)
    num_caught = sum(caught for caught, _ in results)
    print(f"{num_caught} of {len(chosen)} planted bugs caught")
    return 0 if num_caught == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
