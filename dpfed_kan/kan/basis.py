"""Clamped uniform B-splines on a public interval, evaluated without cancellation.

On one interval between knots every basis function is a polynomial with non-negative Bernstein
coefficients. Those coefficients and the Bernstein polynomials of t in [0, 1] are products and
sums of non-negative numbers, so values are non-negative and sum to 1 at any degree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed_kan._validate import check_number
from dpfed_kan.kan.shape import check_basis

CHUNK_SIZE: Final = 8192  # points evaluated at once, so that temporaries stay in cache


@dataclass(frozen=True, kw_only=True)
class BSplineBasis:
    """The p B-splines of one degree on clamped uniform knots, closed at both ends.

    An input outside [low, high] is moved to the nearer end: it gets the values and the one-sided
    derivatives that hold there, and `count_outside` counts it. NaN stays NaN. At an inner knot
    the derivative is the one from the right, which matters for degree 1 only. Whatever the dtype
    of the input, the arithmetic is float64 and the result is rounded once. Nothing is recorded
    for autograd: `derivatives` is the derivative.

    Args:
        num_basis: p, in {spline_degree + 1, ..., 256}; the number of intervals is p - degree.
        spline_degree: In {1, ..., 20}.
        low: The left end, public.
        high: The right end, public.

    Raises:
        ValueError: If a setting is out of range.

    Example:
        >>> basis = BSplineBasis(num_basis=4)
        >>> basis.values(torch.tensor([0.0, 1.0], dtype=torch.float64)).tolist()
        [[0.125, 0.375, 0.375, 0.125], [0.0, 0.0, 0.0, 1.0]]
    """

    num_basis: int
    spline_degree: int = 3
    low: float = -1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        check_basis(num_basis=self.num_basis, spline_degree=self.spline_degree)
        check_number("low", self.low, low_open=True, high_open=True)
        check_number("high", self.high, low=self.low, low_open=True, high_open=True)

    @property
    def num_intervals(self) -> int:
        """The number of equal intervals between the ends, p - degree."""
        return self.num_basis - self.spline_degree

    @cached_property
    def value_tables(self) -> Tensor:
        """Coefficients of t^k (1-t)^(degree-k), shape (degree + 1, intervals, p), float64."""
        degree = self.spline_degree
        return self._tables(_bernstein_coefficients(self.num_basis, degree), degree)

    @cached_property
    def derivative_tables(self) -> Tensor:
        """Coefficients of t^k (1-t)^(degree-1-k), shape (degree, intervals, p), float64."""
        degree = self.spline_degree
        slopes = np.diff(_bernstein_coefficients(self.num_basis, degree), axis=0)
        per_unit = degree * self.num_intervals / (self.high - self.low)
        return self._tables(slopes * per_unit, degree - 1)

    def locate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return each input's interval (int64) and its position t in [0, 1] there (float64)."""
        inside = x.detach().to(torch.float64).clamp(self.low, self.high)
        position = (inside - self.low) / (self.high - self.low) * self.num_intervals
        interval = position.long().clamp_(0, self.num_intervals - 1)
        return interval, position.sub_(interval)

    def values(self, x: Tensor) -> Tensor:
        """Evaluate b_0, ..., b_{p-1}.

        Args:
            x: Any shape, floating point.

        Returns:
            Shape (..., p), of the dtype of `x`: non-negative, summing to 1.

        Raises:
            ValueError: If `x` is not floating point.
        """
        return self._evaluate(self.value_tables, x)

    def derivatives(self, x: Tensor) -> Tensor:
        """Evaluate b'_0, ..., b'_{p-1}, with the shape and dtype of `values`."""
        return self._evaluate(self.derivative_tables, x)

    def count_outside(self, x: Tensor) -> Tensor:
        """Count, per column, the inputs strictly outside [low, high]; NaN is not counted.

        The counts are facts about records: for the site that holds them, never to be sent.

        Args:
            x: Shape (n, d).

        Returns:
            Shape (d,), int64.
        """
        if x.ndim != 2:
            raise ValueError(f"expected x of shape (n, d), got {x.ndim} axes")
        return ((x < self.low) | (x > self.high)).sum(0)

    def _tables(self, coefficients: NDArray[np.float64], degree: int) -> Tensor:
        tables = torch.zeros(degree + 1, self.num_intervals, self.num_basis, dtype=torch.float64)
        for interval in range(self.num_intervals):
            support = slice(interval, interval + self.spline_degree + 1)
            tables[:, interval, support] = torch.from_numpy(coefficients[:, interval])
        binomials = [float(math.comb(degree, k)) for k in range(degree + 1)]
        return tables * torch.tensor(binomials, dtype=torch.float64)[:, None, None]

    def _evaluate(self, tables: Tensor, x: Tensor) -> Tensor:
        if not x.is_floating_point():
            raise ValueError(f"expected a floating-point tensor, got {x.dtype}")
        points = x.detach().reshape(-1)
        tables = tables.to(points.device)
        result = points.new_empty(len(points), self.num_basis)
        for start in range(0, len(points), CHUNK_SIZE):
            interval, t = self.locate(points[start : start + CHUNK_SIZE])
            weights = bernstein_weights(t, len(tables) - 1)
            total = tables[0].index_select(0, interval).mul_(weights[0][:, None])
            for table, weight in zip(tables[1:], weights[1:], strict=True):
                total.addcmul_(table.index_select(0, interval), weight[:, None])
            result[start : start + CHUNK_SIZE] = total
        return result.reshape(*x.shape, self.num_basis)


def bernstein_weights(t: Tensor, degree: int) -> list[Tensor]:
    """Return t^k (1-t)^(degree-k) for k = 0, ..., degree, each of the shape of `t`."""
    if degree == 0:
        return [torch.ones_like(t)]
    weights = [1.0 - t, t]
    for _ in range(degree - 1):
        weights = raise_weights(weights, t)
    return weights


def raise_weights(weights: list[Tensor], t: Tensor) -> list[Tensor]:
    """Return the Bernstein weights of one degree more."""
    return [(1.0 - t) * weights[0], *(t * weight for weight in weights)]


def _bernstein_coefficients(num_basis: int, degree: int) -> NDArray[np.float64]:
    """Return the Bernstein coefficients of the basis, one interval at a time.

    Coefficient k on [l, l+1] is the blossom at (l, ..., l, l+1, ..., l+1), l+1 taken k times:
    the Cox-de Boor recursion with another argument at each level, and every weight in [0, 1].

    Returns:
        Shape (degree + 1, intervals, degree + 1): [k, l, r] belongs to b_{l+r}.
    """
    num_intervals = num_basis - degree
    knots = np.clip(np.arange(-degree, num_basis + 1), 0, num_intervals).astype(np.float64)
    left = np.arange(num_intervals)
    num_right = np.arange(degree + 1)[:, None]
    rows = np.ones((degree + 1, num_intervals, 1))
    for level in range(1, degree + 1):
        argument = left + (num_right > degree - level)
        raised = np.zeros((degree + 1, num_intervals, level + 1))
        for r in range(level):
            first, last = knots[left + degree - level + 1 + r], knots[left + degree + 1 + r]
            raised[..., r + 1] += (argument - first) / (last - first) * rows[..., r]
            raised[..., r] += (last - argument) / (last - first) * rows[..., r]
        rows = raised
    return rows
