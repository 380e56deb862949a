"""Speed, as ratios in one run: job J through every runtime beside the bare loop.

    python -m simulations.benchmark                       (all parts, some ten minutes)
    python -m simulations.benchmark --parts fused --dims 784 --sites 4 1000

The parts: fused (the default runtime), messages (runtime=in_process), workers (worker processes),
kernels (MacAdam and ten outputs beside plain SGD), flat (round 100 beside round 2000), ray, and
peers (pfl-research and Opacus beside fused, where they are installed). Machines are noisy: read
the ratios; milliseconds are of the machine at hand.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

from dpfed_kan.federated.runtimes import Precision, Ray, Workers
from dpfed_kan.federated.server import rounds
from dpfed_kan.federated.site import Broadcast
from dpfed_kan.kan import KANGradients, TwoLayerKAN
from dpfed_kan.privacy.clipping import clip_and_sum
from dpfed_kan.privacy.ledger import Ledger
from dpfed_kan.privacy.transform import ClipTransform
from dpfed_kan.privacy.transformed_clipping import clip_and_sum_transformed
from dpfed_kan.run import run
from dpfed_kan.training import PreparedRun
from dpfed_kan.worker_pool import pooled
from simulations.benchmark.loops import (
    BATCH,
    CLIP,
    RECORDS,
    bare_loop,
    job,
    messages,
    own_arithmetic,
    product_loop,
)
from simulations.benchmark.measure import Times, interleaved, resident_mib
from simulations.benchmark.peers import peers

Row = dict[str, Any]


def fused(dim: int, num_sites: int, num_rounds: int, precision: Precision = "float64") -> Row:
    """The default runtime beside the bare loop, which is float64."""
    return _beside_bare(dim, num_sites, num_rounds, by_messages=False, precision=precision)


def by_messages(dim: int, num_sites: int, num_rounds: int) -> Row:
    """Flower messages in one process beside the bare loop, and beside the sites' arithmetic."""
    row = _beside_bare(dim, num_sites, num_rounds, by_messages=True)
    experiment = job(dim=dim, num_sites=num_sites, num_rounds=num_rounds)
    plan = PreparedRun.of(experiment, experiment.streams())
    params = plan.sites.params.trainable

    def stepped(total: Any) -> Iterator[None]:
        for t in range(2 * num_rounds):
            total(Broadcast(round_index=t, params=params))
            yield

    loops = {"messages": stepped(messages(plan)), "alone": stepped(own_arithmetic(plan))}
    times = interleaved(loops, num_rounds=num_rounds)
    extra = np.median(times["messages"].cpu) - np.median(times["alone"].cpu)
    return row | {
        "arithmetic_us_a_site": 1e6 * float(np.median(times["alone"].cpu)) / num_sites,
        "framework_us_a_site": 1e6 * float(extra) / num_sites,
    }


def add_extra_site(rows: list[Row]) -> None:
    """Add what the framework takes for each site more than the fewest: the round's own is out."""
    fewest = min(rows, key=lambda row: row["num_sites"])
    for row in rows:
        more = row["num_sites"] - fewest["num_sites"]
        if more > 0:
            taken = (r["framework_us_a_site"] * r["num_sites"] for r in (row, fewest))
            row["framework_us_an_extra_site"] = (next(taken) - next(taken)) / more


def _beside_bare(
    dim: int,
    num_sites: int,
    num_rounds: int,
    *,
    by_messages: bool,
    precision: Precision = "float64",
) -> Row:
    warm_up = 5
    experiment = job(
        dim=dim,
        num_sites=num_sites,
        num_rounds=max(400, warm_up + num_rounds),
        precision=precision,
    )
    with tempfile.TemporaryDirectory() as scratch:
        start = time.perf_counter()
        plan = PreparedRun.of(experiment, experiment.streams())
        product = product_loop(plan, Path(scratch) / "run", by_messages=by_messages)
        plan.spent.epsilon(1)
        with contextlib.closing(product):
            next(product)
            start_up = time.perf_counter() - start
            loops = {"bare": bare_loop(experiment, plan.sites), "product": product}
            times = interleaved(loops, num_rounds=num_rounds, warm_up=warm_up - 1)
    return {
        "runtime": "in_process" if by_messages else "fused",
        "precision": precision,
        "dim": dim,
        "num_sites": num_sites,
        "bare_ms": times["bare"].summary()["wall_ms"],
        **times["product"].summary(times["bare"]),
        "start_up_s": start_up,
        "resident_mib": resident_mib(),
    }


def workers(dim: int, num_sites: int, num_rounds: int) -> Row:
    """Two worker processes beside the bare loop; their CPU time is not counted."""
    experiment = job(dim=dim, num_sites=num_sites, num_rounds=num_rounds)
    prepared = PreparedRun.of(experiment, experiment.streams())
    start = time.perf_counter()
    with pooled(prepared.sites, Workers()) as total:
        start_up = time.perf_counter() - start

        def stepped() -> Iterator[None]:
            state = prepared.server.update_rule.start(prepared.sites.params.trainable)
            ledger = Ledger(
                mechanism=prepared.server.mechanism, num_records=prepared.server.num_records
            )
            for _ in rounds(
                prepared.server,
                state,
                sum_over_sites=total,
                streams=prepared.streams,
                ledger=ledger,
            ):
                yield

        loops = {"bare": bare_loop(experiment, prepared.sites), "workers": stepped()}
        times = interleaved(loops, num_rounds=num_rounds - 10)
    found = times["workers"].summary(times["bare"])
    return {
        "runtime": "workers",
        "dim": dim,
        "num_sites": num_sites,
        **{name: value for name, value in found.items() if "cpu" not in name},
        "start_up_s": start_up,
    }


