"""Quality at each site: intervals that cover, and an AUC that is undefined where it must be."""

import math

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, roc_auc_score

from dpfed_kan.assessment import SMALLEST_BIN, assess, auc_interval, quality


def drawn(rng: np.random.Generator, num: int) -> tuple[np.ndarray, np.ndarray]:
    labels = np.where(rng.random(num) < 0.4, 1.0, -1.0)
    return labels * 0.6 + rng.normal(size=num), labels


def test_the_measures_are_those_of_the_libraries() -> None:
    scores, labels = drawn(np.random.default_rng(0), 300)
    found = quality(scores, labels)
    prob = 1 / (1 + np.exp(-scores))
    assert found.auc == pytest.approx(roc_auc_score(labels, scores))
    assert found.brier == pytest.approx(brier_score_loss(labels > 0, prob))
    bins = np.digitize(prob, np.linspace(0, 1, 11)[1:-1])
    gaps = [
        (bins == k).mean() * abs((prob[bins == k] - (labels[bins == k] > 0)).mean())
        for k in np.unique(bins)
    ]
    assert found.calibration_error == pytest.approx(sum(gaps))
    low, high = found.accuracy_interval
    p, z, n = found.accuracy, 1.959963984540054, 300
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    assert (low, high) == pytest.approx((middle - half, middle + half))


def test_the_interval_of_the_auc_covers_the_truth_and_is_no_wider_than_a_bootstrap() -> None:
    rng = np.random.default_rng(1)
    truth = roc_auc_score(*reversed(drawn(np.random.default_rng(2), 200_000)))
    intervals = np.array([auc_interval(*drawn(rng, 80)) for _ in range(1000)])
    covered = ((intervals[:, 0] <= truth) & (truth <= intervals[:, 1])).mean()
    assert 0.925 < covered < 0.975
    scores, labels = drawn(rng, 80)
    again = rng.integers(80, size=(2000, 80))
    aucs = [roc_auc_score(labels[i], scores[i]) for i in again if len(set(labels[i])) == 2]
    low, high = auc_interval(scores, labels)
    assert high - low == pytest.approx(
        float(np.diff(np.quantile(aucs, [0.025, 0.975]))[0]), rel=0.2
    )


def test_perfect_and_tiny_samples_have_an_interval_too() -> None:
    assert auc_interval(np.array([2.0, 1.0, -1.0, -2.0]), np.array([1.0, 1, -1, -1])) == (0.0, 1.0)
    assert auc_interval(np.array([2.0, 1.0, -1.0]), np.array([-1.0, 1, -1])) == (0.0, 1.0)
    assert quality(np.array([1e9]), np.array([1.0])).brier == 0.0


def test_an_undefined_auc_is_left_out_of_the_mean_with_the_count() -> None:  # D06
    rng = np.random.default_rng(3)
    scores, labels = drawn(rng, 60)
    labels[40:] = -1.0
    sites = np.array(["a"] * 40 + ["b"] * 20)
    found = assess(scores, labels, sites)
    assert found.per_site["b"].auc is None
    assert found.per_site["b"].auc_reason == "undefined: only one class is present"
    assert found.mean_auc == found.per_site["a"].auc
    assert found.num_sites_with_auc == 1
    assert found.mean_accuracy == pytest.approx(
        (found.per_site["a"].accuracy + found.per_site["b"].accuracy) / 2
    )
    assert assess(scores, labels, None).per_site == {}


def test_the_reliability_curve_is_that_of_the_library() -> None:
    scores, labels = drawn(np.random.default_rng(4), 2000)
    found = assess(scores, labels, None).reliability
    prob = 1 / (1 + np.exp(-scores))
    frequency, mean = calibration_curve(labels > 0, prob, n_bins=10)
    sizes = np.histogram(prob, bins=10, range=(0, 1))[0]
    shown = sizes[sizes > 0] >= SMALLEST_BIN
    assert not shown.all() or len(found) == len(frequency)
    assert [each.frequency for each in found] == pytest.approx(frequency[shown])
    assert [each.mean_probability for each in found] == pytest.approx(mean[shown])
    assert [each.num_records for each in found] == sizes[sizes >= SMALLEST_BIN].tolist()


def test_a_bin_of_few_records_is_not_shown() -> None:
    scores = np.array([-3.0] * SMALLEST_BIN + [3.0] * (SMALLEST_BIN - 1))
    labels = np.where(scores > 0, 1.0, -1.0)
    (only,) = assess(scores, labels, None).reliability
    assert (only.num_records, only.frequency) == (SMALLEST_BIN, 0.0)
    assert only.low <= only.mean_probability <= only.high
