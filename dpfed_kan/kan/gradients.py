"""What one site computes on its shard: per-example gradients as outer products.

With the residual r_io = dℓ_i/df_o, first layer: g_i = a_i ⊗ φ(x_i),
a_ij = (m d)^{-1/2} σ'(u_ij) Σ_o r_io Σ_k c_ojk b'_k(h_ij): rank one whatever the number of outputs.
Second layer, if trained: g_i = r_i ⊗ m^{-1/2} b(h_i). No per-example gradient is ever
materialized. For two classes r_i = -y sigmoid(-y f); [KAN-SGD], arXiv 2605.12648.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed_kan.kan.device import Device, Precision, as_array, check_device
from dpfed_kan.kan.losses import checked_labels, loss_slope, mean_loss
from dpfed_kan.kan.model import (
    activation_slope,
    as_tensor,
    expand_inputs,
    hidden_units,
    split_params,
)
from dpfed_kan.kan.outputs import Pullback, outputs_of_many, outputs_of_one
from dpfed_kan.kan.shape import TwoLayerKAN
from dpfed_kan.kan.splines import UnitSplines, unit_splines
from dpfed_kan.privacy.clipping import GradientBlock

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class KANGradients:
    """A model on one shard; φ is computed on first use and kept, 8·n·d·p bytes.

    Guarantees:
        The arithmetic is float64 whatever the dtype of the features, but for what `precision`
        says. Errors and `repr` show positions and counts, never a value. A record's factors
        depend on that record alone, up to the rounding of a matrix product.

    Args:
        model: The shape of the network.
        frozen: c, shape (O·m·p,), float64, or empty if c is trained.
        features: Shape (n, d), n ≥ 1, finite; float32 and integers are cast once.
        labels: Shape (n,): -1 or +1 (logistic), 0..O-1 (softmax) or numbers; shape (n, O) for
            squared and Huber with O > 1.
        device: Where the arithmetic is done, "cpu" or "cuda"; what goes in and out is numpy.
        precision: Of φ and of the two products that it is in; all else is float64.

    Raises:
        ValueError: If an array has the wrong shape or dtype, a feature is not finite, a label
            does not fit the loss, or there is no such device.
    """

    model: TwoLayerKAN
    frozen: Vector = field(repr=False)
    features: Matrix = field(repr=False)
    labels: Vector = field(repr=False)
    device: Device = "cpu"
    precision: Precision = "float64"

    def __post_init__(self) -> None:
        check_device(self.device)
        object.__setattr__(self, "features", _checked_features(self.features))
        labels = checked_labels(
            self.model.loss,
            self.labels,
            num_records=len(self.features),
            num_outputs=self.model.num_outputs,
        )
        object.__setattr__(self, "labels", labels)
        split_params(self.model, np.zeros(self.num_params), self.frozen, self.input_dim)

    @property
    def input_dim(self) -> int:
        """The number of features, d."""
        return int(self.features.shape[1])

    @property
    def num_params(self) -> int:
        """The number of trainable parameters, D."""
        return self.model.num_params(self.input_dim)

    @property
    def rows_at_once(self) -> int | None:
        """None: all gradients are factored, so a whole batch fits."""
        return None

    def blocks(self, params: Vector, indices: NDArray[np.intp]) -> tuple[GradientBlock, ...]:
        """Compute the gradients of some records' losses, one block per trained layer.

        Non-finite parameters give non-finite gradients, which clipping counts as zero.

        Args:
            params: Shape (D,), float64.
            indices: Shape (B,), integers in [0, n); B may be 0 and an index may repeat.

        Returns:
            First layer: left (B, m), right (B, d·p). Second layer, if trained: left (B, O),
            right (B, m·p). The arrays are new: later calls do not overwrite them.

        Raises:
            ValueError: If `params` or `indices` has the wrong shape, dtype or range.
        """
        model = self.model
        first_layer, second_layer = self._split(params)
        rows = as_tensor(self._checked_indices(indices)).to(self.device)
        phi = self._phi.index_select(0, rows)
        h = hidden_units(model, first_layer, phi)
        outputs, pullback = self._outputs(second_layer, h)
        labels = self._labels.index_select(0, rows)
        residual = loss_slope(model.loss, outputs, labels, huber_delta=model.huber_delta)
        left = pullback(residual).mul_(activation_slope(model, h))
        left.div_(math.sqrt(model.hidden_width * self.input_dim))
        squares = self._squared_lengths[indices]
        first = GradientBlock(left=as_array(left), right=as_array(phi), right_squares=squares)
        if not model.train_second_layer:
            return (first,)
        basis = model.hidden_basis.values(h).flatten(1).div_(math.sqrt(model.hidden_width))
        return (first, GradientBlock(left=as_array(residual), right=as_array(basis)))

    def loss_and_scores(self, params: Vector) -> tuple[float, Vector]:
        """Evaluate the whole shard.

        Args:
            params: Shape (D,), float64.

        Returns:
            The mean loss and f(x), shape (n,) or (n, O): facts about records, not released.

        Raises:
            ValueError: If `params` has the wrong shape or dtype.
        """
        first_layer, second_layer = self._split(params)
        h = hidden_units(self.model, first_layer, self._phi)
        outputs = as_array(self._outputs(second_layer, h)[0])
        scores = outputs[:, 0] if self.model.num_outputs == 1 else outputs
        delta = self.model.huber_delta
        return mean_loss(self.model.loss, scores, self.labels, huber_delta=delta), scores

    def count_outside(self) -> NDArray[np.int64]:
        """Count, per column, the inputs outside the first layer's grid; for the site's eyes."""
        return self.model.input_basis.count_outside(as_tensor(self.features)).numpy()

    @cached_property
    def _phi(self) -> Tensor:
        phi = expand_inputs(self.model, as_tensor(self.features).to(self.device))
        return phi.to(getattr(torch, self.precision))

    @cached_property
    def _squared_lengths(self) -> Vector:
        """‖φ(x_i)‖² of φ as it is kept, shape (n,), float64."""
        phi = as_array(self._phi)
        squares: Vector = np.einsum("ij,ij->i", phi, phi, dtype=np.float64)
        return squares

    @cached_property
    def _labels(self) -> Tensor:
        return as_tensor(self.labels).to(self.device)

    @cached_property
    def _frozen_splines(self) -> UnitSplines:
        coefficients = as_tensor(self.frozen).to(self.device).reshape(self.model.hidden_width, -1)
        return unit_splines(self.model.hidden_basis, coefficients)

    def _outputs(self, second_layer: Tensor, h: Tensor) -> tuple[Tensor, Pullback]:
        if self.model.num_outputs > 1:
            return outputs_of_many(self.model, second_layer, h)
        return outputs_of_one(self.model, self._splines(second_layer), h)

    def _splines(self, second_layer: Tensor) -> UnitSplines:
        if self.model.train_second_layer:
            return unit_splines(self.model.hidden_basis, second_layer)
        return self._frozen_splines

    def _split(self, params: Vector) -> tuple[Tensor, Tensor]:
        first, second = split_params(self.model, params, self.frozen, self.input_dim)
        return first.to(self.device), second.to(self.device)

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
