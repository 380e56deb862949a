"""The ten digits, read from the four IDX files."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Digits:
    """Images in [0, 1] and classes 0..9.

    Args:
        features: Shape (n, 784).
        classes: Shape (n,), integers.
    """

    features: NDArray[np.float64]
    classes: NDArray[np.int64]


def read_digits(root: Path) -> tuple[Digits, Digits]:
    """Return the 60,000 training and the 10,000 test digits.

    Raises:
        ValueError: If a file is not where it should be.
    """
    train, test = (
        Digits(
            features=_read(root / f"{name}-images-idx3-ubyte.gz", 16).reshape(-1, 784) / 255.0,
            classes=_read(root / f"{name}-labels-idx1-ubyte.gz", 8).astype(np.int64),
        )
        for name in ("train", "t10k")
    )
    return train, test


def _read(path: Path, header: int) -> NDArray[np.uint8]:
    if not path.is_file():
        raise ValueError(f"expected {path}; give the folder of the MNIST files with --root")
    return np.frombuffer(gzip.decompress(path.read_bytes()), dtype=np.uint8, offset=header)
