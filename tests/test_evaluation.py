import math

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, log_loss

from dpfed_kan.evaluation import evaluate


def test_figures_equal_those_of_the_library() -> None:
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=300), np.sign(rng.normal(size=300) + 0.4)
    found = evaluate(scores, labels)
    prob = 1 / (1 + np.exp(-scores))
    assert found.loss == pytest.approx(log_loss(labels, prob), rel=1e-9)
    assert found.accuracy == pytest.approx(accuracy_score(labels, np.where(scores > 0, 1, -1)))
    pairs = scores[labels > 0][:, None] > scores[labels < 0][None]
    assert found.auc == pytest.approx(pairs.mean(), rel=1e-9)
    assert found.base_rate == max((labels > 0).mean(), (labels < 0).mean())
    assert found.num_records == 300


def test_the_auc_of_one_class_is_undefined_and_says_so() -> None:
    found = evaluate(np.array([1.0, -1.0]), np.array([1.0, 1.0]))
    assert found.auc is None
    assert found.base_rate == 1.0


def test_a_confident_mistake_has_a_finite_loss() -> None:
    assert evaluate(np.array([1e6]), np.array([-1.0])).loss == 1e6
    assert math.isfinite(evaluate(np.array([-1e308]), np.array([1.0])).loss)
