"""docs/pilot.md, typed as it stands."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dpfed_kan.pilot.directory import PilotDirectory
from dpfed_kan.pilot.plan import Pilot, load_pilot
from tests.conftest import ROOT
from tests.system.test_pilot import free_ports

PAGE = (ROOT / "docs" / "pilot.md").read_text(encoding="utf-8")
PASTED = [
    shlex.split(line, comments=True)
    for block in re.findall(r"<!-- paste -->\n```sh\n(.*?)```", PAGE, flags=re.S)
    for line in block.splitlines()
]


def test_the_page_has_what_is_typed_here() -> None:
    assert [words[2] for words in PASTED] == ["new", "up", "status", "run", "verify", "down"]


def test_the_settings_that_the_page_shows_are_settings(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.S)
    (tmp_path / "pilot.yaml").write_text(block)
    pilot = load_pilot(tmp_path)
    assert isinstance(pilot, Pilot)
    assert [site.site for site in pilot.sites] == ["north", "south"]
    assert not any(site.allow_seed or site.share_metrics for site in pilot.sites)


def test_the_options_that_the_page_gives_flower_are_those_that_the_pilot_gives() -> None:
    source = (ROOT / "dpfed_kan" / "pilot" / "running.py").read_text()
    (block,) = re.findall(r"## On machines of their own.*?```sh\n(.*?)```", PAGE, flags=re.S)
    for option in set(re.findall(r"--[a-z-]+", block)) - {"--stream", "--run-config"}:
        assert option in source, option


@pytest.mark.slow
def test_the_page_followed_literally_ends_with_a_model_and_a_report(tmp_path: Path) -> None:
    port = free_ports(5)
    try:
        for words in PASTED:
            typed = [sys.executable, "-m", "dpfed_kan.cli", *words[1:]]
            done = subprocess.run(
                typed,
                cwd=tmp_path,
                env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "COLUMNS": "120"},
                capture_output=True,
                text=True,
                timeout=400,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            if words[2] == "new":  # another port, so that this test can run beside a pilot
                path = tmp_path / "trial" / "pilot.yaml"
                settings = yaml.safe_load(path.read_text()) | {"port": port}
                path.write_text(yaml.safe_dump(settings))
    finally:
        if (tmp_path / "trial").exists():
            PilotDirectory(tmp_path / "trial").processes.stop()
    report = json.loads((tmp_path / "trial" / "first" / "report.json").read_text())
    assert report["guarantee"]["private"]
    assert report["guarantee"]["noise_source"] == "operating system entropy"
    assert report["run"]["finished"]
    assert report["deployment"]["seconds_per_round"] < 1.0
    assert (tmp_path / "trial" / "first" / "checkpoint.npz").exists()
    told = report["diagnostics_not_private"]["per_site"]
    assert set(told) == {"hospital-1", "hospital-2", "hospital-3"}
    print(report["deployment"], {site: metrics["auc"] for site, metrics in told.items()})
