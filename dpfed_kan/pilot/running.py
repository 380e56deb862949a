"""Bring a pilot up, say what runs, start a training over it, bring it down."""

from __future__ import annotations

import contextlib
import secrets
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from dpfed_kan.pilot.certificates import make_certificates, make_node_key, write_secret
from dpfed_kan.pilot.directory import NAME, PilotDirectory
from dpfed_kan.pilot.plan import Pilot, PilotSite

_START_SECONDS = 60.0
_NODE_SECONDS = 150.0
_POLL_SECONDS = 0.2


def up(directory: PilotDirectory) -> None:
    """Make what is missing of certificates and keys, and start what does not run.

    Where nothing runs, the SuperLink starts without a memory of earlier times; where something
    still does, it takes up what it knew.

    Raises:
        ValueError: If a port is taken, a file is missing, or a process does not come up; what was
            started by this call is ended again.
    """
    pilot, processes = directory.pilot, directory.processes
    configs = {site.site: directory.node_config(site) for site in pilot.sites}
    try:
        for path in (directory.state, directory.keys, directory.flwr_home):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        make_certificates(directory.keys, host=pilot.host)
        for site in pilot.sites:
            make_node_key(directory.key(site))
        secret = directory.keys / "superexec"
        if not secret.exists():
            write_secret(secret, secrets.token_hex(32).encode())
        _write_flwr_config(directory)
    except OSError as error:
        raise ValueError(
            f"the pilot's directory {directory.path} cannot be written to: {error.strerror}"
        ) from None
    running = {started.name for started in processes.running()}
    if not running:
        _check_ports(pilot)
        for path in directory.state.glob("superlink.db*"):
            path.unlink()  # of an earlier time: un-noised replies may rest in it
    started: list[str] = []
    try:
        for name, start in (("superlink", _start_superlink), ("superexec", _start_superexec)):
            if name not in running:
                started.append(name)
                start(directory)
        if "superlink" not in running:
            _register(directory)
        missing = [site for site in pilot.sites if site.site not in running]
        started += [site.site for site in missing]
        _start_nodes(directory, missing, configs=configs)
    except BaseException:
        processes.stop(started)
        raise


def _start_superlink(directory: PilotDirectory) -> None:
    pilot, keys, processes = directory.pilot, directory.keys, directory.processes
    command = ["flower-superlink", "--host", pilot.host, "--port", str(pilot.port)]
    command += ["--ssl-ca-certfile", str(keys / "ca.crt")]
    command += ["--ssl-certfile", str(keys / "server.pem")]
    command += ["--ssl-keyfile", str(keys / "server.key")]
    command += ["--superexec-auth-secret-file", str(keys / "superexec")]
    command += ["--enable-supernode-auth", "--isolation", "process"]
    command += ["--database", str(directory.state / "superlink.db")]
    command += ["--disable-runtime-dependency-installation"]
    superlink = processes.start("superlink", command, environment=directory.environment())
    _await_port(directory, "superlink", superlink, port=pilot.port)


def _start_superexec(directory: PilotDirectory) -> None:
    """Start what starts ServerApps, beside the SuperLink, so that either may die alone."""
    pilot, keys = directory.pilot, directory.keys
    command = ["flower-superexec", "--runtime-api-address", f"{pilot.host}:{pilot.port}"]
    command += ["--root-certificates", str(keys / "ca.crt")]
    command += ["--superexec-auth-secret-file", str(keys / "superexec")]
    directory.processes.start("superexec", command, environment=directory.environment())


def _register(directory: PilotDirectory) -> None:
    for site in directory.pilot.sites:
        public = f"{directory.key(site)}.pub"
        done = directory.flwr("supernode", "register", public, NAME, "--name", site.site)
        if done.returncode != 0 and "already" not in done.stdout.lower():
            raise ValueError(f"{site.site} could not be registered: {done.stdout.strip()}")


def _start_nodes(
    directory: PilotDirectory, sites: Sequence[PilotSite], *, configs: Mapping[str, str]
) -> None:
    """Start SuperNodes and wait until each is connected.

    A SuperLink refuses a node that it still believes to be online: such a one is started again.
    """
    seen = {site.site: _size(directory.processes.log(site.site)) for site in sites}
    deadline = time.monotonic() + _NODE_SECONDS
    waiting = list(sites)
    while waiting:
        running = {started.name for started in directory.processes.running()}
        for site in waiting:
            if site.site not in running:
                seen[site.site] = _size(directory.processes.log(site.site))
                _start_node(directory, site, config=configs[site.site])
        time.sleep(1.0)
        running = {started.name for started in directory.processes.running()}
        waiting = [
            site
            for site in waiting
            if site.site not in running
            or not _connected(directory.processes.log(site.site), seen[site.site])
        ]
        if waiting and time.monotonic() > deadline:
            logs = ", ".join(str(directory.processes.log(site.site)) for site in waiting)
            raise ValueError(f"not every site has connected; see {logs}")


def _start_node(directory: PilotDirectory, site: PilotSite, *, config: str) -> None:
    pilot, keys = directory.pilot, directory.keys
    command = ["flower-supernode", "--superlink", f"{pilot.host}:{pilot.port}"]
    command += ["--root-certificates", str(keys / "ca.crt")]
    command += ["--auth-supernode-private-key", str(directory.key(site))]
    command += ["--host", pilot.host, "--port", str(pilot.node_port(pilot.sites.index(site)))]
    command += ["--node-config", config]
    directory.processes.start(site.site, command, environment=directory.environment())


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _connected(log: Path, since: int) -> bool:
    with log.open("rb") as file:
        file.seek(since)
        return b"SuperNode ID" in file.read()


def _write_flwr_config(directory: PilotDirectory) -> None:
    pilot = directory.pilot
    text = (
        f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\n'
        f'address = "{pilot.host}:{pilot.port}"\n'
        f'root-certificates = "{directory.keys / "ca.crt"}"\n'
    )
    (directory.flwr_home / "config.toml").write_text(text, encoding="utf-8")


def _check_ports(pilot: Pilot) -> None:
    ports = [pilot.port, pilot.channel_port]
    ports += [pilot.node_port(place) for place in range(len(pilot.sites))]
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((pilot.host, port))
            except OSError:
                raise ValueError(
                    f"port {port} of {pilot.host} is taken: give another port in pilot.yaml"
                ) from None


def _await_port(
    directory: PilotDirectory, name: str, process: subprocess.Popen[bytes], *, port: int
) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with (
            contextlib.suppress(OSError),
            socket.create_connection((directory.pilot.host, port), timeout=1),
        ):
            return
        time.sleep(_POLL_SECONDS)
    raise ValueError(f"{name} does not come up; see {directory.processes.log(name)}")


def status(directory: PilotDirectory) -> Mapping[str, int | None]:
    """Return the process number of everything that should run; None of what does not."""
    running = {started.name: started.pid for started in directory.processes.running()}
    names = ["superlink", "superexec", *(site.site for site in directory.pilot.sites)]
    return {name: running.get(name) for name in names}