def kernels(dim: int, num_rounds: int) -> list[Row]:
    """Gradients and clipped sum of a batch: plain, ten outputs, in MacAdam's transform."""
    rng = np.random.default_rng(0)
    features = rng.uniform(-1, 1, (RECORDS, dim)) / np.sqrt(dim)
    one = TwoLayerKAN(hidden_width=32, num_basis=8)
    ten = TwoLayerKAN(hidden_width=32, num_basis=8, num_outputs=10, loss="softmax")
    labels = {1: rng.choice([-1.0, 1.0], RECORDS), 10: rng.integers(0, 10, RECORDS) * 1.0}

    def stepped(model: TwoLayerKAN, *, transformed: bool) -> Iterator[None]:
        params = model.initialize(dim, rng)
        site = KANGradients(
            model=model, frozen=params.frozen, features=features, labels=labels[model.num_outputs]
        )
        size = len(params.trainable)
        transform = ClipTransform(center=rng.normal(0, 0.01, size), scale=rng.uniform(1, 2, size))
        while True:
            blocks = site.blocks(params.trainable, rng.choice(RECORDS, BATCH, replace=False))
            if transformed:
                clip_and_sum_transformed(blocks, transform=transform, l2_clip_norm=CLIP)
            else:
                clip_and_sum(blocks, l2_clip_norm=CLIP)
            yield

    loops = {
        "sgd": stepped(one, transformed=False),
        "ten outputs": stepped(ten, transformed=False),
        "macadam": stepped(one, transformed=True),
        "macadam, ten outputs": stepped(ten, transformed=True),
    }
    times = interleaved(loops, num_rounds=num_rounds)
    return [
        {"kernel": name, "dim": dim, **found.summary(times["sgd"])} for name, found in times.items()
    ]


def flat(num_rounds: int = 2000, window: int = 200) -> Row:
    """Rounds 100 to 300 beside the last 200 of 2000, and the memory held at both."""
    experiment = job(dim=20, num_sites=64, num_rounds=num_rounds)
    with tempfile.TemporaryDirectory() as scratch:
        plan = PreparedRun.of(experiment, experiment.streams())
        product = product_loop(plan, Path(scratch) / "run", by_messages=False)
        parts = [100, window, num_rounds - 100 - 2 * window, window]
        times, held = [], []
        with contextlib.closing(product):
            for length in parts:
                times.append(interleaved({"x": product}, num_rounds=length, warm_up=0)["x"])
                held.append(resident_mib())
    return {
        "early_ms": times[1].summary()["wall_ms"],
        "late_ms": times[3].summary()["wall_ms"],
        "ratio": times[3].summary(times[1])["ratio"],
        "early_mib": held[1],
        "late_mib": held[3],
    }


def ray(dim: int, num_sites: int, num_rounds: int) -> Row:
    """Flower's own engine; not interleaved, since it runs in processes of its own."""
    experiment = job(dim=dim, num_sites=num_sites, num_rounds=num_rounds)
    seen = [time.perf_counter()]
    with tempfile.TemporaryDirectory() as scratch:
        run(
            replace(experiment, runtime=Ray(), evaluate_every=num_rounds),
            Path(scratch) / "run",
            listener=lambda _: seen.append(time.perf_counter()),
        )
        plan = PreparedRun.of(experiment, experiment.streams())
        bare = interleaved({"x": bare_loop(experiment, plan.sites)}, num_rounds=30)["x"]
    times = Times(wall=np.diff(seen[1:]).tolist(), cpu=[float("nan")] * (len(seen) - 2))
    return {
        "runtime": "ray",
        "dim": dim,
        "num_sites": num_sites,
        **{name: value for name, value in times.summary(bare).items() if "cpu" not in name},
        "start_up_s": seen[1] - seen[0],
    }


def main() -> None:
    """Measure what is asked for, print tables, and write JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = ["fused", "messages", "workers", "kernels", "flat", "ray", "peers"]
    parser.add_argument("--parts", nargs="+", default=parts, choices=parts)
    parser.add_argument("--dims", nargs="+", type=int, default=[20, 784])
    parser.add_argument("--sites", nargs="+", type=int, default=[4, 64, 1000, 10_000])
    parser.add_argument("--rounds", type=int, default=200, help="rounds to time")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()
    found: dict[str, list[Row]] = {}
    with threadpool_limits(1):
        for part in options.parts:
            rows: list[Row] = []
            for dim in options.dims if part not in ("flat",) else [20]:
                match part:
                    case "fused":
                        rows += [fused(dim, k, options.rounds) for k in options.sites]
                        rows.append(fused(dim, options.sites[0], options.rounds, "float32"))
                    case "messages":
                        few = [k for k in options.sites if k <= 64]
                        of_dim = [by_messages(dim, k, max(60, options.rounds // k)) for k in few]
                        add_extra_site(of_dim)
                        rows += of_dim
                    case "workers":
                        rows += [workers(dim, k, options.rounds) for k in options.sites if k <= 64]
                    case "kernels":
                        rows += kernels(dim, options.rounds)
                    case "flat":
                        rows.append(flat())
                    case "peers":
                        few = [k for k in options.sites if k <= 64]
                        rows += peers(dim, few, max(25, options.rounds // 4))
                    case "ray":
                        rows.append(ray(dim, 4, 10))
            found[part] = rows
            _print(part, rows)
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _print(part: str, rows: list[Row]) -> None:
    if not rows:
        return
    table = Table(title=part)
    columns = list(dict.fromkeys(column for row in rows for column in row))
    for column in columns:
        table.add_column(column.replace("_", " "), justify="right")
    for row in rows:
        found = [row.get(column, "") for column in columns]
        table.add_row(*(f"{v:.3g}" if isinstance(v, float) else str(v) for v in found))
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
