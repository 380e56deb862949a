"""A module's parameters by name as flat vectors: the trainable ones travel, the rest stays home.

`state_dict()` never travels: it carries buffers, which can hold statistics of records.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Vector = NDArray[np.float64]
Layout = tuple[tuple[str, tuple[int, ...]], ...]


def trainable_layout(module: nn.Module) -> Layout:
    """Return name and shape of each parameter with requires_grad, in the order of the vector."""
    return tuple((n, tuple(p.shape)) for n, p in module.named_parameters() if p.requires_grad)


def frozen_layout(module: nn.Module) -> Layout:
    """Return name and shape of what stays home: frozen parameters, and buffers of numbers."""
    frozen = [(n, p) for n, p in module.named_parameters() if not p.requires_grad]
    buffers = [(n, b) for n, b in module.named_buffers() if b.is_floating_point()]
    return tuple((n, tuple(t.shape)) for n, t in (*frozen, *buffers))


def flatten(module: nn.Module, layout: Layout) -> Vector:
    """Return the tensors of a layout as one float64 vector."""
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    parts = [tensors[name].detach().double().cpu().numpy().ravel() for name, _ in layout]
    return np.concatenate([np.zeros(0), *parts])


def unflatten(vector: Vector, layout: Layout, *, device: str) -> dict[str, Tensor]:
    """Return the tensors of a layout by name.

    Raises:
        ValueError: If the vector has another length or dtype.
    """
    sizes = [math.prod(shape) for _, shape in layout]
    if vector.shape != (sum(sizes),) or vector.dtype != np.float64:
        raise ValueError(
            f"expected parameters of shape ({sum(sizes)},) and dtype float64, got {vector.shape} "
            f"and {vector.dtype}"
        )
    whole = torch.tensor(vector, device=device)
    parts = torch.split(whole, sizes)
    return {name: part.reshape(s) for (name, s), part in zip(layout, parts, strict=True)}


def load_frozen(module: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Write frozen parameters and buffers into a module."""
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    with torch.no_grad():
        for name, value in values.items():
            tensors[name].copy_(value)
