"""The parts of a pilot: certificates, node keys, pilot.yaml, processes that are found again."""

from __future__ import annotations

import re
import stat
import subprocess
import sys
import time

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from dpfed_kan.cli import main
from dpfed_kan.data.encoding import read_records
from dpfed_kan.pilot.certificates import make_certificates, make_node_key
from dpfed_kan.pilot.directory import PilotDirectory
from dpfed_kan.pilot.plan import load_pilot
from dpfed_kan.pilot.processes import Processes
from dpfed_kan.pilot.running import status
from dpfed_kan.pilot.training import run
from dpfed_kan.pilot.trial import write_trial
from dpfed_kan.schema_file import load_schema


def test_the_server_certificate_is_of_the_authority_and_names_the_address(tmp_path):
    make_certificates(tmp_path, host="127.0.0.1")
    authority = x509.load_pem_x509_certificate((tmp_path / "ca.crt").read_bytes())
    server = x509.load_pem_x509_certificate((tmp_path / "server.pem").read_bytes())
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name) for name in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    assert stat.S_IMODE((tmp_path / "server.key").stat().st_mode) == 0o600
    assert {path.name for path in tmp_path.iterdir()} == {"ca.crt", "server.pem", "server.key"}
    before = (tmp_path / "server.pem").read_bytes()
    make_certificates(tmp_path, host="127.0.0.1")
    assert (tmp_path / "server.pem").read_bytes() == before


def test_a_node_key_is_ecdsa_p384_for_its_owner_only(tmp_path):
    make_node_key(tmp_path / "north")
    private = serialization.load_ssh_private_key((tmp_path / "north").read_bytes(), None)
    public = serialization.load_ssh_public_key((tmp_path / "north.pub").read_bytes())
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert private.curve.name == "secp384r1"
    assert private.public_key() == public
    assert stat.S_IMODE((tmp_path / "north").stat().st_mode) == 0o600


def test_the_trial_is_accepted_by_its_own_schema_and_never_overwritten(tmp_path):
    write_trial(tmp_path / "trial")
    schema = load_schema(tmp_path / "trial" / "schema.yaml")
    pilot = load_pilot(tmp_path / "trial")
    for site in pilot.sites:
        records = read_records(tmp_path / "trial" / site.data, schema)
        assert len(records) >= 150
        assert 0.2 < (records.labels > 0).mean() < 0.8
    with pytest.raises(ValueError, match="is there already"):
        write_trial(tmp_path / "trial")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"sites": []}, "expected at least one site"),
        ({"prot": 1}, "did you mean port"),
        ({"port": 80}, "port=80"),
        ({"sites": [{"site": "a b", "data": "x", "schema": "y"}]}, "expected site='a b'"),
        ({"sites": [{"site": "a", "schema": "y"}]}, "data: a value is required"),
    ],
)
def test_a_wrong_pilot_file_is_told(tmp_path, change, told):
    write_trial(tmp_path / "trial")
    path = tmp_path / "trial" / "pilot.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | change))
    with pytest.raises(ValueError, match=re.escape(told)):
        load_pilot(tmp_path / "trial")


def test_a_missing_file_of_a_site_is_named(tmp_path):
    write_trial(tmp_path / "trial")
    (tmp_path / "trial" / "hospital-2.csv").unlink()
    directory = PilotDirectory(tmp_path / "trial")
    with pytest.raises(ValueError, match=r"hospital-2: data .*hospital-2\.csv is not there"):
        directory.node_config(directory.pilot.sites[1])


def test_a_pilot_that_is_not_up_says_so(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["pilot", "up", str(tmp_path / "nowhere")])
    assert "dpfed-kan pilot new" in str(ended.value)
    main(["pilot", "new", str(tmp_path / "trial")])
    directory = PilotDirectory(tmp_path / "trial")
    assert set(status(directory).values()) == {None}
    with pytest.raises(SystemExit) as ended:
        main(["pilot", "status", str(tmp_path / "trial")])
    assert ended.value.code == 1
    assert "not running" in capsys.readouterr().out
    with pytest.raises(ValueError, match="is not up"):
        run(directory, output_dir=tmp_path / "out", overrides=[])
    main(["pilot", "down", str(tmp_path / "trial")])
    assert "nothing was running" in capsys.readouterr().out


STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", sys.argv[1]])
print("ready", flush=True)
time.sleep(600)
"""


def test_processes_are_found_again_and_ended_with_their_children_within_20_s(tmp_path):
    mark = str(tmp_path / "mark")

    def again():
        return Processes(tmp_path / "processes.json", log_dir=tmp_path / "log", mark=mark)

    words = [sys.executable, "-c", STUBBORN, mark]
    process = again().start("stubborn", words, environment={})
    deadline = time.monotonic() + 20
    while "ready" not in again().log("stubborn").read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [started.name for started in again().running()] == ["stubborn"]
    begun = time.monotonic()
    assert again().stop() == ["stubborn"]
    assert time.monotonic() - begun < 20
    process.wait(5)
    listed = subprocess.run(["ps", "-A", "-ww", "-o", "args="], capture_output=True, text=True)
    assert mark not in listed.stdout
    assert again().running() == []


def test_a_number_that_the_system_gave_to_another_process_is_left_alone(tmp_path):
    processes = Processes(tmp_path / "p.json", log_dir=tmp_path, mark=str(tmp_path / "mark"))
    words = [sys.executable, "-c", "import time; time.sleep(60)"]
    stranger = processes.start("stranger", words, environment={})
    try:
        assert processes.running() == []
        assert processes.stop() == []
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_what_cannot_be_started_is_named(tmp_path):
    processes = Processes(tmp_path / "p.json", log_dir=tmp_path / "log", mark="m")
    with pytest.raises(ValueError, match="no-such-command cannot be started"):
        processes.start("x", ["no-such-command"], environment={"PATH": "/nowhere"})
