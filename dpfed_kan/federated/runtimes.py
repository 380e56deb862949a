"""Where simulated sites run: settings only, so that reading a configuration loads no engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dpfed_kan._validate import check_choice, check_count, check_positive

Device = Literal["cpu", "cuda"]
Precision = Literal["float64", "float32"]


@dataclass(frozen=True, kw_only=True)
class Fused:
    """All sites in one kernel call over the union of their batches: the default, and the fastest.

    The same draws bit for bit and the same releases up to rounding as message by message, for ten
    sites or ten thousand; nothing of the federation is tested on the way.

    Args:
        num_threads: Of the matrix products; one, unless measured otherwise.
        device: Where gradients are computed, cpu or cuda.
        precision: float64, or float32 for the two large products of a KAN on the CPU: up to twice
            as fast, and records are clipped to C/1.0005, so that C and ε stay true.
    """

    num_threads: int = 1
    device: Device = "cpu"
    precision: Precision = "float64"

    def __post_init__(self) -> None:
        check_choice("device", self.device, ("cpu", "cuda"))
        check_count("num_threads", self.num_threads)
        check_choice("precision", self.precision, ("float64", "float32"))
        if self.precision == "float32" and self.device != "cpu":
            raise ValueError("runtime.precision=float32 is proved for runtime.device=cpu alone")


@dataclass(frozen=True, kw_only=True)
class AwaitedSettings:
    """What every runtime has that waits for answers.

    Args:
        num_threads: Of the matrix products; one, unless measured otherwise.
        timeout: Seconds to wait for the answers of a round.
        device: Where gradients are computed, cpu or cuda.
    """

    num_threads: int = 1
    timeout: float = 3600.0
    device: Device = "cpu"

    def __post_init__(self) -> None:
        check_choice("device", self.device, ("cpu", "cuda"))
        check_count("num_threads", self.num_threads)
        check_positive("timeout", self.timeout)


@dataclass(frozen=True, kw_only=True)
class InProcess(AwaitedSettings):
    """All sites in this process, by Flower messages: what tests a federation.

    Args:
        num_threads: As in `AwaitedSettings`.
        timeout: As in `AwaitedSettings`.
        device: As in `AwaitedSettings`.
    """


@dataclass(frozen=True, kw_only=True)
class Workers(AwaitedSettings):
    """Worker processes that keep their sites and return one sum each: for large models.

    Args:
        num_workers: Worker processes; each loads the data and holds every num_workers-th site.
        num_threads: Of the matrix products, in each.
        timeout: As in `AwaitedSettings`.
        device: As in `AwaitedSettings`.
    """

    num_workers: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("num_workers", self.num_workers)


@dataclass(frozen=True, kw_only=True)
class Ray(AwaitedSettings):
    """Flower's simulation engine: worker processes, for large models (extra `ray`).

    Args:
        num_workers: Worker processes, one thread each.
        num_threads: Of the server's own matrix products.
        timeout: As in `AwaitedSettings`.
        device: As in `AwaitedSettings`.
    """

    num_workers: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("num_workers", self.num_workers)


Messages = InProcess | Ray
