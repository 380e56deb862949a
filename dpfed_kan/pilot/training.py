"""Start a training over a pilot that is up, with `flwr run`, and follow it to its end."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from dpfed_kan.pilot.directory import NAME, PilotDirectory

_APP = Path(__file__).resolve().parents[2]
_INTERRUPTED = 130
_RUN_ID = re.compile(r"\b(\d{12,20})\b")


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
                directory.flwr("stop", run_id, NAME)
            print(
                "interrupted; rounds that were released stay in the ledger. The same command "
                "continues the run"
            )
            return _INTERRUPTED
    return 0 if (output_dir / "report.json").exists() else 1


def _own_overrides(directory: PilotDirectory) -> Iterator[str]:
    pilot, keys = directory.pilot, directory.keys
    yield "data=at_sites"
    yield "runtime=deployed"
    yield f"data.source.sites=[{','.join(site.site for site in pilot.sites)}]"
    yield f"data.source.schema='{directory.path / pilot.sites[0].schema}'"
    yield f"runtime.channel_address='{pilot.host}:{pilot.channel_port}'"
    yield f"runtime.channel_certificate='{keys / 'server.pem'}'"
    yield f"runtime.channel_key='{keys / 'server.key'}'"
