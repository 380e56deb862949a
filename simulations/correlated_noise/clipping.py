"""Stronger clipping compensated by the step: C falls, η grows, η C stays; and the ball of radius R.

python -m simulations.correlated_noise.clipping --out clipping.jsonl
python -m simulations.correlated_noise.clipping --ball --out ball.jsonl

A step's noise, η κ C / B a coordinate, is then the same for every C, and so is ε: what changes is
the share of the gradients that the clip shortens. With --ball the clip stays the job's, and R
changes. A line of JSON a run; what is in the output file is not run again.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dpfed_kan.experiment import Experiment
from dpfed_kan.kan import KANGradients
from dpfed_kan.privacy.clipping import squared_norms
from dpfed_kan.simulated_sites import SimulatedSites
from dpfed_kan.update.sgd import ProjectedSGD
from simulations.cells import Cell, run_missing
from simulations.correlated_noise.train import CLIP, DATA_SETS, ETA, at_noise, job, train, union

KAPPA = 6.3
CORRELATIONS = (0.0, 0.5, 0.9)
CLIPS = (2.0, 1.0, 0.5, 0.25, 0.1, 0.02)
RADII = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


def at_clip(plain: Experiment, clip: float) -> Experiment:
    """Return the experiment at another C, with η such that η C is what it was (C=.5, η=1)."""
    return replace(
        plain,
        privacy=replace(plain.privacy, l2_clip_norm=clip),
        update=ProjectedSGD(learning_rate=ETA * CLIP / clip),
    )


def in_ball(plain: Experiment, radius: float) -> Experiment:
    """Return the experiment with its iterates projected onto the ball of radius R around W_0."""
    return replace(plain, update=ProjectedSGD(learning_rate=ETA, projection_radius=radius))


def share_clipped(sites: SimulatedSites, clip: float) -> float:
    """Return the share of the training records whose gradient at W_0 is longer than C."""
    gradients = union(sites).gradients
    if not isinstance(gradients, KANGradients):
        raise TypeError("expected a KAN")
    everybody = np.arange(len(gradients.labels))
    norms = np.sqrt(squared_norms(gradients.blocks(sites.params.trainable, everybody)))
    return float((norms > clip).mean())


def run(plain: Experiment, sites: SimulatedSites, cell: Cell) -> dict[str, Any]:
    """Train one cell: of `clip` or of `radius`, at κ and λ."""
    changed = at_clip(plain, cell["clip"]) if "clip" in cell else in_ball(plain, cell["radius"])
    noisy = replace(changed, noise=at_noise(cell["kappa"], cell["correlation"]))
    found = train(noisy, sites, noisy.mechanism(sites.num_records))
    if "clip" in cell:
        return found | {"share_clipped_at_start": share_clipped(sites, cell["clip"])}
    return found


def main() -> None:
    """Run what is asked for and not yet in the output file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mnist-root", type=Path, help="folder of the MNIST files")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    parser.add_argument("--data", nargs="+", default=["synthetic"], choices=DATA_SETS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--correlations", nargs="+", type=float, default=list(CORRELATIONS))
    parser.add_argument("--clips", nargs="+", type=float, default=list(CLIPS))
    parser.add_argument("--ball", action="store_true", help="sweep R, not C")
    options = parser.parse_args()
    swept = [("radius", value) for value in RADII] if options.ball else []
    swept = swept or [("clip", value) for value in options.clips]
    levels = [(KAPPA, lam) for lam in options.correlations] + [(0.0, 0.0)]
    for data in options.data:
        for seed in options.seeds:
            plain = job(data, mnist_root=options.mnist_root, seed=seed)
            sites = SimulatedSites(plain, plain.streams())
            cells = [
                {"data": data, "seed": seed, name: value, "kappa": kappa, "correlation": lam}
                for name, value in swept
                for kappa, lam in levels
            ]

            def run_here(
                cell: Cell, plain: Experiment = plain, sites: SimulatedSites = sites
            ) -> dict[str, Any]:
                return run(plain, sites, cell)

            run_missing(cells, options.out, run_here, shown=f"{data}, seed {seed}")


if __name__ == "__main__":
    main()
