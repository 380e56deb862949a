"""Run simulated sites behind messages: in this process, or in Flower's engine on ray."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from flwr.serverapp import Grid
from threadpoolctl import threadpool_limits

from dpfed_kan.federated.runtimes import InProcess, Messages, Ray
from dpfed_kan.flower._compat import await_end, child_processes, ray_is_installed, simulate
from dpfed_kan.flower.client_app import SiteBuilder, client_app, type_and_place
from dpfed_kan.flower.grid import InProcessGrid, StoppableGrid
from dpfed_kan.flower.server_app import RunConfig, server_app

_WORKER_THREADS = 1


def start(
    runtime: Messages,
    build_site: SiteBuilder,
    *,
    num_sites: int,
    main: Callable[[Grid], None],
) -> None:
    """Start the sites, call `main` with a grid of them, and end them.

    Args:
        runtime: Where they run.
        build_site: Can be pickled, for ray.
        num_sites: K.
        main: What it raises is raised here.

    Raises:
        RuntimeError: If ray is not installed, or the engine breaks down.
    """
    if isinstance(runtime, InProcess):
        with threadpool_limits(runtime.num_threads):
            main(InProcessGrid(client_app(build_site, local=True), num_sites))
    else:
        _start_ray(runtime, build_site, num_sites=num_sites, main=main)


def _start_ray(
    runtime: Ray, build_site: SiteBuilder, *, num_sites: int, main: Callable[[Grid], None]
) -> None:
    """Call `main` in a ServerApp with the engine's grid, in a thread; leave no process behind.

    An interrupt (Ctrl-C) ends the waiting of `main`, then the workers, then is raised here; a
    second one does not wait.
    """
    if not ray_is_installed():
        raise RuntimeError("runtime=ray needs the extra: pip install 'dpfed-kan[ray]'")
    failures: list[BaseException] = []
    workers: list[Any] = []
    stop = threading.Event()

    def guarded(grid: Grid, _: RunConfig) -> None:
        try:
            with threadpool_limits(runtime.num_threads):  # OpenMP's limit is the thread's own
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
                num_workers=runtime.num_workers,
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


__all__ = ["Grid", "start"]
