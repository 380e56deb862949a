"""What a site's shard must look like: refusals name a position and never show a value."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dpfed_kan.kan import KANGradients, TwoLayerKAN


def shard(n: int, d: int) -> tuple[KANGradients, np.ndarray]:
    model, rng = TwoLayerKAN(), np.random.default_rng(0)
    params = model.initialize(d, rng)
    features, labels = rng.uniform(-1, 1, size=(n, d)), rng.choice([-1.0, 1.0], n)
    site = KANGradients(model=model, frozen=params.frozen, features=features, labels=labels)
    return site, params.trainable


SECRET = 0.123456789


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        ([[SECRET, 1.0], [SECRET, math.nan]], [1.0, -1.0], "row_index=1, column_index=1 .*1 of 4"),
        ([[math.inf, 1.0], [0.0, -math.inf]], [1.0, -1.0], "row_index=0, column_index=0 .*2 of 4"),
        ([[SECRET, 1.0], [0.0, 0.0]], [1.0, SECRET], "row_index=1 is not .*1 of 2"),
        ([[SECRET, 1.0], [0.0, 0.0]], [1.0, 0.0], "-1 or \\+1"),
        ([[SECRET, 1.0], [0.0, 0.0]], [math.nan, 1.0], "row_index=0 is not"),
        ([[SECRET, 1.0], [0.0, 0.0]], [1.0], r"labels of shape \(2,\), got \(1,\)"),
        ([[SECRET, 1.0], [0.0, 0.0]], [[1.0], [1.0]], r"labels of shape \(2,\), got \(2, 1\)"),
        ([[SECRET, 1.0], [0.0, 0.0]], [True, True], "numeric labels"),
        ([SECRET, 1.0], [1.0, 1.0], "numeric features of shape"),
        ([[], []], [1.0, 1.0], "n, d >= 1"),
        ([["0.123456789"]], [1.0], "numeric features"),
        ([[SECRET, 1.0, 2.0]], [1.0], "frozen parameters"),
    ],
)
def test_bad_records_are_refused_by_position_and_never_shown(
    features: list[Any], labels: list[Any], message: str
) -> None:
    frozen = np.zeros(7 if np.shape(features)[-1] == 3 else 48)
    with pytest.raises(ValueError, match=message) as refusal:
        KANGradients(
            model=TwoLayerKAN(),
            frozen=frozen,
            features=np.array(features),
            labels=np.array(labels),
        )
    assert str(SECRET)[:6] not in str(refusal.value)  # numpy prints fewer digits


def test_the_repr_shows_no_record() -> None:
    site, _ = shard(3, 2)
    assert "features" not in repr(site)
    assert "labels" not in repr(site)


@pytest.mark.parametrize(
    "indices",
    [
        np.array([0, 4]),
        np.array([-1]),
        np.array([[0]]),
        np.array([0.0]),
        np.array([True, False, True, True]),
    ],
)
def test_indices_outside_the_shard_are_refused(indices: np.ndarray) -> None:
    site, params = shard(4, 2)
    with pytest.raises(ValueError, match="ind"):
        site.blocks(params, indices)


def test_params_of_another_shape_or_dtype_are_refused() -> None:
    site, params = shard(4, 2)
    wrongs: list[Any] = [params[:-1], params.reshape(1, -1), params.astype(np.float32)]
    for wrong in wrongs:
        with pytest.raises(ValueError, match=r"trainable parameters of shape \(96,\)"):
            site.blocks(wrong, np.arange(4))
        with pytest.raises(ValueError, match=r"trainable parameters of shape \(96,\)"):
            site.loss_and_scores(wrong)
