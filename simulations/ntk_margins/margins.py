"""NTK margins of three separable tasks, ReLU and KAN, by a hard-margin support vector machine.

python -m simulations.ntk_margins.margins [--seeds 5] [--records 300] [--out expected.json]

γ = max_{‖Θ‖ ≤ 1} min_i y_i ⟨∇f_{Θ(0)}(x_i), Θ⟩ = 1/‖w‖ of the hard-margin SVM without offset on the
gradients of f in both layers. The kernel is made of the gradients' factors.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track
from scipy.optimize import nnls

from dpfed_kan.data.geometry import CheckerboardGap, MultiInterval, XORGap
from dpfed_kan.data.records import Records
from dpfed_kan.kan import KANGradients, TwoLayerKAN
from dpfed_kan.privacy.clipping import Matrix, Vector
from dpfed_kan.streams import Streams

WIDTHS = (8, 64, 512)
TASKS: dict[str, Any] = {
    "multi_interval": MultiInterval,
    "xor": XORGap,
    "checkerboard": CheckerboardGap,
}
PUBLISHED = {
    ("kan", "multi_interval"): (0.0400, 0.0883, 0.1027),
    ("kan", "xor"): (0.0243, 0.0503, 0.0599),
    ("kan", "checkerboard"): (0.0206, 0.0451, 0.0538),
    ("relu", "multi_interval"): (0.0151, 0.0191, 0.0197),
    ("relu", "xor"): (0.0226, 0.0285, 0.0284),
    ("relu", "checkerboard"): (0.0060, 0.0104, 0.0111),
}


def kan_kernel(records: Records, *, width: int, rng: np.random.Generator) -> Matrix:
    """Return ⟨∇f(x_i), ∇f(x_j)⟩ of a KAN with p = 8, both layers, on the paper's grid.

    The product's blocks are those of the loss, r_i ∇f(x_i) in factors; with two classes
    r_i = −y_i sigmoid(−y_i f_i), which is divided out.
    """
    scaled = records.features * np.sqrt(records.features.shape[1])  # x in [−1, 1]
    model = TwoLayerKAN(hidden_width=width, num_basis=8, train_second_layer=True)
    params = model.initialize(scaled.shape[1], rng)
    site = KANGradients(model=model, frozen=params.frozen, features=scaled, labels=records.labels)
    first, second = site.blocks(params.trainable, np.arange(len(records)))
    left = first.left / second.left
    return np.asarray(
        (left @ left.T) * (first.right @ first.right.T) + second.right @ second.right.T
    )


def relu_kernel(records: Records, *, width: int, rng: np.random.Generator) -> Matrix:
    """Return the kernel of f(x) = m^{-1/2} Σ_j a_j relu(w_j·x), a and w standard normal."""
    scaled = records.features * np.sqrt(records.features.shape[1])
    weights = rng.standard_normal((width, scaled.shape[1]))
    outer = rng.standard_normal(width)
    before = scaled @ weights.T
    active = (before > 0) * outer
    hidden = np.maximum(before, 0.0)
    return np.asarray(((active @ active.T) * (scaled @ scaled.T) + hidden @ hidden.T) / width)


def margin(kernel: Matrix, labels: Vector) -> float:
    """Return γ; 0 where the classes are not separated.

    γ² = min over α ≥ 0, Σα = 1 of αᵀ (y K y) α: the distance of the origin from the convex hull of
    y_i ∇f(x_i). Solved as non-negative least squares (Lawson and Hanson): with K = LLᵀ the least of
    ‖Lᵀα‖² + (1 − Σα)² has α proportional to the hull's.
    """
    signed = kernel * np.outer(labels, labels)
    values, vectors = np.linalg.eigh(signed)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))).T
    stacked = np.vstack([root, np.ones(len(labels))])
    target = np.zeros(len(stacked))
    target[-1] = 1.0
    alpha, _ = nnls(stacked, target, maxiter=30 * len(labels))
    alpha /= alpha.sum()
    return float(np.sqrt(max(alpha @ signed @ alpha, 0.0)))


def main() -> None:
    """Print one row a network, task and width, beside what is published."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--records", type=int, default=300, help="n; the paper's is not published")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()
    rows = []
    for (network, task), published in track(PUBLISHED.items(), description="margins"):
        for width, wanted in zip(WIDTHS, published, strict=True):
            found = []
            for seed in range(options.seeds):
                streams = Streams.from_seed(seed)
                records = TASKS[task](num_records=options.records).load(streams)
                kernel = kan_kernel if network == "kan" else relu_kernel
                rng = streams.generator("initial_params")
                found.append(margin(kernel(records, width=width, rng=rng), records.labels))
            rows.append(
                {
                    "network": network,
                    "task": task,
                    "width": width,
                    "margin": float(np.mean(found)),
                    "std": float(np.std(found, ddof=1)) if len(found) > 1 else None,
                    "published": wanted,
                }
            )
    for row in rows:
        print(
            f"{row['network']:5s} {row['task']:15s} m={row['width']:4d} "
            f"{row['margin']:.4f} ± {row['std'] or 0:.4f}   published {row['published']:.4f}"
        )
    if options.out is not None:
        options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
