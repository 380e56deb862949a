"""The losses per example, in torch: `kan.losses` has their slopes and checks their labels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from dpfed_kan.models.spec import TorchModel


def losses_of(model: TorchModel, outputs: Tensor, labels: Tensor) -> Tensor:
    """Return ℓ per example, shape (n,).

    Args:
        model: Names the loss.
        outputs: Shape (n, O).
        labels: Shape (n,), or (n, O) for squared and Huber with O > 1.
    """
    if model.loss == "logistic":
        return functional.softplus(-labels * outputs[:, 0], threshold=100.0)
    if model.loss == "softmax":
        classes = torch.arange(model.num_outputs, device=outputs.device)
        right = (labels[:, None] == classes).to(outputs.dtype)
        return torch.logsumexp(outputs, dim=1) - (outputs * right).sum(dim=1)
    gap = outputs - labels.reshape(outputs.shape)
    if model.loss == "squared":
        return gap.square().sum(dim=1) / 2
    wanted = torch.zeros_like(gap)
    return functional.huber_loss(gap, wanted, reduction="none", delta=model.huber_delta).sum(dim=1)
