"""ε so far, in a running round loop: valid, monotone, in milliseconds after the first call."""

from __future__ import annotations

import math
from functools import cached_property, lru_cache

from dpfed_kan._validate import check_count
from dpfed_kan.privacy.accounting.account import account
from dpfed_kan.privacy.accounting.block_spectral import (
    block_spectral_epsilon,
    block_spectral_loss,
)
from dpfed_kan.privacy.accounting.bounds import gaussian_sensitivity, inclusion_prob
from dpfed_kan.privacy.accounting.fixed_size import fixed_size_loss
from dpfed_kan.privacy.accounting.gaussian import gaussian_epsilon
from dpfed_kan.privacy.accounting.guarantee import NonPrivate, PrivacyGuarantee
from dpfed_kan.privacy.accounting.loss_distribution import (
    LossDistribution,
    grid_interval,
    loss_epsilon,
)
from dpfed_kan.privacy.accounting.poisson import poisson_interval, poisson_loss
from dpfed_kan.privacy.accounting.spectral import independent_noise
from dpfed_kan.privacy.joint_sampling import FixedSize
from dpfed_kan.privacy.mechanism import Mechanism
from dpfed_kan.privacy.sampling import Poisson

_CUTOFF = 1e-5  # of δ, given away to keep grids short
_CHECKPOINTS = 16  # where rounds do not compose; each takes about a second when it is reached


class RunningAccount:
    """ε after the rounds that have happened, of a mechanism whose horizon is T.

    Guarantees:
        `epsilon(t)` is an upper bound for the first t rounds: a prefix of a run is
        post-processing of any longer one, so it is the lesser of the account of the first
        ⌈t/w⌉·w rounds and that of the whole horizon. It never falls as t grows; at t = T it is
        `account(mechanism)`.

    Args:
        mechanism: With its noise multiplier set.
        delta: δ in (0, 1).
        num_records: n; fixed-size sampling needs it, over all sites.
    """

    def __init__(
        self, mechanism: Mechanism, *, delta: float, num_records: int | None = None
    ) -> None:
        self.mechanism = mechanism
        self.delta = delta
        self.num_records = num_records
        self.full = account(mechanism, delta=delta, num_records=num_records)
        self._after = lru_cache(maxsize=None)(self._of_first_rounds)

    full: PrivacyGuarantee | NonPrivate

    def epsilon(self, num_rounds: int) -> float:
        """Return ε after `num_rounds` rounds.

        Raises:
            ValueError: If they are more than the horizon.
        """
        horizon = self.mechanism.num_rounds
        check_count("num_rounds", num_rounds, low=0)
        if num_rounds > horizon:
            raise ValueError(
                f"expected num_rounds={num_rounds} of at most {horizon}, the horizon that the "
                "mechanism was planned for; plan a new mechanism for more"
            )
        if num_rounds == 0:
            return 0.0
        if math.isinf(self.full.epsilon):
            return math.inf
        whole = -(-num_rounds // self._width) * self._width
        if whole >= horizon:
            return self.full.epsilon
        digits = math.ceil(self._after(whole) * 1e9) / 1e9  # equal up to rounding is equal
        return min(digits, self.full.epsilon)

    @cached_property
    def _composes(self) -> bool:
        """Whether rounds, or blocks of rounds, compose into the whole horizon's account."""
        match self.mechanism.sampling:
            case Poisson():
                return True
            case FixedSize():
                relation = self.mechanism.neighboring_relation
                return relation != "add_remove" and "PLD" in self._full_method
            case _:
                return False

    @property
    def _full_method(self) -> str:
        return "" if isinstance(self.full, NonPrivate) else self.full.best.method

    @cached_property
    def _width(self) -> int:
        """The number of rounds that are accounted for at a time."""
        mechanism = self.mechanism
        if gaussian_sensitivity(mechanism, 1) is not None:
            return 1
        if not self._composes:
            return -(-mechanism.num_rounds // _CHECKPOINTS)
        if not isinstance(mechanism.sampling, Poisson) or mechanism.noise.correlation == 0:
            return 1
        return block_spectral_epsilon(
            mechanism.noise,
            noise_multiplier=mechanism.noise_multiplier,
            sampling_prob=mechanism.sampling.sampling_prob,
            num_rounds=mechanism.num_rounds,
            horizon=mechanism.num_rounds,
            delta=self.delta,
            neighboring_relation=mechanism.neighboring_relation,
            known_epsilon=self.full.epsilon,
        ).width

    def _of_first_rounds(self, rounds: int) -> float:
        mechanism = self.mechanism
        sensitivity = gaussian_sensitivity(mechanism, rounds)
        if sensitivity is not None:
            factor = mechanism.sensitivity_factor
            return gaussian_epsilon(
                delta=self.delta, mu=factor * sensitivity / mechanism.noise_multiplier
            )
        if not self._composes:
            return account(
                mechanism, delta=self.delta, num_rounds=rounds, num_records=self.num_records
            ).epsilon
        try:
            loss = self._loss(rounds)
        except OverflowError:
            return self.full.epsilon
        return loss_epsilon(loss, delta=self.delta, num_compositions=rounds)

    def _loss(self, rounds: int) -> LossDistribution:
        """Return the first rounds' losses, on the same grid for every number of rounds."""
        mechanism, horizon = self.mechanism, self.mechanism.num_rounds
        kappa, relation = mechanism.noise_multiplier, mechanism.neighboring_relation
        epsilon = self.full.epsilon
        independent = independent_noise(
            mechanism.noise, noise_multiplier=kappa, num_rounds=horizon, horizon=horizon
        )
        match mechanism.sampling:
            case Poisson(sampling_prob=prob) if mechanism.noise.correlation == 0:
                return poisson_loss(
                    sampling_prob=prob,
                    noise_multiplier=kappa,
                    num_rounds=rounds,
                    neighboring_relation=relation,
                    interval=poisson_interval(
                        epsilon=epsilon, noise_multiplier=kappa, num_rounds=horizon
                    ),
                )
            case Poisson(sampling_prob=prob):
                return block_spectral_loss(
                    mechanism.noise,
                    noise_multiplier=kappa,
                    sampling_prob=prob,
                    num_rounds=rounds,
                    horizon=horizon,
                    neighboring_relation=relation,
                    width=self._width,
                    interval=grid_interval(
                        epsilon=epsilon,
                        num_compositions=horizon // self._width + 1,
                        accuracy=2.0,
                    ),
                    cutoff=_CUTOFF * self.delta * rounds / horizon,
                    resolution=0.005,
                )
            case FixedSize(batch_size=batch_size):
                return fixed_size_loss(
                    inclusion_prob=inclusion_prob(batch_size, self.num_records),
                    noise_multiplier=independent,
                    num_rounds=rounds,
                    interval=grid_interval(epsilon=epsilon, num_compositions=horizon),
                    cutoff=_CUTOFF * self.delta * rounds / horizon,
                )
            case _:
                raise TypeError(f"{type(mechanism.sampling).__name__} rounds do not compose")
