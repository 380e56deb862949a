"""What a model is worth on held-out records: facts about records, and so not private."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.metrics import roc_auc_score

from dpfed_kan.privacy.clipping import Vector


@dataclass(frozen=True, kw_only=True)
class Utility:
    """Quality of a binary classifier on held-out records.

    Args:
        loss: Mean logistic loss.
        accuracy: Share of right signs.
        auc: Area under the ROC curve; None where only one class is present.
        base_rate: Accuracy of always naming the more frequent class.
        num_records: Records it was measured on.
    """

    loss: float
    accuracy: float
    auc: float | None
    base_rate: float
    num_records: int


def evaluate(scores: Vector, labels: Vector) -> Utility:
    """Measure scores against labels.

    Args:
        scores: f(x), shape (n,).
        labels: −1 or +1, shape (n,).
    """
    positive = float((labels > 0).mean())
    auc = None if positive in (0.0, 1.0) else float(roc_auc_score(labels, scores))
    return Utility(
        loss=float(np.logaddexp(0.0, -labels * scores).mean()),
        accuracy=float(((scores > 0) == (labels > 0)).mean()),
        auc=auc,
        base_rate=max(positive, 1 - positive),
        num_records=len(labels),
    )
