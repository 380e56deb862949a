"""λ × update rule × sampling at a fixed, honest ε: where does correlation pay?

python -m simulations.correlated_noise.fixed_epsilon --data heart --root DIR --out fixed.jsonl

A line of JSON a run; what is in the output file is not run again. The multiplier is calibrated once
a sampling, λ and ε, and is the same for every rule: a rule is post-processing.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.progress import track

from dpfed_kan.data.federation import FederatedData
from dpfed_kan.data.heart_disease import HeartDisease
from dpfed_kan.data.partition import Natural
from dpfed_kan.experiment import Experiment, PrivacySettings
from dpfed_kan.federated.runtimes import Fused
from dpfed_kan.kan import TwoLayerKAN
from dpfed_kan.privacy.joint_sampling import BallsInBins, FixedSize
from dpfed_kan.privacy.mechanism import Mechanism
from dpfed_kan.privacy.noising import GaussianNoise
from dpfed_kan.privacy.sampling import Cyclic, Poisson
from dpfed_kan.simulated_sites import SimulatedSites
from dpfed_kan.update.adam import DPAdam
from dpfed_kan.update.macadam import DPMacAdam
from dpfed_kan.update.sgd import ProjectedSGD
from simulations.correlated_noise.train import job, train

CORRELATIONS = (0.0, 0.5, 0.9)
EPSILONS = (1.0, 2.0)
DATA_SETS = ("heart", "mnist")


def base(data: str, root: Path, seed: int) -> Experiment:
    """Return the job without sampling, noise and rule being settled.

    heart: the job of simulations/heart_disease (m = 8, p = 5, C = .3, q = .2, T = 60, δ = 1e-3).
    mnist: 8 against 3, unit-norm images on the public grid ±3/√784, T = 400, δ = 1e-5.
    """
    if data == "mnist":
        plain = job("mnist", mnist_root=root, seed=seed)
        source = replace(plain.data.source, pixel_scaling="unit_norm")  # type: ignore[type-var]
        return replace(
            plain,
            data=replace(plain.data, source=source),
            model=TwoLayerKAN(hidden_width=32, num_basis=8, input_grid=3 / 28),
        )
    return Experiment(
        data=FederatedData(
            source=HeartDisease(root=str(root)), partition=Natural(), test_fraction=None
        ),
        model=TwoLayerKAN(hidden_width=8, num_basis=5, input_grid=None),
        sampling=Poisson(sampling_prob=0.2),
        noise=GaussianNoise(),
        privacy=PrivacySettings(l2_clip_norm=0.3, target_epsilon=1.0, target_delta=1e-3),
        update=ProjectedSGD(learning_rate=1.0),
        runtime=Fused(),
        num_rounds=60,
        seed=seed,
    )


def samplings(data: str) -> dict[str, Any]:
    """Return samplers that all take the same share of the records in a round."""
    share = 0.2 if data == "heart" else 0.025
    bins = round(1 / share)
    made: dict[str, Any] = {
        "poisson": Poisson(sampling_prob=share),
        "balls_in_bins": BallsInBins(num_bins=bins),
        "cyclic": Cyclic(num_batches=bins),
    }
    if data == "mnist":
        made["fixed_size"] = FixedSize(batch_size=125)
    return made


def rules(data: str) -> dict[str, Any]:
    """Return the rules; rates of least training loss at ε = 1, λ = 0, Poisson, another seed."""
    if data == "heart":
        return {
            "sgd": ProjectedSGD(learning_rate=20.0, average="last_half"),
            "adam": DPAdam(learning_rate=0.1, average="last_half"),
            "macadam": DPMacAdam(learning_rate=0.03, average="last_half"),
        }
    return {
        "sgd": ProjectedSGD(learning_rate=10.0, average="last_half"),
        "macadam": DPMacAdam(learning_rate=0.01, average="last_half"),
    }


CLIPS = {"macadam": 1.0}  # of w, as the paper has it; κ does not depend on it


def calibrated(plain: Experiment, sites: SimulatedSites, **cell: Any) -> Mechanism:
    """Return the mechanism of a cell, its noise calibrated to ε."""
    noise = GaussianNoise(
        correlation=cell["correlation"],
        column_normalized=cell["sampling"] in ("cyclic", "balls_in_bins"),
    )
    asked = replace(
        plain,
        sampling=samplings(cell["data"])[cell["sampling"]],
        noise=noise,
        privacy=replace(plain.privacy, target_epsilon=cell["epsilon"]),
    )
    return asked.mechanism(sites.num_records)


def main() -> None:
    """Run what is asked for and not yet in the output file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, required=True, help="folder of the data's files")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    parser.add_argument("--data", required=True, choices=DATA_SETS)
    parser.add_argument("--epsilons", nargs="+", type=float, default=list(EPSILONS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    options = parser.parse_args()
    done = set()
    if options.out.exists():
        rows = [json.loads(line) for line in options.out.read_text().splitlines()]
        done = {tuple(row[name] for name in _NAMES) for row in rows}
    cells = [
        {"data": options.data, "sampling": sampling, "correlation": lam, "epsilon": epsilon}
        for epsilon in options.epsilons
        for sampling in samplings(options.data)
        for lam in CORRELATIONS
    ]
    mechanisms: dict[str, Mechanism] = {}
    for seed in options.seeds:
        plain = base(options.data, options.root, seed)
        sites = SimulatedSites(plain, plain.streams())
        for cell in track(cells, description=f"{options.data}, seed {seed}"):
            for name, rule in rules(options.data).items():
                named = cell | {"rule": name, "seed": seed}
                if tuple(named[key] for key in _NAMES) in done:
                    continue
                key = json.dumps(cell)
                if key not in mechanisms:
                    mechanisms[key] = calibrated(plain, sites, **cell)
                clip = CLIPS.get(name, plain.privacy.l2_clip_norm)
                mechanism = replace(mechanisms[key], l2_clip_norm=clip)
                found = train(replace(plain, update=rule), sites, mechanism)
                row = named | {"kappa": mechanisms[key].noise_multiplier} | found
                with options.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")


_NAMES = ("data", "sampling", "correlation", "epsilon", "rule", "seed")


if __name__ == "__main__":
    main()
