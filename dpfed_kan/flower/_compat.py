"""Every name of flwr 1.42 and ray that is not public API, in one place."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any

from flwr.app import Message, Metadata, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

logging.getLogger("flwr").propagate = False  # its own handler prints; Hydra's would print again

SERVER_NODE_ID = 1
_QUIET = {"flwr": logging.CRITICAL, "ray": logging.ERROR, "alembic": logging.WARNING}
_PATIENCE_SECONDS = 10.0


def identify_process(run_id: int) -> None:
    """Say who this process is, without which `Message(...)` raises."""
    TaskIdentity.task_id = 1
    TaskIdentity.run_id = run_id
    TaskIdentity.node_id = SERVER_NODE_ID


def empty_run(run_id: int) -> Run:
    """Return a Run that no SuperLink knows."""
    return Run.create_empty(run_id=run_id)


def assign_message_id(message: Message, message_id: str) -> None:
    """Give a message the id that a SuperLink would have given it."""
    message.metadata.__dict__["_message_id"] = message_id


def like(empty: RecordDict, made: RecordDict) -> None:
    """Make a bare object an empty record; Flower's constructor takes several µs."""
    made.__dict__.update(empty.__dict__, _data={})


def addressed_to(message: Message, node_id: int) -> Message:
    """Return a message that was not sent, for another node."""
    return _altered(message, message.content, _dst_node_id=node_id)


def local_answer(message: Message, content: RecordDict) -> Message:
    """Return what answers a message at once in the same process."""
    asked = message.metadata.__dict__
    return _altered(
        message,
        content,
        _message_id="",
        _reply_to_message_id=asked["_message_id"],
        _src_node_id=asked["_dst_node_id"],
        _dst_node_id=asked["_src_node_id"],
        _src_task_id=asked["_dst_task_id"],
        _dst_task_id=asked["_src_task_id"],
    )


def _altered(message: Message, content: RecordDict, **metadata: int | str | None) -> Message:
    """Return a message that differs in this only; Flower's constructor takes 5 to 9 µs."""
    altered = object.__new__(Message)
    other = object.__new__(Metadata)
    other.__dict__.update(message.metadata.__dict__, **metadata)
    altered.__dict__.update(_metadata=other, _content=content, _error=None)
    return altered


def ray_is_installed() -> bool:
    """Whether Flower's simulation engine can run."""
    return importlib.util.find_spec("ray") is not None


def simulate(
    server_app: ServerApp, client_app: ClientApp, *, num_sites: int, num_workers: int
) -> None:
    """Run both apps in Flower's simulation engine, quietly.

    The engine logs the text of exceptions, which can hold a record; ours are told by type and
    place, so that its own log is turned off.
    """
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # ray's own advice
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with _quiet():
        from flwr.simulation import run_simulation

        run_simulation(
            server_app,
            client_app,
            num_supernodes=num_sites,
            backend_config={
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                "init_args": {
                    "num_cpus": num_workers,
                    "include_dashboard": False,
                    "log_to_driver": False,
                    "logging_level": "ERROR",
                },
            },
        )


def child_processes() -> Sequence[Any]:
    """Return handles of the processes that ray started from this one."""
    import ray  # noqa: F401  (brings psutil along)
    from psutil import Process  # type: ignore[import-untyped]

    return list(Process().children(recursive=True))


def await_end(processes: Sequence[Any]) -> None:
    """Wait until processes have ended, and end those that do not."""
    from psutil import NoSuchProcess, wait_procs

    _, alive = wait_procs(processes, timeout=_PATIENCE_SECONDS)
    for process in alive:
        with contextlib.suppress(NoSuchProcess):
            process.kill()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    before = {name: logging.getLogger(name).level for name in _QUIET}
    for name, level in _QUIET.items():
        logging.getLogger(name).setLevel(level)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


__all__ = [
    "SERVER_NODE_ID",
    "Run",
    "addressed_to",
    "assign_message_id",
    "await_end",
    "child_processes",
    "empty_run",
    "identify_process",
    "like",
    "local_answer",
    "ray_is_installed",
    "simulate",
]
