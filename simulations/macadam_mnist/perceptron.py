"""The 784-1000-10 perceptron's per-example gradients as blocks, without torch: a fast loop."""

from __future__ import annotations

import numpy as np

from dpfed_kan.privacy.clipping import GradientBlock, Matrix, Vector
from simulations.macadam_mnist.mnist import Digits

SHAPES = ((1000, 784), (1000, 1), (10, 1000), (10, 1))
NUM_PARAMS = sum(rows * columns for rows, columns in SHAPES)


class Perceptron:
    """ReLU, softmax cross entropy; 795,010 parameters in the order of `SHAPES`."""

    def start(self, rng: np.random.Generator) -> Vector:
        """Return uniform ±1/√fan_in weights and biases, as torch's Linear draws them."""
        fans = (784, 784, 1000, 1000)
        parts = [
            rng.uniform(-(fan**-0.5), fan**-0.5, rows * columns)
            for fan, (rows, columns) in zip(fans, SHAPES, strict=True)
        ]
        return np.concatenate(parts)

    def blocks(self, params: Vector, batch: Digits) -> tuple[GradientBlock, ...]:
        """Return the blocks of the batch's losses."""
        hidden, logits, out = self._forward(params, batch.features)
        residual = _softmax(logits)
        residual[np.arange(len(residual)), batch.classes] -= 1.0
        inner = (residual @ out) * (hidden > 0)
        ones = np.ones((len(residual), 1))
        return (
            GradientBlock(left=inner, right=batch.features),
            GradientBlock(left=inner, right=ones),
            GradientBlock(left=residual, right=hidden),
            GradientBlock(left=residual, right=ones),
        )

    def accuracy(self, params: Vector, digits: Digits) -> float:
        """Return the share of right classes."""
        logits = self._forward(params, digits.features)[1]
        return float((logits.argmax(axis=1) == digits.classes).mean())

    def _forward(self, params: Vector, features: Matrix) -> tuple[Matrix, Matrix, Matrix]:
        ends = np.cumsum([rows * columns for rows, columns in SHAPES])[:-1].tolist()
        weight, bias, out, out_bias = (
            part.reshape(shape) for part, shape in zip(np.split(params, ends), SHAPES, strict=True)
        )
        hidden = np.maximum(features @ weight.T + bias.T, 0.0)
        return hidden, hidden @ out.T + out_bias.T, out


def _softmax(logits: Matrix) -> Matrix:
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))
