"""`dpfed-kan pilot`: real processes, certificates and keys on one machine, one page in docs/."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

_INTERRUPTED = 130
_EXAMPLES = """examples:
  dpfed-kan pilot new trial            three invented hospitals, a schema, pilot.yaml
  dpfed-kan pilot up trial             certificates, keys, a SuperLink, a SuperNode a site
  dpfed-kan pilot run trial out num_rounds=100
  dpfed-kan pilot status trial
  dpfed-kan pilot down trial
"""


def add_pilot(verbs: Any) -> None:
    """Add the verb to the command's parser."""
    verb = verbs.add_parser(
        "pilot",
        help="a federation of real processes on this machine",
        description="A federation of real processes on this machine (docs/pilot.md).",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    steps = verb.add_subparsers(required=True, metavar="{new,up,run,status,down}")
    for name, answer, told in (
        ("new", _new, "write a pilot to try, with invented records"),
        ("up", _up, "start what does not run"),
        ("run", _run, "train over a pilot that is up; continues a run that was broken off"),
        ("status", _status, "say what runs"),
        ("down", _down, "end all processes of a pilot"),
    ):
        step = steps.add_parser(name, help=told, description=told.capitalize() + ".")
        step.add_argument("directory", type=Path, help="of the pilot; holds pilot.yaml")
        step.set_defaults(answer=answer)
        if name == "run":
            step.add_argument("output_dir", type=Path, help="of the run")
            step.add_argument(
                "overrides", nargs="*", help="as of `python -m simulations.run`, such as seed=0"
            )


def _new(options: argparse.Namespace) -> None:
    from dpfed_kan.pilot.trial import write_trial

    write_trial(options.directory)
    print(f"{options.directory / 'pilot.yaml'} is written; the records are invented")


def _up(options: argparse.Namespace) -> None:
    from dpfed_kan.pilot.directory import PilotDirectory
    from dpfed_kan.pilot.running import up

    directory = PilotDirectory(options.directory)
    print("starting; this takes about a quarter of a minute", flush=True)
    try:
        up(directory)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    _show(directory)


def _run(options: argparse.Namespace) -> None:
    from dpfed_kan.pilot.directory import PilotDirectory
    from dpfed_kan.pilot.training import run

    directory = PilotDirectory(options.directory)
    sys.exit(run(directory, output_dir=options.output_dir, overrides=options.overrides))


def _status(options: argparse.Namespace) -> None:
    from dpfed_kan.pilot.directory import PilotDirectory

    if not _show(PilotDirectory(options.directory)):
        sys.exit(1)


def _down(options: argparse.Namespace) -> None:
    from dpfed_kan.pilot.directory import PilotDirectory

    ended = PilotDirectory(options.directory).processes.stop()
    print(f"ended: {', '.join(ended) or 'nothing was running'}")


def _show(directory: Any) -> bool:
    """Print what runs; return whether all of it does."""
    from dpfed_kan.pilot.running import status

    found = status(directory)
    table = Table()
    for name in ("process", "number", "log"):
        table.add_column(name)
    for name, pid in found.items():
        log = directory.processes.log(name).relative_to(directory.path)
        table.add_row(name, "not running" if pid is None else str(pid), str(log))
    Console().print(table)
    return None not in found.values()
