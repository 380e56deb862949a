"""One process, the product's own clipping, noise and update rules; a line of JSON a run.

python -m simulations.macadam_mnist.train --root DIR --out results.jsonl
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from dpfed_kan.federated.site import draw_block
from dpfed_kan.privacy.accounting import account
from dpfed_kan.privacy.clipping import clip_and_sum
from dpfed_kan.privacy.mechanism import Mechanism
from dpfed_kan.privacy.noising import GaussianNoise
from dpfed_kan.privacy.sampling import Poisson
from dpfed_kan.privacy.transformed_clipping import clip_and_sum_transformed
from dpfed_kan.streams import Streams
from dpfed_kan.update.adaclip import AdaClip
from dpfed_kan.update.adam import DPAdam
from dpfed_kan.update.adam_bc import DPAdamBC
from dpfed_kan.update.macadam import DPMacAdam
from dpfed_kan.update.macadam_bc import DPMacAdamBC
from dpfed_kan.update.sgd import ProjectedSGD
from simulations.macadam_mnist.mnist import Digits, read_digits
from simulations.macadam_mnist.perceptron import Perceptron
from simulations.macadam_mnist.spline_network import SplineNetwork

BATCH_SIZE, EPOCHS, DELTA, CLIP = 256.0, 5, 1e-5, 1.0
Rule = ProjectedSGD | DPAdam | DPAdamBC | AdaClip | DPMacAdam | DPMacAdamBC
_PRINTED: dict[str, Any] = {"noise_variance": "paper", "bias_correction": "paper"}
_EXACT: dict[str, Any] = {"noise_variance": "ema", "bias_correction": "exact"}
KAN_RATE = {  # by `tune`, on held-out training images
    "sgd": 10.0,
    "adaclip": 100.0,
    "adam": 0.03,
    "adam_bc": 3e-4,
    "macadam": 3e-3,
    "macadam_bc": 1e-3,
    "macadam_exact": 3e-3,
    "macadam_bc_exact": 1e-3,
}
RULES: dict[str, Rule] = {
    "sgd": ProjectedSGD(learning_rate=0.1),
    "adam": DPAdam(learning_rate=1e-3),
    "adam_bc": DPAdamBC(learning_rate=1e-3),
    "adaclip": AdaClip(learning_rate=0.1),
    "macadam": DPMacAdam(learning_rate=1e-3, **_PRINTED),
    "macadam_bc": DPMacAdamBC(learning_rate=1e-3, phi="paper", **_PRINTED),
    "macadam_ema": DPMacAdam(learning_rate=1e-3, noise_variance="ema", bias_correction="paper"),
    "macadam_exact": DPMacAdam(learning_rate=1e-3, **_EXACT),
    "macadam_bc_exact": DPMacAdamBC(learning_rate=1e-3, phi="exact", **_EXACT),
    "macadam_example": DPMacAdam(learning_rate=1e-3, variance_of="example", **_EXACT),
}
MODELS: dict[str, Callable[[], Perceptron | SplineNetwork]] = {
    "mlp": Perceptron,
    "kan": SplineNetwork,
}


def sampling(num_records: int) -> Poisson:
    """Return batches of 256 expected."""
    return Poisson(sampling_prob=BATCH_SIZE / num_records)


def mechanism(num_records: int, sigma: float, epochs: float = EPOCHS) -> Mechanism:
    """Return what the account reads."""
    return Mechanism(
        sampling=sampling(num_records),
        noise=GaussianNoise(noise_multiplier=sigma),
        l2_clip_norm=CLIP,
        num_rounds=round(epochs * num_records / BATCH_SIZE),
    )


def train(
    name: str,
    *,
    model_name: str,
    sigma: float,
    seed: int,
    digits: tuple[Digits, Digits],
    epochs: float = EPOCHS,
    rate: float | None = None,
) -> dict[str, Any]:
    """Train one model and return what came of it; `rate` replaces the rule's learning rate."""
    data, test = digits
    plan, streams, model = (
        mechanism(len(data.classes), sigma, epochs),
        Streams.from_seed(seed),
        MODELS[model_name](),
    )
    if rate is None:
        rate = KAN_RATE[name] if model_name == "kan" else RULES[name].learning_rate
    rule = replace(RULES[name], learning_rate=rate)
    state = rule.start(model.start(streams.generator("initial_params")), num_rounds=plan.num_rounds)
    began, at_low = time.perf_counter(), []
    num_records = len(data.classes)
    poisson = sampling(num_records)
    block = poisson.rounds_at_once(num_records)
    for t in range(plan.num_rounds):
        if t % block == 0:
            drawn = draw_block(poisson, num_records=num_records, index=t // block, streams=streams)
        taken = drawn.of(t % block)
        batch = Digits(features=data.features[taken], classes=data.classes[taken])
        blocks = model.blocks(state.params, batch)
        if state.transform is None:
            total = clip_and_sum(blocks, l2_clip_norm=CLIP)
        else:
            total = clip_and_sum_transformed(blocks, transform=state.transform, l2_clip_norm=CLIP)
        release = plan.privatize(total, round_index=t, streams=streams)
        state = rule.step(state, release, batch_size=BATCH_SIZE)
        at_low.append(state.diagnostics.get("share_at_min_variance"))
    return {
        "model": model_name,
        "rule": name,
        "learning_rate": rate,
        "sigma": sigma,
        "seed": seed,
        "rounds": plan.num_rounds,
        "test_accuracy": model.accuracy(state.model_params, test),
        "share_at_min_variance": [at_low[-2], at_low[-1]],
        "seconds": round(time.perf_counter() - began, 1),
    }


def main() -> None:
    """Run what is asked for and not yet in the output file, seed after seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="folder of the MNIST files")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    parser.add_argument("--model", default="mlp", choices=list(MODELS))
    parser.add_argument("--rules", nargs="+", default=list(RULES), choices=list(RULES))
    parser.add_argument("--sigmas", nargs="+", type=float, default=[1.0, 0.6, 1.5])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    options = parser.parse_args()
    done = set()
    if options.out.exists():
        rows = [json.loads(line) for line in options.out.read_text().splitlines()]
        done = {(row["model"], row["rule"], row["sigma"], row["seed"]) for row in rows}
    digits = read_digits(options.root)
    epsilons = {
        sigma: account(mechanism(len(digits[0].classes), sigma), delta=DELTA).epsilon
        for sigma in options.sigmas
    }
    with threadpool_limits(1):
        for seed in options.seeds:
            for sigma in options.sigmas:
                for name in options.rules:
                    if (options.model, name, sigma, seed) in done:
                        continue
                    row = train(
                        name,
                        model_name=options.model,
                        sigma=sigma,
                        seed=seed,
                        digits=digits,
                    )
                    row["epsilon"] = epsilons[sigma]
                    with options.out.open("a") as file:
                        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
