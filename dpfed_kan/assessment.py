"""What a final model is worth at each site and over all: facts about records, so not private."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest, norm, rankdata

from dpfed_kan.evaluation import Utility, evaluate
from dpfed_kan.kan.shape import LossName
from dpfed_kan.privacy.clipping import Vector

Interval = tuple[float, float]
CONFIDENCE = 0.95
SMALLEST_BIN = 5  # records of a bin of the reliability curve that is shown
_BINS = 10
_ONE_CLASS = "undefined: only one class is present"
_NOT_TWO_CLASSES = "undefined: the labels are not two classes"


@dataclass(frozen=True, kw_only=True)
class Quality:
    """A model on some records; what its kind of label does not have is None.

    Args:
        num_records: Records it was measured on.
        accuracy: Share of right signs.
        accuracy_interval: 95 % (Wilson).
        base_rate: Accuracy of always naming the more frequent class.
        auc: Area under the ROC curve; None where undefined.
        auc_interval: 95 % (DeLong, on the logit); None where undefined.
        auc_reason: Why there is no AUC; None where there is.
        loss: Mean loss, the one that was trained on.
        brier: Mean squared error of the probabilities.
        calibration_error: Mean gap of probability and frequency over ten equal bins, by records.
    """

    num_records: int
    accuracy: float | None
    accuracy_interval: Interval | None
    base_rate: float | None
    auc: float | None
    auc_interval: Interval | None
    auc_reason: str | None
    loss: float
    brier: float | None
    calibration_error: float | None


@dataclass(frozen=True, kw_only=True)
class ReliabilityBin:
    """Records whose probabilities fall into one tenth of [0, 1].

    Args:
        low: The tenth's lower end.
        high: Its upper end.
        num_records: Records in it.
        mean_probability: Of +1, as the model says.
        frequency: Share of +1 among them.
        frequency_interval: 95 % (Wilson).
    """

    low: float
    high: float
    num_records: int
    mean_probability: float
    frequency: float
    frequency_interval: Interval


@dataclass(frozen=True, kw_only=True)
class Assessment:
    """Over all held-out records, and at each site where it is known whose they are.

    Args:
        pooled: Over all.
        per_site: Site name to its own; empty where records were held out before they were dealt
            to sites.
        mean_accuracy: Over the sites, each counted once; None without sites.
        mean_auc: Over the sites that have one.
        num_sites_with_auc: How many those are.
        reliability: Over all, the bins that hold `SMALLEST_BIN` records or more; empty where
            labels are not two classes.
    """

    pooled: Quality
    per_site: Mapping[str, Quality]
    mean_accuracy: float | None
    mean_auc: float | None
    num_sites_with_auc: int
    reliability: tuple[ReliabilityBin, ...] = ()


def assess(
    scores: Vector,
    labels: Vector,
    sites: NDArray[np.str_] | None,
    *,
    loss: LossName = "logistic",
    huber_delta: float = 1.0,
) -> Assessment:
    """Measure scores against labels, over all and site by site.

    Args:
        scores: f(x), shape (n,), or (n, O) for O outputs.
        labels: −1 or +1, class numbers, or numbers; shape (n,).
        sites: Site names, shape (n,), or None.
        loss: What was trained on, which says what the labels are.
        huber_delta: δ of Huber.
    """

    def on(rows: NDArray[np.bool_]) -> Quality:
        return quality(scores[rows], labels[rows], loss=loss, huber_delta=huber_delta)

    names = [] if sites is None else [str(name) for name in np.unique(sites)]
    per_site = {name: on(np.asarray(sites == name)) for name in names}
    aucs = [found.auc for found in per_site.values() if found.auc is not None]
    return Assessment(
        pooled=on(np.ones(len(labels), dtype=np.bool_)),
        per_site=per_site,
        mean_accuracy=_mean([q.accuracy for q in per_site.values() if q.accuracy is not None]),
        mean_auc=_mean(aucs),
        num_sites_with_auc=len(aucs),
        reliability=_reliability(scores, labels > 0) if loss == "logistic" else (),
    )


def quality(
    scores: Vector, labels: Vector, *, loss: LossName = "logistic", huber_delta: float = 1.0
) -> Quality:
    """Measure scores against labels, with confidence intervals."""
    utility = evaluate(scores, labels, loss=loss, huber_delta=huber_delta)
    if loss != "logistic":
        return _of_other_labels(utility)
    positive = labels > 0
    prob = _probabilities(scores)
    return Quality(
        num_records=utility.num_records,
        accuracy=utility.accuracy,
        accuracy_interval=_wilson(utility),
        base_rate=utility.base_rate,
        auc=utility.auc,
        auc_interval=None if utility.auc is None else auc_interval(scores, labels),
        auc_reason=_ONE_CLASS if utility.auc is None else None,
        loss=utility.loss,
        brier=float(np.square(prob - positive).mean()),
        calibration_error=_calibration_error(prob, positive),
    )


def _of_other_labels(utility: Utility) -> Quality:
    return Quality(
        num_records=utility.num_records,
        accuracy=utility.accuracy,
        accuracy_interval=_wilson(utility),
        base_rate=utility.base_rate,
        auc=None,
        auc_interval=None,
        auc_reason=_NOT_TWO_CLASSES,
        loss=utility.loss,
        brier=None,
        calibration_error=None,
    )


def _wilson(utility: Utility) -> Interval | None:
    if utility.accuracy is None:
        return None
    return _share_interval(round(utility.accuracy * utility.num_records), utility.num_records)


def _share_interval(count: int, of: int) -> Interval:
    found = binomtest(count, of).proportion_ci(CONFIDENCE, method="wilson")
    return float(found.low), float(found.high)


def auc_interval(scores: Vector, labels: Vector) -> Interval:
    """Return DeLong's interval for the AUC, on the logit so that it stays in [0, 1].

    DeLong, DeLong, Clarke-Pearson (1988), by ranks as Sun and Xu (2014). An AUC of 0 or 1, or a
    class of one record, has no variance to speak of: the interval is then [0, 1].
    """
    positive, negative = scores[labels > 0], scores[labels < 0]
    m, n = len(positive), len(negative)
    joint = rankdata(np.concatenate([positive, negative]))
    over_positive = (joint[:m] - rankdata(positive)) / n
    over_negative = 1 - (joint[m:] - rankdata(negative)) / m
    auc = float(over_positive.mean())
    if min(m, n) < 2 or auc in (0.0, 1.0):
        return 0.0, 1.0
    std = math.sqrt(over_positive.var(ddof=1) / m + over_negative.var(ddof=1) / n)
    middle = math.log(auc / (1 - auc))
    half = float(norm.ppf((1 + CONFIDENCE) / 2)) * std / (auc * (1 - auc))
    return _sigmoid(middle - half), _sigmoid(middle + half)


def _calibration_error(prob: Vector, positive: NDArray[np.bool_]) -> float:
    gaps = np.bincount(_bins(prob), weights=prob - positive, minlength=_BINS)
    return float(np.abs(gaps).sum() / len(prob))


def _reliability(scores: Vector, positive: NDArray[np.bool_]) -> tuple[ReliabilityBin, ...]:
    prob = _probabilities(scores)
    bins = _bins(prob)
    found = []
    for place in range(_BINS):
        here = bins == place
        num, num_positive = int(here.sum()), int(positive[here].sum())
        if num < SMALLEST_BIN:
            continue
        found.append(
            ReliabilityBin(
                low=place / _BINS,
                high=(place + 1) / _BINS,
                num_records=num,
                mean_probability=float(prob[here].mean()),
                frequency=num_positive / num,
                frequency_interval=_share_interval(num_positive, num),
            )
        )
    return tuple(found)


def _probabilities(scores: Vector) -> Vector:
    return np.asarray(1 / (1 + np.exp(-np.clip(scores, -700, 700))))


def _bins(prob: Vector) -> NDArray[np.intp]:
    return np.minimum((prob * _BINS).astype(np.intp), _BINS - 1)


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-max(-700.0, min(700.0, x))))
