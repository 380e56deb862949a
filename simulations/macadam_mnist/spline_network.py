"""The KAN counterpart: ten outputs, m = 32, p = 8, second layer frozen, 200,704 parameters."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from dpfed_kan.kan import KANGradients, TwoLayerKAN, decision_function
from dpfed_kan.privacy.clipping import GradientBlock, Matrix, Vector
from simulations.macadam_mnist.mnist import Digits


class SplineNetwork:
    """Images / ‖image‖ on the public grid ±3/√784, where unit-norm pixels spread over the grid."""

    shape: ClassVar[TwoLayerKAN] = TwoLayerKAN(
        hidden_width=32, num_basis=8, num_outputs=10, loss="softmax", input_grid=3 / 28
    )

    def start(self, rng: np.random.Generator) -> Vector:
        """Return the public start; the frozen layer is kept."""
        params = self.shape.initialize(784, rng)
        self._frozen = params.frozen
        return params.trainable

    def blocks(self, params: Vector, batch: Digits) -> tuple[GradientBlock, ...]:
        """Return the blocks of the batch's losses; φ is computed for the batch, not kept."""
        if len(batch.classes) == 0:
            return (GradientBlock(left=np.empty((0, 32)), right=np.empty((0, 784 * 8))),)
        site = KANGradients(
            model=self.shape,
            frozen=self._frozen,
            features=_unit(batch.features),
            labels=batch.classes.astype(np.float64),
        )
        return site.blocks(params, np.arange(len(batch.classes)))

    def accuracy(self, params: Vector, digits: Digits) -> float:
        """Return the share of right classes."""
        scores = decision_function(self.shape, params, self._frozen, _unit(digits.features))
        return float((scores.argmax(axis=1) == digits.classes).mean())


def _unit(features: Matrix) -> Matrix:
    norms = np.sqrt(np.square(features).sum(axis=1, keepdims=True))
    return np.asarray(features / np.maximum(norms, 1e-12))
