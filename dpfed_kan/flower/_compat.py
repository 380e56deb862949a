"""Every name of flwr 1.42 that is not public API, in one place."""

from __future__ import annotations

import importlib.util
import logging
from typing import Any

from flwr.app import Message
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

logging.getLogger("flwr").propagate = False  # its own handler prints; Hydra's would print again

SERVER_NODE_ID = 1


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


def ray_is_installed() -> bool:
    """Whether Flower's simulation engine can run."""
    return importlib.util.find_spec("ray") is not None


def simulate(
    server_app: ServerApp, client_app: ClientApp, *, num_sites: int, backend_config: dict[str, Any]
) -> None:
    """Run both apps in Flower's simulation engine, quietly."""
    from flwr.simulation import run_simulation

    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        run_simulation(
            server_app, client_app, num_supernodes=num_sites, backend_config=backend_config
        )
    finally:
        logger.setLevel(level)
