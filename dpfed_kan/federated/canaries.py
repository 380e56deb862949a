"""Canaries of an audit: records whose gradients an auditor knows, behind a site's gradient port.

A canary's gradient is far longer than any clip norm and lies along a coordinate of its own, so
that what the site's clip leaves of it is C in that direction, in the gradient's space and in
the space of any clip transform: w = (g − m̂)/b is then along the same coordinate.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from dpfed_kan.federated.site import PerExampleGradients
from dpfed_kan.privacy.clipping import GradientBlock, Matrix, Vector
from dpfed_kan.privacy.mechanism import Release
from dpfed_kan.privacy.sampling import Indices
from dpfed_kan.update.rule import UpdateRule, UpdateState

_OVERSHOOT = 1e6  # of the clip norm: what the clip has to take away


@dataclass(frozen=True, kw_only=True)
class CanaryGradients:
    """The gradient port of a site that holds m canaries and nothing else.

    Parameters are a model's D, in which canaries have no gradient, and m more, one a canary.
    A canary that is zeroed out has a gradient that is not finite, which the product leaves out.

    Args:
        signs: Shape (m,): 1 for a canary that is in, −1 for one that is replaced by its opposite,
            NaN for one that is zeroed out.
        model_params: D, which may be 0.
        l2_clip_norm: C.
    """

    signs: Vector = field(repr=False)
    model_params: int
    l2_clip_norm: float

    @property
    def num_params(self) -> int:
        """D + m."""
        return self.model_params + len(self.signs)

    def blocks(self, params: Vector, indices: Indices) -> tuple[GradientBlock, ...]:
        """Return the gradients of the canaries at `indices`, whatever the params are."""
        own = GradientBlock(left=self._lengths[indices], right=self._directions[indices])
        if self.model_params == 0:
            return (own,)
        nothing = np.zeros((len(indices), 1))
        none = GradientBlock(left=nothing, right=np.zeros((len(indices), self.model_params)))
        return (none, own)

    @cached_property
    def _directions(self) -> Matrix:
        return np.eye(len(self.signs))

    @cached_property
    def _lengths(self) -> Matrix:
        return np.asarray(_OVERSHOOT * self.l2_clip_norm * self.signs[:, None])


@dataclass(frozen=True, kw_only=True)
class BesideCanaries:
    """A real site's gradient port in a run with canaries: nothing along their coordinates.

    Args:
        gradients: The model over the site's records.
        num_canaries: m.
    """

    gradients: PerExampleGradients = field(repr=False)
    num_canaries: int

    @property
    def num_params(self) -> int:
        """D + m."""
        return self.gradients.num_params + self.num_canaries

    def blocks(self, params: Vector, indices: Indices) -> tuple[GradientBlock, ...]:
        """Return the model's blocks at the first D params, and one of zeros."""
        own = self.gradients.blocks(params[: self.gradients.num_params], indices)
        zeros = np.zeros((len(indices), self.num_canaries))
        return (*own, GradientBlock(left=np.zeros((len(indices), 1)), right=zeros))


@dataclass(frozen=True, kw_only=True)
class FixedGradients:
    """A site whose records have gradients that depend on nothing: bystanders of a small audit.

    Args:
        rows: Shape (n, D), one gradient a record.
    """

    rows: Matrix = field(repr=False)

    @property
    def num_params(self) -> int:
        """D."""
        return int(self.rows.shape[1])

    def blocks(self, params: Vector, indices: Indices) -> tuple[GradientBlock, ...]:
        """Return the records' gradients."""
        return (GradientBlock(left=np.ones((len(indices), 1)), right=self.rows[indices]),)


@dataclass(frozen=True, kw_only=True)
class Listening:
    """An update rule that writes down every release, which is public, before its step.

    Args:
        rule: Which takes the step.
        heard: Filled with the values of the releases, one a round.
    """

    rule: UpdateRule
    heard: list[Vector] = field(default_factory=list, repr=False)

    def start(self, params: Vector, *, num_rounds: int | None = None) -> UpdateState:
        """Return the rule's start."""
        return self.rule.start(params, num_rounds=num_rounds)

    def step(self, state: UpdateState, release: Release, *, batch_size: float) -> UpdateState:
        """Take the rule's step."""
        self.heard.append(release.value)
        return self.rule.step(state, release, batch_size=batch_size)
