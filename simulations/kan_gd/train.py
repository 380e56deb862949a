"""DP-GD on both layers over a grid of widths m and steps T at ε = 2; a line of JSON a run.

python -m simulations.kan_gd.train --out results.jsonl
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from dpfed_kan.kan import KANGradients, TwoLayerKAN, decision_function
from dpfed_kan.kan.lipschitz import gradient_bounds
from dpfed_kan.privacy.calibration import calibrate
from dpfed_kan.privacy.clipping import Matrix, Vector, clip_and_sum
from dpfed_kan.privacy.mechanism import Mechanism
from dpfed_kan.privacy.noising import GaussianNoise
from dpfed_kan.privacy.sampling import FullBatch
from dpfed_kan.privacy.transformed_clipping import clip_and_sum_transformed
from dpfed_kan.streams import Streams
from dpfed_kan.update.layered_gd import LayeredGD
from dpfed_kan.update.rule import UpdateRule
from dpfed_kan.update.sgd import ProjectedSGD

EPSILON, DELTA, NUM_TRAIN, NUM_TEST, NUM_BASIS = 2.0, 1e-4, 2000, 4000, 6
RADII, CLIP = (8.0, 2.0), 1.0


def checkerboard(rng: np.random.Generator, count: int) -> tuple[Matrix, Vector]:
    """Return points of [−1, 1]² / √2 and the sign of x₁x₂ (XOR)."""
    cube = rng.uniform(-1.0, 1.0, (count, 2))
    return cube / math.sqrt(2), np.where(cube.prod(axis=1) > 0, 1.0, -1.0)


def train(form: str, *, width: int, steps: int, rate: float, seed: int) -> dict[str, Any]:
    """Train once and return the test accuracy.

    Args:
        form: lipschitz ([KAN-GD] with tight bounds), paper (with its own) or clip (joint clip).
        width: m.
        steps: T.
        rate: η.
        seed: Of data, start and noise.
    """
    streams = Streams.from_seed(seed)
    rng = streams.generator("synthetic_data")
    features, labels = checkerboard(rng, NUM_TRAIN)
    model = TwoLayerKAN(
        hidden_width=width,
        num_basis=NUM_BASIS,
        train_second_layer=True,
        input_grid=2**-0.5,
    )
    start = model.initialize(2, streams.generator("initial_params")).trainable
    site = KANGradients(model=model, frozen=np.empty(0), features=features, labels=labels)
    second = float(np.linalg.norm(start[-model.num_second :]))
    rule: UpdateRule
    if form == "clip":
        rule, clip = ProjectedSGD(learning_rate=rate), CLIP
    else:
        bounds = gradient_bounds(
            model,
            second_layer_norm=second,
            radius=RADII[1],
            form="paper" if form == "paper" else "tight",
        )
        sizes = (len(start) - model.num_second, model.num_second)
        rule = LayeredGD(
            learning_rate=rate, layer_sizes=sizes, layer_scales=bounds, layer_radii=RADII
        )
        clip = math.sqrt(2)
    mechanism = calibrate(
        Mechanism(sampling=FullBatch(), noise=GaussianNoise(), l2_clip_norm=clip, num_rounds=steps),
        target_epsilon=EPSILON,
        target_delta=DELTA,
    )
    state = rule.start(start, num_rounds=steps)
    for t in range(steps):
        blocks = site.blocks(state.params, np.arange(NUM_TRAIN))
        if state.transform is None:
            total = clip_and_sum(blocks, l2_clip_norm=clip)
        else:
            total = clip_and_sum_transformed(blocks, transform=state.transform, l2_clip_norm=clip)
        release = mechanism.privatize(total, round_index=t, streams=streams)
        state = rule.step(state, release, batch_size=float(NUM_TRAIN))
    held_out, truth = checkerboard(rng, NUM_TEST)
    scores = decision_function(model, state.params, np.empty(0), held_out)
    return {
        "form": form,
        "width": width,
        "steps": steps,
        "rate": rate,
        "seed": seed,
        "test_accuracy": float(((scores > 0) == (truth > 0)).mean()),
    }


def main() -> None:
    """Run the grid, all rates: the table takes the best rate of each cell, which is optimistic."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    parser.add_argument("--forms", nargs="+", default=["lipschitz", "paper", "clip"])
    parser.add_argument("--widths", nargs="+", type=int, default=[4, 16, 64, 256])
    parser.add_argument("--steps", nargs="+", type=int, default=[4, 16, 64, 256])
    parser.add_argument("--rates", nargs="+", type=float, default=[1.0, 4.0, 16.0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    options = parser.parse_args()
    with threadpool_limits(1):
        for seed in options.seeds:
            for form in options.forms:
                for steps in options.steps:
                    for width in options.widths:
                        for rate in options.rates:
                            row = train(form, width=width, steps=steps, rate=rate, seed=seed)
                            with options.out.open("a") as file:
                                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
