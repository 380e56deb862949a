"""Bring a pilot up, say what runs, start a training over it, bring it down."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from dpfed_kan.pilot.certificates import make_certificates, make_node_key, write_secret
from dpfed_kan.pilot.plan import Pilot, PilotSite, load_pilot
from dpfed_kan.pilot.processes import Processes

NAME = "pilot"
_APP = Path(__file__).resolve().parents[2]
_START_SECONDS = 60.0
_NODE_SECONDS = 150.0
_POLL_SECONDS = 0.2
_INTERRUPTED = 130
_RUN_ID = re.compile(r"\b(\d{12,20})\b")


class PilotDirectory:
    """The files of a pilot below its directory, all of them in `run/` but the user's own.

    Args:
        path: Holds `pilot.yaml`.

    Raises:
        ValueError: If there is no such file, or it is wrong.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.pilot: Pilot = load_pilot(path)
        self.state = self.path / "run"
        self.keys = self.state / "keys"
        self.flwr_home = self.state / "flwr"
        self.processes = Processes(
            self.state / "processes.json", log_dir=self.state / "log", mark=str(self.state)
        )

    def key(self, site: PilotSite) -> Path:
        """Return a node's private key."""
        return self.keys / site.site

    def environment(self) -> dict[str, str]:
        """Return what every process of the pilot is started with."""
        return {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "FLWR_HOME": str(self.flwr_home),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "PYTHONUNBUFFERED": "1",
        }

    def node_config(self, site: PilotSite) -> str:
        """Return what a SuperNode is told of its site.

        Raises:
            ValueError: If a file is missing.
        """
        state = self.state / "sites" / site.site
        config: dict[str, str | bool] = {"site": site.site, "state": str(state)}
        config["channel-ca"] = str(self.keys / "ca.crt")
        for name in ("data", "schema", "policy"):
            value = getattr(site, name)
            if value is None:
                continue
            path = (self.path / value).absolute()
            if not path.is_file():
                raise ValueError(f"{site.site}: {name} {path} is not there")
            config[name] = str(path)
        config |= {"allow-seed": site.allow_seed, "share-metrics": site.share_metrics}
        words = []
        for name, value in config.items():
            if isinstance(value, str) and ('"' in value or "\\" in value):
                raise ValueError(f"{site.site}: {name} may hold neither quotes nor backslashes")
            shown = str(value).lower() if isinstance(value, bool) else f'"{value}"'
            words.append(f"{name}={shown}")
        return " ".join(words)


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


def run(directory: PilotDirectory, *, output_dir: Path, overrides: Sequence[str]) -> int:
    """Start a training with `flwr run` and follow it to its end.

    Args:
        directory: Of a pilot that is up.
        output_dir: Of the run.
        overrides: As on the command line of `simulations.run`; sites, schema and the channel's
            address and certificate come from the pilot.

    Returns:
        The exit code: 0 if the run ended with a report, 130 if it was interrupted, else 1.

    Raises:
        ValueError: If the pilot is not up.
    """
    if not any(started.name == "superlink" for started in directory.processes.running()):
        raise ValueError(f"this pilot is not up: `dpfed-kan pilot up {directory.path}`")
    resume = (output_dir / "config.yaml").exists()
    if (output_dir / "report.json").exists():
        raise ValueError(f"{output_dir} holds a run that has ended; give another directory")
    words = [*_own_overrides(directory), *overrides]
    config = directory.state / "run.toml"
    config.write_text(
        f"output-dir = {json.dumps(str(output_dir.absolute()))}\n"
        f"overrides = {json.dumps(' '.join(shlex.quote(word) for word in words))}\n"
        f"resume = {str(resume).lower()}\n",
        encoding="utf-8",
    )
    command = ["flwr", "run", str(_APP), NAME, "--stream", "--run-config", str(config)]
    with subprocess.Popen(
        command,
        env=directory.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as flwr:
        run_id = None
        try:
            for line in flwr.stdout or ():
                print(line, end="", flush=True)
                found = _RUN_ID.search(line)
                run_id = run_id or (found[1] if found else None)
            flwr.wait()
        except KeyboardInterrupt:
            flwr.send_signal(signal.SIGTERM)
            if run_id is not None:
                _flwr(directory, "stop", run_id, NAME)
            print(
                "interrupted; rounds that were released stay in the ledger. The same command "
                "continues the run"
            )
            return _INTERRUPTED
    return 0 if (output_dir / "report.json").exists() else 1


def _own_overrides(directory: PilotDirectory) -> Iterator[str]:
    pilot, keys = directory.pilot, directory.keys
    yield "data=deployed"
    yield "runtime=deployed"
    yield f"data.source.sites=[{','.join(site.site for site in pilot.sites)}]"
    yield f"data.source.schema='{directory.path / pilot.sites[0].schema}'"
    yield f"runtime.channel_address='{pilot.host}:{pilot.channel_port}'"
    yield f"runtime.channel_certificate='{keys / 'server.pem'}'"
    yield f"runtime.channel_key='{keys / 'server.key'}'"


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
        done = _flwr(directory, "supernode", "register", public, NAME, "--name", site.site)
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


def _flwr(directory: PilotDirectory, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["flwr", *words],
        env=directory.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_START_SECONDS,
        check=False,
    )


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
