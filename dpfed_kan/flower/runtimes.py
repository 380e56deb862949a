"""Where simulated sites run: in this process, or in Flower's simulation engine on ray."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from dpfed_kan._validate import check_count, check_positive
from dpfed_kan.flower._compat import ray_is_installed, simulate
from dpfed_kan.flower.grid import InProcessGrid


@dataclass(frozen=True, kw_only=True)
class InProcess:
    """All sites in this process, message by message: the default.

    Args:
        num_threads: Of the matrix products; one, unless measured otherwise.
        timeout: Seconds to wait for the replies of a round.
    """

    num_threads: int = 1
    timeout: float = 3600.0

    def __post_init__(self) -> None:
        check_count("num_threads", self.num_threads)
        check_positive("timeout", self.timeout)

    def run(self, app: ClientApp, *, num_sites: int, main: Callable[[Grid], None]) -> None:
        """Call `main` with a grid of `num_sites` sites."""
        main(InProcessGrid(app, num_sites))


@dataclass(frozen=True, kw_only=True)
class Ray:
    """Flower's simulation engine: worker processes, for large models (extra `ray`).

    Args:
        num_workers: Worker processes, one thread each.
        num_threads: Of the server's own matrix products.
        timeout: Seconds to wait for the replies of a round.
    """

    num_workers: int = 2
    num_threads: int = 1
    timeout: float = 3600.0

    def __post_init__(self) -> None:
        check_count("num_workers", self.num_workers)
        check_count("num_threads", self.num_threads)
        check_positive("timeout", self.timeout)

    def run(self, app: ClientApp, *, num_sites: int, main: Callable[[Grid], None]) -> None:
        """Call `main` in a ServerApp with the engine's grid.

        Raises:
            RuntimeError: If ray is not installed.
        """
        if not ray_is_installed():
            raise RuntimeError("runtime=ray needs the extra: pip install 'dpfed-kan[ray]'")
        failures: list[BaseException] = []
        server_app = ServerApp()

        @server_app.main()
        def _(grid: Grid, context: Context) -> None:
            try:
                main(grid)
            except BaseException as error:
                failures.append(error)

        simulate(
            server_app,
            app,
            num_sites=num_sites,
            backend_config={
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                "init_args": {"num_cpus": self.num_workers, "include_dashboard": False},
            },
        )
        if failures:
            raise failures[0]


Runtime = InProcess | Ray

__all__ = ["Grid", "InProcess", "Ray", "Runtime"]
