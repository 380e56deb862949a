"""A SuperNode that shows no node key, one that nobody registered, or another's: refused, logged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from dpfed_kan.pilot.certificates import make_node_key
from dpfed_kan.pilot.directory import PilotDirectory
from dpfed_kan.pilot.trial import write_trial
from dpfed_kan.sites.chain import Chain
from tests.system.pilot_outside import environment, listed, pilot
from tests.system.test_pilot import free_ports

pytestmark = [pytest.mark.trial, pytest.mark.xdist_group("pilot")]
IMPOSED = "hospital-3"
STUDY = ["num_rounds=2", "privacy.target_epsilon=null", "noise.noise_multiplier=4.0"]
# Flower derives the public key that it shows from the private one; this shows another's
BORROWED = """
import importlib, sys
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
cli = importlib.import_module("flwr.supernode.cli.flower_supernode")
public = load_ssh_public_key(open(sys.argv.pop(1), "rb").read())
keys = cli._try_setup_client_authentication
cli._try_setup_client_authentication = lambda args: (keys(args)[0], public)
cli.flower_supernode()
"""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PilotDirectory]:
    """A pilot of three hospitals, of which the third one's SuperNode does not run."""
    directory = tmp_path_factory.mktemp("outsiders")
    write_trial(directory)
    path = directory / "pilot.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"port": free_ports(6)}))
    done = pilot("up", str(directory))
    assert done.returncode == 0, done.stderr
    found = PilotDirectory(directory)
    found.processes.stop([IMPOSED])
    yield found
    pilot("down", str(directory))


def supernode(up: PilotDirectory, *words: str, state: Path, binary: list[str]) -> list[str]:
    """The command of a SuperNode that says it is the third hospital."""
    site = up.pilot.sites[2]
    own = up.node_config(site).replace(str(up.state / "sites" / IMPOSED), str(state))
    return [
        *(binary or ["flower-supernode"]),
        *("--superlink", f"{up.pilot.host}:{up.pilot.port}"),
        *("--root-certificates", str(up.keys / "ca.crt")),
        *("--host", up.pilot.host, "--port", str(up.pilot.node_port(3))),
        *("--node-config", own),
        *words,
    ]


@pytest.mark.parametrize(
    ("kind", "refusal"),
    [
        ("no key", ("/v1/fleet/register-node", "ApiError:2001", " 412")),
        ("unregistered key", ("/v1/fleet/activate-node", "ApiError:2004", " 412")),
        ("wrong key", ("/v1/fleet/activate-node", " 401")),
    ],
)
def test_a_supernode_without_the_key_of_a_site_is_refused_and_logged(
    up: PilotDirectory, tmp_path: Path, kind: str, refusal: tuple[str, ...]
) -> None:
    words, binary = [], []
    if kind != "no key":
        make_node_key(tmp_path / "fresh")
        words = ["--auth-supernode-private-key", str(tmp_path / "fresh")]
    if kind == "wrong key":
        public = up.key(up.pilot.sites[2])
        binary = [sys.executable, "-c", BORROWED, f"{public}.pub"]
    before = up.processes.log("superlink").stat().st_size
    with (tmp_path / "said").open("wb") as said:
        node = subprocess.Popen(
            supernode(up, *words, state=tmp_path / "state", binary=binary),
            env=environment() | up.environment(),
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        code = node.wait(90)
    finally:  # Flower leaves a process of its own behind
        for pid, session, _ in listed():
            if session == node.pid:
                os.kill(pid, signal.SIGKILL)
    assert "SuperNode ID" not in (tmp_path / "said").read_text()  # as one that is let in says
    assert code != 0 or kind == "wrong key"  # of whose 401 Flower's SuperNode makes an interrupt
    with up.processes.log("superlink").open() as file:
        file.seek(before)
        logged = file.read()
    assert all(words in logged for words in refusal), logged
    assert 'activate-node HTTP/1.1" 200' not in logged
    assert not (tmp_path / "state").exists()


def test_no_hospitals_data_moves_without_the_third_one(up: PilotDirectory, tmp_path: Path) -> None:
    words = ["run", str(up.path), str(tmp_path / "out"), *STUDY, "runtime.meeting_timeout=30"]
    begun = time.monotonic()
    done = pilot(*words)
    print(f"{time.monotonic() - begun:.1f} s", done.stdout)
    assert done.returncode == 1
    assert f"have 2, need 3: missing {IMPOSED} ({IMPOSED}: not heard of" in done.stdout
    assert not (tmp_path / "out" / "ledger.jsonl").exists()
    for site in up.pilot.sites:
        path = up.state / "sites" / site.site / "site.ledger"
        assert not path.exists()


def test_with_its_own_key_the_third_one_is_let_in(up: PilotDirectory, tmp_path: Path) -> None:
    done = pilot("up", str(up.path))
    assert done.returncode == 0, done.stderr
    done = pilot("run", str(up.path), str(tmp_path / "out"), *STUDY)
    assert done.returncode == 0, done.stdout
    for site in up.pilot.sites:
        path = up.state / "sites" / site.site / "site.ledger"
        with closing(Chain(path)) as chain:
            assert len(chain.rows("commit")) == 2
