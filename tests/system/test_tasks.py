"""More than two classes, and regression, through whole runs."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfed_kan.data.records import Records
from dpfed_kan.page.page import as_page
from dpfed_kan.report import as_json
from dpfed_kan.run import run
from dpfed_kan.streams import Streams
from tests.system.page_reading import read

NONE = {"_target_": "dpfed_kan.privacy.noising.NoNoise"}


@dataclass(frozen=True, kw_only=True)
class Toy:
    num_classes: int | None

    def load(self, streams: Streams) -> Records:
        rng = streams.generator("synthetic_data")
        features = rng.uniform(-0.5, 0.5, (240, 3))
        labels = 2.0 * features[:, 0]
        if self.num_classes is not None:
            labels = np.floor((features[:, 0] + 0.5) * self.num_classes)
        return Records(
            features=features,
            labels=labels,
            feature_names=("a", "b", "c"),
            num_classes=self.num_classes,
        )


def of(experiment: Callable[..., Any], num_classes: int | None, **model: Any) -> Any:
    base = experiment(num_rounds=30, update__learning_rate=20.0, noise=NONE)
    return replace(
        base,
        data=replace(base.data, source=Toy(num_classes=num_classes)),
        model=replace(base.model, input_grid=0.6, **model),
        privacy=replace(base.privacy, l2_clip_norm=0.5),
    )


@pytest.mark.parametrize("trained", [False, True])
def test_three_classes_are_learned(
    tmp_path: Path, experiment: Callable[..., Any], trained: bool
) -> None:
    settings = {"num_outputs": 3, "loss": "softmax", "train_second_layer": trained}
    result = run(of(experiment, 3, **settings), tmp_path)
    utility = result.assessment.pooled
    assert utility.accuracy is not None
    assert utility.base_rate is not None
    assert utility.accuracy > utility.base_rate + 0.15
    report = as_json(result)
    assert report["diagnostics_not_private"]["auc"] is None
    page = read(as_page(report)).by_id("utility").text()
    assert "AUC, calibration error and loss" in page
    assert "not defined" in page


@pytest.mark.parametrize("loss", ["squared", "huber"])
def test_a_number_is_predicted(tmp_path: Path, experiment: Callable[..., Any], loss: str) -> None:
    result = run(of(experiment, None, loss=loss), tmp_path)
    labels = Toy(num_classes=None).load(Streams.from_seed(0)).labels
    assert result.assessment.pooled.loss < labels.var() / 2
    assert result.assessment.pooled.accuracy is None
    captions = [c.text() for c in read(as_page(as_json(result))).all("figcaption")]
    assert any(caption.startswith("Loss on held-out") for caption in captions)
    assert not any("ccuracy" in caption for caption in captions)


@pytest.mark.parametrize(
    ("num_classes", "model"),
    [(3, {}), (None, {}), (3, {"num_outputs": 4, "loss": "softmax"}), (3, {"loss": "squared"})],
)
def test_a_loss_for_other_labels_is_refused_before_anything_is_written(
    tmp_path: Path, experiment: Callable[..., Any], num_classes: Any, model: Any
) -> None:
    with pytest.raises(ValueError, match="is for other labels"):
        run(of(experiment, num_classes, **model), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_gpu_that_is_not_there_is_refused_before_anything_is_written(
    tmp_path: Path, experiment: Callable[..., Any]
) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ValueError, match=r"runtime\.device=cuda, but torch sees no CUDA"):
        run(experiment(runtime__device="cuda"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
