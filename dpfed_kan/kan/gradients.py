"""What one site computes on its shard: per-example gradients as outer products.

First layer: g_i = a_i ⊗ φ(x_i), a_ij = ℓ'(z_i) y_i (m d)^{-1/2} σ'(u_ij) Σ_k c_jk b'_k(h_ij).
Second layer, if trained: g_i = ℓ'(z_i) y_i ⊗ m^{-1/2} b(h_i). No per-example gradient is ever
materialized. The loss is ℓ(z) = log(1 + e^{-z}) at z = y f(x); [KAN-SGD], arXiv 2605.12648.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed_kan.kan.model import (
    TwoLayerKAN,
    activation_slope,
    as_tensor,
    expand_inputs,
    hidden_units,
    split_params,
)
from dpfed_kan.kan.splines import UnitSplines, unit_splines
from dpfed_kan.privacy.clipping import GradientBlock

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class KANGradients:
    """A model on one shard; φ is computed on first use and kept, 8·n·d·p bytes.

    Guarantees:
        The arithmetic is float64 whatever the dtype of the features. Errors and `repr` show
        positions and counts, never a value. A record's factors depend on that record alone, up
        to the rounding of a matrix product.

    Args:
        model: The shape of the network.
        frozen: c, shape (m·p,), float64, or empty if c is trained.
        features: Shape (n, d), n ≥ 1, finite; float32 and integers are cast once.
        labels: Shape (n,), each -1 or +1.

    Raises:
        ValueError: If an array has the wrong shape or dtype, a feature is not finite, or a label
            is not ±1.
    """

    model: TwoLayerKAN
    frozen: Vector = field(repr=False)
    features: Matrix = field(repr=False)
    labels: Vector = field(repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", _checked_features(self.features))
        object.__setattr__(self, "labels", _checked_labels(self.labels, len(self.features)))
        split_params(self.model, np.zeros(self.num_params), self.frozen, self.input_dim)

    @property
    def input_dim(self) -> int:
        """The number of features, d."""
        return int(self.features.shape[1])

    @property
    def num_params(self) -> int:
        """The number of trainable parameters, D."""
        return self.model.num_params(self.input_dim)

    def blocks(self, params: Vector, indices: NDArray[np.intp]) -> tuple[GradientBlock, ...]:
        """Compute the gradients of some records' losses, one block per trained layer.

        Non-finite parameters give non-finite gradients, which clipping counts as zero.

        Args:
            params: Shape (D,), float64.
            indices: Shape (B,), integers in [0, n); B may be 0 and an index may repeat.

        Returns:
            First layer: left (B, m), right (B, d·p). Second layer, if trained: left (B, 1),
            right (B, m·p). The arrays are new: later calls do not overwrite them.

        Raises:
            ValueError: If `params` or `indices` has the wrong shape, dtype or range.
        """
        model = self.model
        first_layer, second_layer = self._split(params)
        rows = as_tensor(self._checked_indices(indices))
        phi = self._phi.index_select(0, rows)
        h = hidden_units(model, first_layer, phi)
        values, slopes = self._splines(second_layer).evaluate(h)
        residual = _loss_slope(values.sum(1), self._labels.index_select(0, rows), model)
        left = slopes.mul_(activation_slope(model, h))
        left.mul_(residual[:, None] / math.sqrt(model.hidden_width * self.input_dim))
        first = GradientBlock(left=left.numpy(), right=phi.numpy())
        if not model.train_second_layer:
            return (first,)
        basis = model.hidden_basis.values(h).flatten(1).div_(math.sqrt(model.hidden_width))
        return (first, GradientBlock(left=residual[:, None].numpy(), right=basis.numpy()))

    def loss_and_scores(self, params: Vector) -> tuple[float, Vector]:
        """Evaluate the whole shard.

        Args:
            params: Shape (D,), float64.

        Returns:
            The mean logistic loss and f(x), shape (n,): facts about records, not released.

        Raises:
            ValueError: If `params` has the wrong shape or dtype.
        """
        first_layer, second_layer = self._split(params)
        h = hidden_units(self.model, first_layer, self._phi)
        values, _ = self._splines(second_layer).evaluate(h)
        scores = values.sum(1).div_(math.sqrt(self.model.hidden_width)).numpy()
        return float(np.logaddexp(0.0, -self.labels * scores).mean()), scores

    def count_outside(self) -> NDArray[np.int64]:
        """Count, per column, the inputs outside the first layer's grid; for the site's eyes."""
        return self.model.input_basis.count_outside(as_tensor(self.features)).numpy()

    @cached_property
    def _phi(self) -> Tensor:
        return expand_inputs(self.model, as_tensor(self.features))

    @cached_property
    def _labels(self) -> Tensor:
        return as_tensor(self.labels)

    @cached_property
    def _frozen_splines(self) -> UnitSplines:
        coefficients = as_tensor(self.frozen).reshape(self.model.hidden_width, -1)
        return unit_splines(self.model.hidden_basis, coefficients)

    def _splines(self, second_layer: Tensor) -> UnitSplines:
        if self.model.train_second_layer:
            return unit_splines(self.model.hidden_basis, second_layer)
        return self._frozen_splines

    def _split(self, params: Vector) -> tuple[Tensor, Tensor]:
        return split_params(self.model, params, self.frozen, self.input_dim)

    def _checked_indices(self, indices: NDArray[np.intp]) -> NDArray[np.intp]:
        if indices.ndim != 1 or indices.dtype.kind not in "iu":
            raise ValueError(
                f"expected integer indices of shape (B,), got {indices.ndim} axes of dtype "
                f"{indices.dtype}"
            )
        num_records = len(self.labels)
        if indices.size > 0 and (indices.min() < 0 or indices.max() >= num_records):
            raise ValueError(f"expected every index in [0, {num_records}), the shard's records")
        return indices.astype(np.intp, copy=False)


def _loss_slope(totals: Tensor, labels: Tensor, model: TwoLayerKAN) -> Tensor:
    """Return y ℓ'(y f) = -y sigmoid(-y f), which neither overflows nor cancels."""
    margins = totals.mul(labels).div_(math.sqrt(model.hidden_width))
    return torch.sigmoid(margins.neg_()).mul_(labels).neg_()


def _checked_features(features: Matrix) -> Matrix:
    if features.ndim != 2 or 0 in features.shape or features.dtype.kind not in "fiu":
        raise ValueError(
            f"expected numeric features of shape (n, d) with n, d >= 1, got {features.shape} "
            f"of dtype {features.dtype}"
        )
    converted = features.astype(np.float64, copy=False)
    bad = np.argwhere(~np.isfinite(converted))
    if len(bad) > 0:
        row, column = (int(index) for index in bad[0])
        raise ValueError(
            f"expected finite features; the cell at row_index={row}, column_index={column} is "
            f"not finite ({len(bad)} of {converted.size} cells); drop or fill it when reading"
        )
    return converted


def _checked_labels(labels: Vector, num_records: int) -> Vector:
    if labels.shape != (num_records,) or labels.dtype.kind not in "fiu":
        raise ValueError(
            f"expected numeric labels of shape ({num_records},), got {labels.shape} of dtype "
            f"{labels.dtype}"
        )
    converted = labels.astype(np.float64, copy=False)
    bad = np.flatnonzero(np.abs(converted) != 1.0)
    if len(bad) > 0:
        raise ValueError(
            f"expected every label to be -1 or +1; the one at row_index={int(bad[0])} is not "
            f"({len(bad)} of {num_records} rows); map the classes when reading"
        )
    return converted
