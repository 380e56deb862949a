"""GD and DP-GD on both layers over width m and steps T; a line of JSON a run.

python -m simulations.kan_gd.grid --data synthetic --out grid.jsonl
python -m simulations.kan_gd.grid --data mnist --root DIR --out grid.jsonl

Full batch; DP-GD clips the joint per-example gradient and is calibrated to ε = 2 for each T, GD
does neither. Test accuracy and training loss at every rate are kept: choosing is the plot's.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from dpfed_kan.data.mnist import MNIST
from dpfed_kan.kan import KANGradients, TwoLayerKAN, decision_function
from dpfed_kan.privacy.calibration import calibrate
from dpfed_kan.privacy.clipping import Matrix, Vector, clip_and_sum
from dpfed_kan.privacy.mechanism import Mechanism
from dpfed_kan.privacy.noising import GaussianNoise, NoNoise
from dpfed_kan.privacy.sampling import FullBatch
from dpfed_kan.streams import Streams
from dpfed_kan.update.sgd import ProjectedSGD
from simulations.cells import Cell, run_missing
from simulations.kan_gd.train import checkerboard

EPSILON, CLIP = 2.0, 1.0
WIDTHS = (2, 8, 32, 128)
DATA_SETS = ("synthetic", "mnist")


@dataclass(frozen=True, kw_only=True)
class Task:
    """Records to train on and to test on, and what the model and the account need of them.

    Args:
        features: Shape (n, d).
        labels: Shape (n,), −1 or +1.
        held_out: Shape (n', d).
        truth: Shape (n',).
        input_grid: Half-width of the first layer's grid.
        num_basis: p.
        delta: δ, below 1/n.
        steps: The T that are asked for.
        rates: The η that are tried.
    """

    features: Matrix
    labels: Vector
    held_out: Matrix
    truth: Vector
    input_grid: float
    num_basis: int
    delta: float
    steps: tuple[int, ...]
    rates: tuple[float, ...]


def load(data: str, *, root: Path | None, seed: int) -> Task:
    """Return XOR in two dimensions (n = 2000), or MNIST 8 against 3 (n = 2000 of its records).

    Raises:
        ValueError: If MNIST is asked for without its folder.
    """
    streams = Streams.from_seed(seed)
    if data == "synthetic":
        rng = streams.generator("synthetic_data")
        (features, labels), (held_out, truth) = checkerboard(rng, 2000), checkerboard(rng, 4000)
        return Task(
            features=features, labels=labels, held_out=held_out, truth=truth,
            input_grid=2**-0.5, num_basis=6, delta=1e-4,
            steps=(4, 16, 64, 256), rates=(1.0, 4.0, 16.0, 64.0),
        )  # fmt: skip
    if root is None:
        raise ValueError("mnist needs the folder of its files: --root DIR")
    source = MNIST(root=str(root), num_train=2000, pixel_scaling="unit_norm")
    records = source.load(streams)
    features, labels = records.features, records.labels
    return Task(
        features=features[:2000], labels=labels[:2000],
        held_out=features[2000:], truth=labels[2000:],
        input_grid=3 / 28, num_basis=5, delta=1e-4,
        steps=(4, 16, 64, 256), rates=(4.0, 16.0),
    )  # fmt: skip


def mechanism(form: str, task: Task, steps: int) -> Mechanism:
    """Return dp_gd's mechanism, calibrated to ε = 2 for T steps, or gd's, without clip and noise.

    Unit record, zero-out, full batch: one Gaussian, exact; the server is trusted.
    """
    if form == "gd":
        return Mechanism(
            sampling=FullBatch(), noise=NoNoise(), l2_clip_norm=float("inf"), num_rounds=steps
        )
    return calibrate(
        Mechanism(sampling=FullBatch(), noise=GaussianNoise(), l2_clip_norm=CLIP, num_rounds=steps),
        target_epsilon=EPSILON,
        target_delta=task.delta,
    )


def descend(
    task: Task, plan: Mechanism, *, width: int, rate: float, seed: int, stops: tuple[int, ...]
) -> Mapping[int, dict[str, float]]:
    """Train for the plan's steps, and return test accuracy and training loss at some of them.

    Args:
        task: The records.
        plan: Clip, noise, T.
        width: m.
        rate: η.
        seed: Of start and noise.
        stops: Numbers of steps, at most T.
    """
    streams = Streams.from_seed(seed)
    model = TwoLayerKAN(
        hidden_width=width,
        num_basis=task.num_basis,
        train_second_layer=True,
        input_grid=task.input_grid,
    )
    input_dim = task.features.shape[1]
    start = model.initialize(input_dim, streams.generator("initial_params")).trainable
    none = np.empty(0)
    site = KANGradients(model=model, frozen=none, features=task.features, labels=task.labels)
    rule = ProjectedSGD(learning_rate=rate)
    state, everybody, found = rule.start(start), np.arange(len(task.labels)), {}
    for t in range(plan.num_rounds):
        total = clip_and_sum(site.blocks(state.params, everybody), l2_clip_norm=plan.l2_clip_norm)
        release = plan.privatize(total, round_index=t, streams=streams)
        state = rule.step(state, release, batch_size=float(len(task.labels)))
        if t + 1 in stops:
            scores = decision_function(model, state.params, none, task.held_out)
            found[t + 1] = {
                "test_accuracy": float(((scores > 0) == (task.truth > 0)).mean()),
                "training_loss": site.loss_and_scores(state.params)[0],
            }
    return found


def run(task: Task, cell: Cell) -> dict[str, Any]:
    """Run a cell: dp_gd of one T; gd of all T at once, the shorter being the longer's beginning."""
    steps = cell.get("steps", max(task.steps))
    plan = mechanism(cell["form"], task, steps)
    stops = (steps,) if "steps" in cell else task.steps
    found = descend(
        task, plan, width=cell["width"], rate=cell["rate"], seed=cell["seed"], stops=stops
    )
    return (
        dict(found[steps]) if "steps" in cell else {"at": [{"steps": t} | found[t] for t in stops]}
    )


def main() -> None:
    """Run what is asked for and not yet in the output file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, help="folder of the MNIST files")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    parser.add_argument("--data", required=True, choices=DATA_SETS)
    parser.add_argument("--forms", nargs="+", default=["dp_gd", "gd"], choices=["dp_gd", "gd"])
    parser.add_argument("--widths", nargs="+", type=int, default=list(WIDTHS))
    parser.add_argument("--steps", nargs="+", type=int, help="those of the data set if left out")
    parser.add_argument("--rates", nargs="+", type=float, help="those of the data set if left out")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    options = parser.parse_args()
    with threadpool_limits(1):
        for seed in options.seeds:
            task = load(options.data, root=options.root, seed=seed)
            task = replace(task, steps=tuple(sorted(options.steps or task.steps)))
            cells = [
                {"data": options.data, "form": form, "width": width, "rate": rate, "seed": seed}
                | ({"steps": steps} if form == "dp_gd" else {})
                for rate in options.rates or task.rates
                for form in options.forms
                for steps in (task.steps if form == "dp_gd" else task.steps[-1:])
                for width in options.widths
            ]

            def run_here(cell: Cell, task: Task = task) -> dict[str, Any]:
                return run(task, cell)

            run_missing(cells, options.out, run_here, shown=f"{options.data}, seed {seed}")


if __name__ == "__main__":
    main()
