"""Learning rates for the KAN, which the paper has none for; the test images are not touched.

python -m simulations.macadam_mnist.tune --root DIR

Every rule trains on the first 55,000 training images for 2 epochs at σ = 1, one seed, and is
measured on the other 5,000.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from threadpoolctl import threadpool_limits

from simulations.macadam_mnist.mnist import Digits, read_digits
from simulations.macadam_mnist.train import train

_TRAINED, _SEED, _SIGMA, _EPOCHS = 55_000, 100, 1.0, 2.0
_RATES = {
    "sgd": (1.0, 3.0, 6.0, 10.0, 15.0, 30.0, 100.0),
    "adaclip": (3.0, 10.0, 30.0, 100.0, 200.0, 400.0),
    "adam": (0.01, 0.03, 0.1, 0.3),
    "adam_bc": (1e-4, 3e-4, 1e-3, 3e-3, 0.01),
    "macadam": (1e-3, 3e-3, 5e-3, 0.01, 0.03),
    "macadam_bc": (3e-4, 1e-3, 2e-3, 3e-3, 0.01),
}


def main() -> None:
    """Print one line a rule and rate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="folder of the MNIST files")
    parser.add_argument("--rules", nargs="+", default=list(_RATES), choices=list(_RATES))
    options = parser.parse_args()
    images = read_digits(options.root)[0]
    parts = [slice(None, _TRAINED), slice(_TRAINED, None)]
    kept, held_out = (
        Digits(features=images.features[part], classes=images.classes[part]) for part in parts
    )
    with threadpool_limits(1):
        for rule in options.rules:
            for rate in _RATES[rule]:
                row = train(
                    rule,
                    model_name="kan",
                    sigma=_SIGMA,
                    seed=_SEED,
                    digits=(kept, held_out),
                    epochs=_EPOCHS,
                    rate=rate,
                )
                accuracy = row["test_accuracy"]
                print(f"{rule:12s} {rate:7g} {accuracy:.4f} {row['seconds']} s", flush=True)


if __name__ == "__main__":
    main()
