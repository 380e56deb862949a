"""What travels of a study: all that sites need, and nothing of the server's own."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dpfed_kan.deployment.study import Study, study_of

RUN = "12" * 16


def test_a_study_comes_back_equal_and_leaves_the_servers_paths_behind(trial):
    frozen = np.array([0.1, -1e-300, 3.0])
    study = Study(experiment=trial.channel(), run_id=RUN, frozen=frozen)
    text = study.settings()
    back = study_of(text)
    assert back.settings() == text
    assert back.frozen.tobytes() == frozen.tobytes()
    assert back.experiment.sampling == study.experiment.sampling
    assert back.experiment.data == study.experiment.data
    assert str(trial.directory) not in text
    assert back.runtime.channel_key is None


@pytest.mark.parametrize(
    "settings",
    [
        "{}",
        "[]",
        "not json",
        json.dumps({"experiment": {}, "key": "00" * 32, "seeded": True}),
        json.dumps(
            {"study": {"_target_": "os.system"}, "run_id": RUN, "frozen": "", "num_records": None}
        ),
    ],
)
def test_settings_of_anything_else_are_refused(settings):
    with pytest.raises(ValueError):
        study_of(settings)


def test_a_simulation_is_no_study(trial):
    with pytest.raises(ValueError, match="data=at_sites and runtime=deployed"):
        Study(experiment=trial.simulated(), run_id=RUN, frozen=np.zeros(0))
    with pytest.raises(ValueError, match="held_out_by=site"):
        Study(experiment=trial.deployed("data.held_out_by=pool"), run_id=RUN, frozen=np.zeros(0))
