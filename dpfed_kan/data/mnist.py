"""MNIST from its IDX files: one digit against another, or all ten (LeCun et al., 1998)."""

from __future__ import annotations

import gzip
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpfed_kan._validate import check_choice, check_count
from dpfed_kan.data.files import first_of
from dpfed_kan.data.findings import DataError
from dpfed_kan.data.records import Records, concatenate
from dpfed_kan.privacy.clipping import Matrix
from dpfed_kan.streams import Streams

_WHAT = (
    "MNIST in IDX format, plain or .gz: train-images-idx3-ubyte, train-labels-idx1-ubyte, "
    "t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte, from http://yann.lecun.com/exdb/mnist/ or "
    "torchvision's mirror of it"
)
_UNSIGNED_BYTE = 0x08


@dataclass(frozen=True, kw_only=True)
class MNIST:
    """Two digits, or all ten as classes 0 to 9; the test files are held out.

    Args:
        root: The directory of the four files.
        all_digits: All ten, for model.loss=softmax with model.num_outputs=10; positive and
            negative then say nothing.
        positive: Digit that becomes +1.
        negative: Digit that becomes −1.
        num_train: Training records, drawn at random; null for all of the digits.
        pixel_scaling: `unit_interval`: [0, 1], as [KAN-SGD] has it, whose grid is [−1, 1] and
            ‖x‖₂ up to 28; `signed`: [−1, 1]/√d by the pixels' public range; `unit_norm`: each
            image divided by its own norm.
    """

    root: str
    all_digits: bool = False
    positive: int = 8
    negative: int = 3
    num_train: int | None = 5000
    pixel_scaling: Literal["unit_interval", "signed", "unit_norm"] = "unit_interval"

    def __post_init__(self) -> None:
        for name in ("positive", "negative"):
            if getattr(self, name) not in range(10):
                raise ValueError(f"expected {name}={getattr(self, name)} in {{0, ..., 9}}")
        if self.positive == self.negative:
            raise ValueError("expected two digits, positive and negative")
        if self.num_train is not None:
            check_count("num_train", self.num_train)
        check_choice("pixel_scaling", self.pixel_scaling, ("unit_interval", "signed", "unit_norm"))

    def load(self, streams: Streams) -> Records:
        """Read the files.

        Raises:
            DataError: If one is missing or no IDX file, or there are fewer training records.
        """
        train, test = self._part("train"), self._part("t10k")
        if self.num_train is not None:
            if self.num_train > len(train):
                raise DataError(
                    f"expected num_train={self.num_train} of at most {len(train)}, the training "
                    "records of the digits"
                )
            order = streams.generator("synthetic_data").permutation(len(train))
            train = train.take(np.sort(order[: self.num_train]))
        return concatenate([train, test])

    def _part(self, name: str) -> Records:
        images = _read_idx(self._file(f"{name}-images-idx3-ubyte"), num_axes=3)
        labels = _read_idx(self._file(f"{name}-labels-idx1-ubyte"), num_axes=1)
        if len(images) != len(labels):
            raise DataError(f"{self.root}: the {name} files hold unequal numbers of records")
        ours = (labels == self.positive) | (labels == self.negative) | self.all_digits
        chosen = np.flatnonzero(ours)
        signs = np.where(labels[chosen] == self.positive, 1.0, -1.0)
        pixels = images[chosen].reshape(len(chosen), -1).astype(np.float64)
        return Records(
            features=self._scaled(pixels),
            labels=labels[chosen].astype(np.float64) if self.all_digits else signs,
            feature_names=tuple(f"pixel {place}" for place in range(pixels.shape[1])),
            held_out=np.full(len(chosen), name == "t10k"),
            num_classes=10 if self.all_digits else 2,
        )

    def _scaled(self, pixels: Matrix) -> Matrix:
        match self.pixel_scaling:
            case "unit_interval":
                return pixels / 255
            case "signed":
                return (pixels / 127.5 - 1) / math.sqrt(pixels.shape[1])
            case "unit_norm":
                norms = np.linalg.norm(pixels, axis=1, keepdims=True)
                return np.asarray(pixels / np.where(norms > 0, norms, 1.0))

    def _file(self, name: str) -> Path:
        return first_of(self.root, (f"{name}.gz", name), what=_WHAT)


def _read_idx(path: Path, *, num_axes: int) -> NDArray[np.uint8]:
    """Return the array of an IDX file of unsigned bytes."""
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        magic, *shape = struct.unpack_from(f">I{num_axes}I", content)
        body = np.frombuffer(content, dtype=np.uint8, offset=4 * (1 + num_axes))
        if magic != (_UNSIGNED_BYTE << 8 | num_axes) or body.size != math.prod(shape):
            raise ValueError
        return body.reshape(shape)
    except (ValueError, struct.error, OSError, EOFError):
        raise DataError(
            f"{path} is not an IDX file of {num_axes} axes, or is cut short: {_WHAT}"
        ) from None
