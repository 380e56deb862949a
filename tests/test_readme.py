"""What the README tells a stranger to type, typed; what no test types is marked with its time."""

import argparse
import importlib
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


PAGES = [
    ROOT / "README.md",
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("simulations/*/*.md")),
]
TIME = re.compile(r"\b(second|minute|hour)s?\b")
PROGRAMS = ("python", "dpfed-kan", "flwr", "flower-", "FLWR_", "KILLS=", "sh ", "bash ")


def commands(text: str) -> list[tuple[str, bool]]:
    """Every command that a page shows, without its comment, and whether its time stands with it.

    The time stands on its line, or on a comment line of its block before it. Blocks are those of
    sh, and indented lines.
    """
    blocks = re.findall(r"^```sh\n(.*?)^```", text, flags=re.S | re.M)
    indented = "\n".join(
        line for line in text.splitlines() if line.startswith("    ") and _command(line)
    )
    found = []
    for block in [*blocks, indented]:
        noted = False
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            if line.startswith("#"):
                noted = TIME.search(line) is not None
            elif _command(line):
                words, _, note = re.sub(r"  +\((.*)\)$", r"  # \1", line).partition("  #")
                found.append((words.strip(), noted or TIME.search(note) is not None))
    return found


def _command(line: str) -> bool:
    return line.strip().removeprefix(".venv/bin/").startswith(PROGRAMS)


def typed_by_a_test(page: Path, words: str) -> bool:
    """The README's lines above; its two commands, by .ci/run; what is pasted, by its own test."""
    text = page.read_text(encoding="utf-8")
    pasted = re.findall(r"<!-- (?:paste|command \d) -->\n```sh\n(.*?)```", text, flags=re.S)
    return any(words in block for block in pasted) or (
        page.name == "README.md" and page.parent == ROOT and words in ANSWERS + RUNS
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_command_that_no_test_types_is_marked_with_its_time(page: Path) -> None:
    shown = commands(page.read_text(encoding="utf-8"))
    assert shown
    unmarked = [words for words, timed in shown if not (timed or typed_by_a_test(page, words))]
    assert unmarked == []


def test_a_command_without_its_time_is_found() -> None:
    page = "```sh\n.venv/bin/dpfed-kan x\nflwr run \\\n  a  # a minute\n```\n\n"
    page += "    python -m y  (2 hours)\n    python -m z --out a.json\n"
    assert commands(page) == [
        (".venv/bin/dpfed-kan x", False),
        ("flwr run a", True),
        ("python -m y", True),
        ("python -m z --out a.json", False),
    ]


SCRIPTS = sorted(
    {
        words
        for page in PAGES
        for words, _ in commands(page.read_text(encoding="utf-8"))
        if words.startswith("python -m simulations.") and "simulations.run" not in words
    }
)


class Parsed(Exception):
    """A script has understood its arguments."""


@pytest.mark.parametrize("words", SCRIPTS)
def test_a_script_takes_the_arguments_that_its_page_gives(
    words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse = argparse.ArgumentParser.parse_args

    def parse_only(parser: argparse.ArgumentParser, *given: object) -> None:
        parse(parser)
        raise Parsed

    _, _, name, *arguments = shlex.split(words)
    if name == "simulations.benchmark":
        name += ".__main__"
    script = importlib.import_module(name)
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_only)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    with pytest.raises(Parsed):
        script.main()
