"""The losses, their slopes in the outputs f(x), and the labels that each can take.

logistic log(1 + e^{-yf}); softmax cross entropy over O classes; squared (f−y)²/2; Huber, which is
squared up to |f−y| = δ and linear beyond. No bounded slope is needed: clipping bounds it.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed_kan.kan.shape import LossName

Array = NDArray[np.float64]


def loss_slope(loss: LossName, outputs: Tensor, labels: Tensor, *, huber_delta: float) -> Tensor:
    """Return dℓ/df per example.

    Args:
        loss: Which.
        outputs: f(x), shape (n, O), float64; it is overwritten.
        labels: Shape (n,), or (n, O) for squared and Huber with O > 1.
        huber_delta: δ of Huber.

    Returns:
        Shape (n, O). It neither overflows nor cancels.
    """
    if loss == "logistic":
        margins = outputs[:, 0].mul_(labels)
        return torch.sigmoid(margins.neg_()).mul_(labels).neg_()[:, None]
    if loss == "softmax":
        residual = torch.softmax(outputs, dim=1)
        residual[torch.arange(len(labels), device=labels.device), labels.long()] -= 1.0
        return residual
    residual = outputs - labels.reshape(outputs.shape)
    return residual if loss == "squared" else residual.clamp_(-huber_delta, huber_delta)


def mean_loss(loss: LossName, outputs: Array, labels: Array, *, huber_delta: float) -> float:
    """Return the mean loss of outputs of shape (n,) or (n, O)."""
    if loss == "logistic":
        return float(np.logaddexp(0.0, -labels * outputs).mean())
    if loss == "softmax":
        shifted = outputs - outputs.max(axis=1, keepdims=True)
        right = shifted[np.arange(len(labels)), labels.astype(np.intp)]
        return float((np.log(np.exp(shifted).sum(axis=1)) - right).mean())
    gap = np.abs(outputs - labels).reshape(len(labels), -1)
    halves = np.square(gap) / 2
    if loss == "huber":
        halves = np.where(gap > huber_delta, huber_delta * (gap - huber_delta / 2), halves)
    return float(halves.sum(axis=1).mean())


def checked_labels(loss: LossName, labels: Array, *, num_records: int, num_outputs: int) -> Array:
    """Return the labels as float64.

    Raises:
        ValueError: If shape, dtype or a value does not fit the loss; row numbers, no values.
    """
    wide = num_outputs > 1 and loss in ("squared", "huber")
    shape = (num_records, num_outputs) if wide else (num_records,)
    if labels.shape != shape or labels.dtype.kind not in "fiu":
        raise ValueError(
            f"expected numeric labels of shape {shape}, got {labels.shape} of dtype {labels.dtype}"
        )
    converted = labels.astype(np.float64, copy=False)
    if loss == "logistic":
        wanted, fits = "-1 or +1", np.abs(converted) == 1.0
    elif loss == "softmax":
        wanted = f"a class number in 0..{num_outputs - 1}"
        fits = (converted >= 0) & (converted < num_outputs) & (converted == np.floor(converted))
    else:
        wanted, fits = "finite", np.isfinite(converted).reshape(num_records, -1).all(axis=1)
    bad = np.flatnonzero(~fits)
    if len(bad) > 0:
        raise ValueError(
            f"expected every label to be {wanted}; the one at row_index={int(bad[0])} is not "
            f"({len(bad)} of {num_records} rows); map the classes when reading"
        )
    return converted
