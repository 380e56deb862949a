"""What a model is worth on held-out records: facts about records, and so not private."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.metrics import roc_auc_score

from dpfed_kan.kan.losses import mean_loss
from dpfed_kan.kan.shape import LossName
from dpfed_kan.privacy.clipping import Vector


@dataclass(frozen=True, kw_only=True)
class Utility:
    """Quality of a model on held-out records.

    Args:
        loss: Mean loss, the one that was trained on.
        accuracy: Share of right classes; None for regression.
        auc: Area under the ROC curve; None where only one class is present, or not two.
        base_rate: Accuracy of always naming the most frequent class; None for regression.
        num_records: Records it was measured on.
    """

    loss: float
    accuracy: float | None
    auc: float | None
    base_rate: float | None
    num_records: int


def evaluate(
    scores: Vector, labels: Vector, *, loss: LossName = "logistic", huber_delta: float = 1.0
) -> Utility:
    """Measure scores against labels.

    Args:
        scores: f(x), shape (n,), or (n, O) for O outputs.
        labels: −1 or +1, class numbers, or numbers; shape (n,).
        loss: What was trained on, which says what the labels are.
        huber_delta: δ of Huber.
    """
    if loss != "logistic":
        return _evaluate_other(scores, labels, loss=loss, huber_delta=huber_delta)
    positive = float((labels > 0).mean())
    auc = None if positive in (0.0, 1.0) else float(roc_auc_score(labels, scores))
    return Utility(
        loss=float(np.logaddexp(0.0, -labels * scores).mean()),
        accuracy=float(((scores > 0) == (labels > 0)).mean()),
        auc=auc,
        base_rate=max(positive, 1 - positive),
        num_records=len(labels),
    )


def _evaluate_other(
    scores: Vector, labels: Vector, *, loss: LossName, huber_delta: float
) -> Utility:
    softmax = loss == "softmax"
    right = scores.argmax(axis=1) == labels if softmax else np.zeros(0)
    counts = np.unique(labels, return_counts=True)[1]
    return Utility(
        loss=mean_loss(loss, scores, labels, huber_delta=huber_delta),
        accuracy=float(right.mean()) if softmax else None,
        auc=None,
        base_rate=float(counts.max() / len(labels)) if softmax else None,
        num_records=len(labels),
    )
