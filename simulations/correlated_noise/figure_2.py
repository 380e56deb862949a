"""Figure 2: training loss over λ at fixed κ. A line of JSON a run; what is done is not run again.

python -m simulations.correlated_noise.figure_2 --mnist-root DIR --out figure_2.jsonl
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

from rich.progress import track

from dpfed_kan.simulated_sites import SimulatedSites
from simulations.correlated_noise.train import DATA_SETS, at_noise, job, train

KAPPAS = (6.3, 11.8)  # ε = 2 and 1 for ten participations 40 steps apart, λ = 0, no amplification
CORRELATIONS = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)


def main() -> None:
    """Run what is asked for and not yet in the output file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mnist-root", type=Path, help="folder of the MNIST files")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    parser.add_argument("--data", nargs="+", default=list(DATA_SETS), choices=DATA_SETS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    options = parser.parse_args()
    done = set()
    if options.out.exists():
        rows = [json.loads(line) for line in options.out.read_text().splitlines()]
        done = {(row["data"], row["seed"], row["kappa"], row["correlation"]) for row in rows}
    cells = [(0.0, 0.0), *((kappa, lam) for kappa in KAPPAS for lam in CORRELATIONS)]
    for data in options.data:
        for seed in options.seeds:
            plain = job(data, mnist_root=options.mnist_root, seed=seed)
            sites = SimulatedSites(plain, plain.streams())
            for kappa, lam in track(cells, description=f"{data}, seed {seed}"):
                if (data, seed, kappa, lam) in done:
                    continue
                noisy = replace(plain, noise=at_noise(kappa, lam))
                row = train(noisy, sites, noisy.mechanism(sites.num_records))
                named = {"data": data, "seed": seed, "kappa": kappa, "correlation": lam}
                with options.out.open("a") as file:
                    file.write(json.dumps(named | row) + "\n")


if __name__ == "__main__":
    main()
