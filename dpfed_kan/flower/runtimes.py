"""Where simulated sites run: in this process, or in Flower's simulation engine on ray."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from flwr.serverapp import Grid
from threadpoolctl import threadpool_limits

from dpfed_kan._validate import check_count, check_positive
from dpfed_kan.flower._compat import await_end, child_processes, ray_is_installed, simulate
from dpfed_kan.flower.client_app import SiteBuilder, client_app, type_and_place
from dpfed_kan.flower.grid import InProcessGrid, StoppableGrid
from dpfed_kan.flower.server_app import RunConfig, server_app

_WORKER_THREADS = 1


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

    def run(self, build_site: SiteBuilder, *, num_sites: int, main: Callable[[Grid], None]) -> None:
        """Call `main` with a grid of `num_sites` sites."""
        with threadpool_limits(self.num_threads):
            main(InProcessGrid(client_app(build_site), num_sites))


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

    def run(self, build_site: SiteBuilder, *, num_sites: int, main: Callable[[Grid], None]) -> None:
        """Call `main` in a ServerApp with the engine's grid; no process is left behind.

        An interrupt (Ctrl-C) ends the waiting of `main`, then the workers, then is raised here;
        a second one does not wait.

        Args:
            build_site: Can be pickled.
            num_sites: K.
            main: Runs in a thread of its own; what it raises is raised here.

        Raises:
            RuntimeError: If ray is not installed, or the engine breaks down.
        """
        if not ray_is_installed():
            raise RuntimeError("runtime=ray needs the extra: pip install 'dpfed-kan[ray]'")
        failures: list[BaseException] = []
        workers: list[Any] = []
        stop = threading.Event()

        def guarded(grid: Grid, _: RunConfig) -> None:
            try:
                with threadpool_limits(self.num_threads):  # OpenMP's limit is the thread's own
                    main(StoppableGrid(grid, stop))
            except BaseException as error:
                failures.append(error)
            finally:
                workers.extend(child_processes())

        try:
            with _interrupts_set(stop):
                simulate(
                    server_app(guarded),
                    client_app(build_site, num_threads=_WORKER_THREADS),
                    num_sites=num_sites,
                    num_workers=self.num_workers,
                )
        except RuntimeError as error:
            cause = error.__cause__ or error
            failures.append(
                RuntimeError(f"Flower's simulation engine broke down: {type_and_place(cause)}")
            )
        finally:
            stop.set()
            await_end(workers)
        if failures:
            raise failures[0]


@contextlib.contextmanager
def _interrupts_set(stop: threading.Event) -> Iterator[None]:
    """Have the first interrupt set `stop`, where the main thread is this one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def set_stop(_: int, __: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        stop.set()

    signal.signal(signal.SIGINT, set_stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


Runtime = InProcess | Ray

__all__ = ["Grid", "InProcess", "Ray", "Runtime"]
