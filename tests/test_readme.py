"""What the README tells a stranger to type, typed."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
QUICK = ["num_rounds=2", "privacy.target_epsilon=null", "noise.noise_multiplier=5"]
LINES = [
    line.split("  #")[0].rstrip()
    for block in re.findall(r"```sh\n(.*?)```", README, flags=re.S)
    for line in block.splitlines()
    if line.startswith((".venv/bin/python -m simulations.run", ".venv/bin/dpfed-kan"))
]
ANSWERS = [line for line in LINES if re.search(r" (account|calibrate) |--help$", line)]
RUNS = [
    line for line in LINES if "simulations.run" in line and not re.search(r"--help|DIR|DATE", line)
]


def typed(line: str, *more: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable if w == ".venv/bin/python" else w for w in shlex.split(line)]
    if words[0] == ".venv/bin/dpfed-kan":
        words[:1] = [sys.executable, "-m", "dpfed_kan.cli"]
    return subprocess.run(
        [*words, *more],
        cwd=cwd,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_the_readme_has_the_commands_that_are_typed_here() -> None:
    assert len(ANSWERS) >= 3
    assert len(RUNS) >= 4


@pytest.mark.parametrize("line", ANSWERS)
def test_an_answer_is_given(line: str, tmp_path: Path) -> None:
    done = typed(line, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "epsilon" in done.stdout or "ε" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("line", RUNS)
def test_a_run_ends_with_a_report(line: str, tmp_path: Path) -> None:
    quick = ["num_rounds=2"] if "target_epsilon" in line or "none" in line else QUICK
    done = typed(line, *quick, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.rglob("report.json"))
