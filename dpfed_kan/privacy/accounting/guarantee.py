"""What an account answers: an (ε, δ) with all that it rests on, or the absence of one."""

from __future__ import annotations

import math
from dataclasses import dataclass

TRUST = (
    "the coordinating server, which sees each site's un-noised sum, and each site with its own "
    "records; protected against everybody else who sees the released models"
)


@dataclass(frozen=True, kw_only=True)
class Bound:
    """One upper bound on ε, or a figure shown for comparison only.

    Args:
        epsilon: ε.
        method: How it was computed.
        assumption: What it needs, in one line.
        seconds: How long it took.
    """

    epsilon: float
    method: str
    assumption: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class PrivacyGuarantee:
    """(ε, δ) with all that makes it a statement: unit, relation, sampling, trust, method.

    Args:
        epsilon: An upper bound, ≥ 0.
        delta: δ.
        num_rounds: Rounds that it covers.
        planned_rounds: The horizon: with fewer rounds, ε holds if how many was not decided by
            what was released.
        unit: What is protected.
        neighboring_relation: What may differ between the two data sets.
        sampling: The sampler and its rate.
        noise: The noise and its correlation.
        noise_multiplier: κ.
        trust: Who must be trusted.
        best: The bound that gave ε.
        tried: All valid bounds that were computed.
        check: What an independent accountant said, or why none was asked.
        compared: Figures shown beside the bounds; never the answer.
    """

    epsilon: float
    delta: float
    num_rounds: int
    planned_rounds: int
    unit: str
    neighboring_relation: str
    sampling: str
    noise: str
    noise_multiplier: float
    trust: str
    best: Bound
    tried: tuple[Bound, ...]
    check: str
    compared: tuple[Bound, ...] = ()

    @property
    def sentence(self) -> str:
        """The guarantee in one sentence."""
        relation = self.neighboring_relation.replace("_", "-")
        return (
            f"({self.epsilon:.4g}, {self.delta:g})-differential privacy of one {self.unit} under "
            f"{relation} neighbours, for {self._rounds} of {self.sampling} sampling "
            f"with {self.noise} (κ={self.noise_multiplier:.4g}); "
            f"trusted: {self.trust}; accountant: {self.best.method}"
        )

    @property
    def _rounds(self) -> str:
        if self.num_rounds == self.planned_rounds:
            return f"{self.num_rounds} rounds"
        return (
            f"the first {self.num_rounds} of {self.planned_rounds} planned rounds (if what they "
            "released did not decide that they are the last: else only the ε of all holds)"
        )


@dataclass(frozen=True, kw_only=True)
class NonPrivate:
    """No noise was added: ε = ∞, whatever δ.

    Args:
        num_rounds: Rounds that were run.
        reason: Why there is no guarantee.
    """

    num_rounds: int
    reason: str = "no noise was added"

    @property
    def epsilon(self) -> float:
        """∞."""
        return math.inf

    @property
    def sentence(self) -> str:
        """The absence of a guarantee in one sentence."""
        return (
            f"NO PRIVACY: ε = ∞ after {self.num_rounds} rounds, because {self.reason}; "
            "the released models may reveal any record"
        )
