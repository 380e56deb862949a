"""Where tensors live: on the CPU, or on a GPU where there is one."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed_kan._validate import check_choice

Device = Literal["cpu", "cuda"]
Precision = Literal["float64", "float32"]


def check_device(device: Device) -> None:
    """Refuse a device that this machine lacks.

    Raises:
        ValueError: If `device` is cuda and torch sees none.
    """
    check_choice("device", device, ("cpu", "cuda"))
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "runtime.device=cuda, but torch sees no CUDA device on this machine; install a CUDA "
            "build of torch where there is a GPU, or set runtime.device=cpu"
        )


def as_array(tensor: Tensor) -> NDArray[np.float64]:
    """Return a tensor as an array of its dtype on the CPU; without a copy if it is there."""
    return np.asarray(tensor.cpu().numpy())
