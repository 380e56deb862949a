"""Job J in pfl-research and Opacus, interleaved with the product's default runtime."""

from __future__ import annotations

import contextlib
import importlib
import tempfile
import time
from pathlib import Path
from typing import Any

from dpfed_kan.training import PreparedRun
from simulations.benchmark.loops import job, product_loop
from simulations.benchmark.measure import Times
from simulations.benchmark.peer_job import Measure, PeerJob, Precision

_WAYS: tuple[tuple[str, Precision], ...] = (
    ("user", "float32"),
    ("best", "float32"),
    ("best", "float64"),
)
_MODULES = {"pfl": "pfl_job", "opacus": "opacus_job"}


def peers(dim: int, sites: list[int], num_rounds: int) -> list[dict[str, Any]]:
    """Return what each peer that is installed takes over what the fused product takes.

    The product is the whole of it, with ledger, metrics and checkpoints on disk, but with
    independent noise, as the peers have; in its default float64 beside what users write, in the
    peer's precision beside the peer's best form. Opacus knows one site.

    Args:
        dim: d.
        sites: K, for pfl.
        num_rounds: Rounds to time.
    """
    rows = []
    for peer, module in _MODULES.items():
        try:
            measure: Measure = importlib.import_module(f"simulations.benchmark.{module}").measure
        except ImportError as error:
            print(f"{peer} is left out: {error}")
            continue
        for num_sites in sites if peer == "pfl" else [1]:
            for form, precision in _WAYS:
                planned = PeerJob(dim=dim, num_sites=num_sites, precision=precision)
                named = {"peer": peer, "form": form, "precision": precision}
                found = _beside_fused(measure, planned, num_rounds, form)
                rows.append(named | {"dim": dim, "num_sites": num_sites} | found)
    return rows


def _beside_fused(measure: Measure, planned: PeerJob, num_rounds: int, form: str) -> dict[str, Any]:
    experiment = job(
        dim=planned.dim,
        num_sites=planned.num_sites,
        num_rounds=max(400, num_rounds + 5),
        correlation=0.0,
        precision=planned.precision if form == "best" else "float64",
    )
    prepared = PreparedRun.of(experiment, experiment.streams())
    prepared.spent.epsilon(1)
    own = Times()
    with tempfile.TemporaryDirectory() as scratch:
        product = product_loop(prepared, Path(scratch) / "run", by_messages=False)

        def step() -> None:
            wall, cpu = time.perf_counter(), time.process_time()
            next(product)
            own.wall.append(time.perf_counter() - wall)
            own.cpu.append(time.process_time() - cpu)

        with contextlib.closing(product):
            next(product)
            taken = measure(planned, num_rounds=num_rounds, form=form, between=step)
    times = Times(wall=taken.wall_s, cpu=taken.cpu_s)
    return {
        "fused_ms": own.summary()["wall_ms"],
        **times.summary(own),
        "start_up_s": taken.startup_s,
    }
