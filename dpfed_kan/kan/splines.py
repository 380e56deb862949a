"""One spline per hidden unit: with its coefficients fixed it is a single piecewise polynomial."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dpfed_kan.kan.basis import CHUNK_SIZE, BSplineBasis, bernstein_weights, raise_weights


@dataclass(frozen=True, kw_only=True, eq=False)
class UnitSplines:
    """The functions s_j(h) = Σ_k c_jk b_k(h) of m hidden units.

    Evaluating one needs 2·degree + 1 numbers per point instead of 2p values of the basis.

    Args:
        basis: The basis of every unit.
        table: Shape (m · intervals, 2·degree + 1): the coefficients of s_j on an interval for
            the weights t^k (1-t)^(degree-k), then those of s'_j for one degree less.
    """

    basis: BSplineBasis
    table: Tensor

    def evaluate(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Return s_j(h_j) and s'_j(h_j).

        Args:
            h: Shape (n, m), float64.

        Returns:
            Two tensors of shape (n, m).
        """
        num_units = len(self.table) // self.basis.num_intervals
        offsets = torch.arange(num_units, device=h.device).mul_(self.basis.num_intervals)
        values, slopes = torch.empty_like(h), torch.empty_like(h)
        rows = max(1, CHUNK_SIZE // num_units)
        for start in range(0, len(h), rows):
            chunk = slice(start, start + rows)
            values[chunk], slopes[chunk] = self._evaluate_chunk(h[chunk], offsets)
        return values, slopes

    def _evaluate_chunk(self, h: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        interval, position = self.basis.locate(h)
        t = position.reshape(-1)
        columns = self.table.index_select(0, interval.add_(offsets).reshape(-1)).unbind(1)
        lower = bernstein_weights(t, self.basis.spline_degree - 1)
        upper = raise_weights(lower, t)
        value = _dot(columns[: len(upper)], upper)
        slope = _dot(columns[len(upper) :], lower)
        return value.reshape(h.shape), slope.reshape(h.shape)


def unit_splines(basis: BSplineBasis, coefficients: Tensor) -> UnitSplines:
    """Build the splines of m hidden units from c, shape (m, p), float64."""
    tables = torch.cat([basis.value_tables, basis.derivative_tables]).to(coefficients.device)
    table = torch.einsum("klp,mp->mlk", tables, coefficients).flatten(0, 1).contiguous()
    return UnitSplines(basis=basis, table=table)


def _dot(columns: tuple[Tensor, ...], weights: list[Tensor]) -> Tensor:
    total = columns[0] * weights[0]
    for column, weight in zip(columns[1:], weights[1:], strict=True):
        total.addcmul_(column, weight)
    return total
