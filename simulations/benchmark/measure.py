"""Step several loops in turn and keep what each step took."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Times:
    """Seconds of each step, by the wall clock and on all cores together."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def summary(self, base: Times | None = None) -> dict[str, float]:
        """Return median and 10th percentile in milliseconds, and the ratio to a base's median."""
        found = {
            "wall_ms": 1e3 * float(np.median(self.wall)),
            "wall_p10_ms": 1e3 * float(np.percentile(self.wall, 10)),
            "wall_mean_ms": 1e3 * float(np.mean(self.wall)),
            "cpu_ms": 1e3 * float(np.median(self.cpu)),
            "cpu_mean_ms": 1e3 * float(np.mean(self.cpu)),
        }
        if base is not None:
            found["ratio"] = float(np.median(self.wall) / np.median(base.wall))
            found["ratio_p10"] = float(np.percentile(self.wall, 10) / np.percentile(base.wall, 10))
            found["ratio_mean"] = float(np.mean(self.wall) / np.mean(base.wall))
            found["cpu_ratio"] = float(np.mean(self.cpu) / np.mean(base.cpu))
        return found


def interleaved(
    loops: Mapping[str, Iterator[object]], *, num_rounds: int, warm_up: int = 5
) -> dict[str, Times]:
    """Step every loop once a round, so that what disturbs the machine disturbs all alike.

    Args:
        loops: By name; each yields once a step.
        num_rounds: Steps to keep.
        warm_up: Steps before, whose times are not kept.
    """
    times = {name: Times() for name in loops}
    for number in range(warm_up + num_rounds):
        for name, loop in loops.items():
            cpu, wall = time.process_time(), time.perf_counter()
            next(loop)
            if number >= warm_up:
                times[name].wall.append(time.perf_counter() - wall)
                times[name].cpu.append(time.process_time() - cpu)
    return times


def resident_mib() -> float:
    """Return the memory that the process holds now, in MiB."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20
