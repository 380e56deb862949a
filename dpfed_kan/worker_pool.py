"""Simulated sites in worker processes: each worker keeps its sites and returns their sum.

Params, transform and sums lie in shared memory, so that a round sends a few bytes a worker.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from dpfed_kan.federated.runtimes import Workers
from dpfed_kan.federated.server import RoundRefused, SumOverSites
from dpfed_kan.federated.site import Broadcast, check_broadcast
from dpfed_kan.privacy.clipping import ClippedSum, Matrix
from dpfed_kan.privacy.transform import ClipTransform
from dpfed_kan.simulated_sites import SimulatedSites, simulated_sites

_PARAMS, _CENTER, _SCALE, _FIRST_SUM = range(4)
_READY_SECONDS, _END_SECONDS = 600.0, 5.0


@dataclass(frozen=True, kw_only=True)
class _Task:
    """What is told to a worker in a round; the arrays are in the shared memory."""

    round_index: int
    transformed: bool
    counts: dict[str, int] | None


@contextlib.contextmanager
def pooled(sites: SimulatedSites, runtime: Workers) -> Iterator[SumOverSites]:
    """Start the workers, give the sum over all sites, and end the workers.

    The draws are those of any other runtime, bit for bit; the sums differ by rounding only. An
    interrupt is the parent's affair: workers end when it does.

    Args:
        sites: The simulation; its settings travel to the workers.
        runtime: How many workers, and threads each.

    Raises:
        RoundRefused: From the sum, if a worker fails or dies; it is named by its sites.
    """
    names = sorted(sites.num_records)
    shares = [names[k :: runtime.num_workers] for k in range(min(runtime.num_workers, len(names)))]
    dimension = len(sites.params.trainable)
    clip = sites.l2_clip_norm
    context = multiprocessing.get_context("spawn")
    memory = context.RawArray("d", dimension * (_FIRST_SUM + len(shares)))
    board = _board(memory, dimension)
    started: list[tuple[Any, Connection]] = []
    try:
        for row, share in enumerate(shares):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_work,
                args=(theirs, sites.settings, share, memory, row, runtime.num_threads),
                daemon=True,
            )
            process.start()
            theirs.close()
            started.append((process, ours))
        pipes = [pipe for _, pipe in started]
        _await(pipes, shares, "while starting", timeout=_READY_SECONDS)

        def total(broadcast: Broadcast) -> ClippedSum:
            check_broadcast(broadcast, num_params=dimension)
            board[_PARAMS] = broadcast.params
            if broadcast.transform is not None:
                board[_CENTER] = broadcast.transform.center
                board[_SCALE] = broadcast.transform.scale
            where = f"round {broadcast.round_index}"
            for pipe, share in zip(pipes, shares, strict=True):
                counts = broadcast.counts
                with _named(share, where):
                    pipe.send(
                        _Task(
                            round_index=broadcast.round_index,
                            transformed=broadcast.transform is not None,
                            counts=None if counts is None else {k: counts[k] for k in share},
                        )
                    )
            _await(pipes, shares, where, timeout=runtime.timeout)
            value = board[_FIRST_SUM].copy()
            for row in range(1, len(shares)):
                value += board[_FIRST_SUM + row]
            return ClippedSum(value=value, l2_sensitivity=clip)

        yield total
    finally:
        for _, pipe in started:
            pipe.close()
        for process, _ in started:
            process.join(_END_SECONDS)
            if process.is_alive():
                process.kill()
                process.join()


def _work(
    pipe: Connection, settings: str, share: list[str], memory: Any, row: int, num_threads: int
) -> None:
    """Answer one task after the other until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(EOFError, BrokenPipeError), threadpool_limits(num_threads):
        try:
            fused = simulated_sites(settings).fused(share)
            board = _board(memory, fused.gradients.num_params)
            pipe.send(None)
            while True:
                task: _Task = pipe.recv()
                transform = None
                if task.transformed:
                    transform = ClipTransform(center=board[_CENTER], scale=board[_SCALE])
                broadcast = Broadcast(
                    round_index=task.round_index,
                    params=board[_PARAMS],
                    transform=transform,
                    counts=task.counts,
                )
                board[_FIRST_SUM + row] = fused(broadcast).value
                pipe.send(None)
        except (EOFError, BrokenPipeError):
            raise
        except Exception as error:  # its type only: its text can hold a record
            pipe.send(type(error).__name__)


def _board(memory: Any, dimension: int) -> Matrix:
    return np.frombuffer(memory, dtype=np.float64).reshape(-1, dimension)


@contextlib.contextmanager
def _named(share: Sequence[str], where: str) -> Iterator[None]:
    """Say whose worker it was that is gone."""
    try:
        yield
    except (EOFError, OSError):
        raise RoundRefused(
            f"{where}: the worker of {_shown(share)} died, killed or out of memory; fewer workers "
            "(runtime.num_workers) need less memory"
        ) from None


def _await(
    pipes: Sequence[Connection], shares: Sequence[Sequence[str]], where: str, *, timeout: float
) -> None:
    """Wait until every worker has done what it was told.

    Raises:
        RoundRefused: If one fails, dies or takes too long.
    """
    deadline = time.monotonic() + timeout
    for number, (pipe, share) in enumerate(zip(pipes, shares, strict=True)):
        with _named(share, where):
            if not pipe.poll(max(0.0, deadline - time.monotonic())):
                raise RoundRefused(
                    f"{where}: have {number} workers, need {len(pipes)}: no answer from that of "
                    f"{_shown(share)} within {timeout:g} s"
                )
            problem = pipe.recv()
        if problem is not None:
            raise RoundRefused(f"{where}: the worker of {_shown(share)} failed: {problem}")


def _shown(share: Sequence[str]) -> str:
    return share[0] if len(share) == 1 else f"{share[0]} and {len(share) - 1} more sites"
