from __future__ import annotations

import numpy as np

from dpfed_kan.flower_app import compose
from dpfed_kan.run import run

SETTINGS = (
    "seed=1 num_rounds=6 sampling=full_batch evaluate_every=100 data.min_records=1 "
    "noise.noise_multiplier=5.0 privacy.target_epsilon=null"
)


def final_state(num_sites, directory):
    experiment = compose(f"{SETTINGS} partition.num_sites={num_sites}")
    return run(experiment, directory / str(num_sites)).directory.load_checkpoint()


def test_one_site_learns_what_four_sites_learn_from_the_same_records(tmp_path):
    one, four, many = (final_state(num_sites, tmp_path) for num_sites in (1, 4, 40))
    assert np.abs(one.params - one.initial_params).max() > 0.1
    for other in (four, many):
        assert np.abs(one.params - other.params).max() <= 1e-12
        assert one.params.tobytes() != other.params.tobytes()  # another order of addition
