"""Small experiments that run in a second or two."""

from collections.abc import Callable
from typing import Any

import pytest

from dpfed_kan.config import build


def _experiment(**changes: Any) -> Any:
    """A seeded synthetic experiment of ten rounds; dotted changes, `__` for a dot."""
    config: dict[str, Any] = {
        "_target_": "dpfed_kan.experiment.Experiment",
        "num_rounds": 10,
        "seed": 0,
        "data": {
            "_target_": "dpfed_kan.data.federation.FederatedData",
            "source": {
                "_target_": "dpfed_kan.data.synthetic.SyntheticLogistic",
                "num_records": 200,
                "input_dim": 3,
            },
            "partition": {"_target_": "dpfed_kan.data.federation.IID", "num_sites": 3},
        },
        "model": {"_target_": "dpfed_kan.kan.shape.TwoLayerKAN", "hidden_width": 4},
        "sampling": {"_target_": "dpfed_kan.privacy.sampling.Poisson", "sampling_prob": 0.3},
        "noise": {
            "_target_": "dpfed_kan.privacy.noising.GaussianNoise",
            "noise_multiplier": 2.0,
            "correlation": 0.5,
        },
        "privacy": {
            "_target_": "dpfed_kan.experiment.PrivacySettings",
            "l2_clip_norm": 0.3,
            "target_epsilon": None,
            "target_delta": 1e-3,
        },
        "update": {"_target_": "dpfed_kan.update.sgd.ProjectedSGD", "learning_rate": 5.0},
        "runtime": {"_target_": "dpfed_kan.federated.runtimes.InProcess"},
    }
    for name, value in changes.items():
        node = config
        *path, last = name.split("__")
        for key in path:
            node = node[key]
        node[last] = value
    return build(config)


@pytest.fixture
def experiment() -> Callable[..., Any]:
    return _experiment
