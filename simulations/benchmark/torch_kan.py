"""The network as a torch user would write it, and as it is fastest with its basis computed once.

Nothing here knows sites, clipping or noise.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpfed_kan.kan.model import as_tensor, expand_inputs
from dpfed_kan.kan.splines import unit_splines
from simulations.benchmark.peer_job import Matrix, PeerProblem


class SplineLayer(nn.Module):
    """One layer by the recursion of Cox and de Boor, as in the public KAN packages.

    Args:
        coefficients: Shape (outputs, inputs, p).
        half_width: g of the grid [-g, g].
        degree: Of the splines.
    """

    def __init__(self, coefficients: Tensor, *, half_width: float, degree: int) -> None:
        super().__init__()
        self.coefficients = nn.Parameter(coefficients)
        num_intervals = coefficients.shape[2] - degree
        dtype = coefficients.dtype
        inner = torch.linspace(-half_width, half_width, num_intervals + 1, dtype=dtype)
        ends = torch.full((degree,), half_width, dtype=dtype)
        self.knots = torch.cat([-ends, inner, ends])  # no buffer: Opacus refuses those
        self.degree = degree
        self.half_width = half_width * (1.0 - 1e-6)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's outputs, shape (n, outputs), over the root of the inputs."""
        x = x.clamp(-self.half_width, self.half_width).unsqueeze(-1)
        knots = self.knots
        basis = ((x >= knots[:-1]) & (x < knots[1:])).to(x.dtype)
        for level in range(1, self.degree + 1):
            left, right = knots[: -level - 1], knots[level + 1 :]
            up = (x - left) / (knots[level:-1] - left).clamp(min=1e-9)
            down = (right - x) / (right - knots[1:-level]).clamp(min=1e-9)
            basis = up * basis[..., :-1] + down * basis[..., 1:]
        weights = self.coefficients.flatten(1)
        return functional.linear(basis.flatten(-2), weights) / math.sqrt(x.shape[-2])


class TorchKAN(nn.Module):
    """The two-layer network as one would write it in torch; the second layer is frozen."""

    def __init__(self, problem: PeerProblem) -> None:
        super().__init__()
        model = problem.model
        shape = (model.hidden_width, -1, model.num_basis)
        self.first = SplineLayer(
            problem.tensor(problem.trainable).reshape(shape),
            half_width=model.input_basis.high,
            degree=model.spline_degree,
        )
        self.second = SplineLayer(
            problem.tensor(problem.frozen).reshape(1, model.hidden_width, -1),
            half_width=model.hidden_basis.high,
            degree=model.spline_degree,
        )
        self.second.coefficients.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """Return f(x), shape (n,)."""
        outputs: Tensor = self.second(torch.tanh(self.first(x)))
        return outputs.squeeze(-1)

    def flat(self) -> Tensor:
        """Return W, shape (m·d·p,)."""
        return self.first.coefficients.detach().reshape(-1)


class LinearKAN(nn.Module):
    """The network on φ(x)/√d: a linear layer and the frozen rest as one spline a unit."""

    def __init__(self, problem: PeerProblem) -> None:
        super().__init__()
        weight = problem.tensor(problem.trainable).reshape(problem.model.hidden_width, -1)
        self.first = nn.Linear(weight.shape[1], len(weight), bias=False, dtype=weight.dtype)
        self.first.weight.data.copy_(weight)
        self.head = FrozenHead(problem)

    def forward(self, phi: Tensor) -> Tensor:
        """Return f(x), shape (n,)."""
        scores: Tensor = _Head.apply(self.first(phi), self.head)  # type: ignore[no-untyped-call]
        return scores

    def flat(self) -> Tensor:
        """Return W, shape (m·d·p,)."""
        return self.first.weight.detach().reshape(-1)


class FrozenHead:
    """u to f = m^{-1/2} Σ_j s_j(tanh u_j): one polynomial per unit and interval, by Horner's rule.

    Args:
        problem: Whose second layer it is.
    """

    def __init__(self, problem: PeerProblem) -> None:
        basis, width = problem.model.hidden_basis, problem.model.hidden_width
        splines = unit_splines(basis, as_tensor(problem.frozen).reshape(width, -1))
        self._low, self._last = basis.low, basis.num_intervals - 1
        self._per_unit = basis.num_intervals / (basis.high - basis.low)
        t = torch.linspace(0.0, 1.0, basis.spline_degree + 1, dtype=torch.float64)
        points = (torch.arange(basis.num_intervals)[:, None] + t) / self._per_unit + basis.low
        values, _ = splines.evaluate(points.reshape(-1, 1).repeat(1, width))
        powers = torch.linalg.solve(torch.linalg.vander(t), values.reshape(*points.shape, width))
        table = powers.permute(2, 0, 1).flatten(0, 1) / math.sqrt(width)
        self._table = table.to(problem.dtype).contiguous()
        self._first = torch.arange(width) * basis.num_intervals

    def __call__(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Return f, shape (n,), and df/du, shape (n, m)."""
        h = torch.tanh(u)
        position = (h - self._low).mul_(self._per_unit)
        interval = position.long().clamp_(max=self._last)
        t = position.sub_(interval)
        rows = self._table.index_select(0, interval.add_(self._first).reshape(-1))
        constant, *higher = (column.reshape(u.shape) for column in rows.unbind(1))
        value, slope = higher[-1], higher[-1]
        for coefficient in reversed(higher[:-1]):
            value = torch.addcmul(coefficient, value, t)
            slope = torch.addcmul(value, slope, t)
        value = torch.addcmul(constant, value, t)
        slope = slope * (1.0 - h * h).mul_(self._per_unit)
        return value.sum(1), slope


class _Head(torch.autograd.Function):
    """The head with its own slope."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, head: FrozenHead) -> Tensor:
        scores, slopes = head(u)
        ctx.save_for_backward(slopes)
        return scores

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (slopes,) = ctx.saved_tensors
        return grads[0][:, None] * slopes, None


def scaled_basis(problem: PeerProblem, features: Matrix) -> Tensor:
    """Return φ(x)/√d, shape (n, d·p)."""
    phi = expand_inputs(problem.model, as_tensor(features))
    return phi.div_(math.sqrt(features.shape[1])).to(problem.dtype)


def logistic_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Return each record's loss, shape (n,), for labels -1 and +1."""
    return functional.softplus(-labels * scores)
