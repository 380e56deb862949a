"""A run with canaries in it: the product's server, sites, clip, noise, rule; what is seen."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from dpfed_kan.experiment import Experiment
from dpfed_kan.federated.canaries import (
    BesideCanaries,
    CanaryGradients,
    FixedGradients,
    Listening,
)
from dpfed_kan.federated.server import Server, rounds
from dpfed_kan.federated.site import Broadcast, Reply, Site
from dpfed_kan.privacy.clipping import Matrix, Vector
from dpfed_kan.privacy.joint_sampling import BallsInBins, at_site, total_batch_size
from dpfed_kan.privacy.ledger import Ledger
from dpfed_kan.privacy.mechanism import Mechanism
from dpfed_kan.privacy.sampling import Cyclic, FullBatch, Poisson
from dpfed_kan.simulated_sites import SimulatedSites
from dpfed_kan.streams import Streams
from dpfed_kan.update.rule import UpdateRule

Bug = Literal["noise halved", "clip off"]
CANARIES = "canaries"
_BYSTANDERS, _NUM_BYSTANDERS = "bystanders", 8
_PLACES = 16  # of the canary's site: a reply ten clips long then passes the server's own check
_UNCLIPPED = 10.0


@dataclass(frozen=True, kw_only=True)
class CanaryRun:
    """A federation with a site of m canaries, to be run as often as an auditor likes.

    Args:
        server: As it is accounted for.
        bystanders: All other sites, over D + m parameters.
        num_canaries: m, the records of the canaries' site.
        start: W_0, shape (D + m,).
    """

    server: Server
    bystanders: tuple[Site, ...] = field(repr=False)
    num_canaries: int
    start: Vector = field(repr=False)

    @classmethod
    def small(cls, mechanism: Mechanism, update: UpdateRule, *, streams: Streams) -> CanaryRun:
        """Return a federation of two sites in a few dimensions, for many runs.

        Args:
            mechanism: To audit.
            update: To audit.
            streams: For the bystanders' gradients, about as long as the clip norm, which the
                auditor knows.
        """
        slots = mechanism.sampling
        places = max(_PLACES, slots.num_batches if isinstance(slots, Cyclic) else 0)
        rng = streams.generator("synthetic_data")
        scale = mechanism.l2_clip_norm / np.sqrt(places)
        rows = scale * rng.standard_normal((_NUM_BYSTANDERS, places))
        bystander = Site(
            name=_BYSTANDERS,
            num_records=_NUM_BYSTANDERS,
            gradients=FixedGradients(rows=rows),
            sampling=at_site(mechanism.sampling, _NUM_BYSTANDERS),
            l2_clip_norm=mechanism.l2_clip_norm,
            streams=streams,
        )
        return cls._of(mechanism, update, (bystander,), np.zeros(places), num_canaries=places)

    @classmethod
    def beside(
        cls,
        experiment: Experiment,
        sites: SimulatedSites,
        mechanism: Mechanism,
        *,
        num_canaries: int,
    ) -> CanaryRun:
        """Return an experiment's own sites, records and model, and a site of canaries more.

        Args:
            experiment: To audit.
            sites: Its sites.
            mechanism: Its mechanism, calibrated.
            num_canaries: m.
        """
        bystanders = tuple(
            replace(site, gradients=BesideCanaries(gradients=site.gradients, num_canaries=num))
            for num, site in (
                (num_canaries, sites(sites.settings, place))
                for place in range(len(sites.num_records))
            )
        )
        start = np.concatenate([sites.params.trainable, np.zeros(num_canaries)])
        return cls._of(mechanism, experiment.update, bystanders, start, num_canaries=num_canaries)

    @classmethod
    def _of(
        cls,
        mechanism: Mechanism,
        update: UpdateRule,
        bystanders: tuple[Site, ...],
        start: Vector,
        *,
        num_canaries: int,
    ) -> CanaryRun:
        num_records = {site.name: site.num_records for site in bystanders}
        if CANARIES in num_records:
            raise ValueError(f"a site is named {CANARIES}, as the audit's own: rename it")
        num_records[CANARIES] = num_canaries
        server = Server(
            mechanism=mechanism,
            update_rule=update,
            num_records=num_records,
            batch_size=total_batch_size(mechanism.sampling, list(num_records.values())),
        )
        return cls(server=server, bystanders=bystanders, num_canaries=num_canaries, start=start)

    def patterns(self) -> Matrix:
        """Return y of every canary, shape (T, m), as far as an adversary may know it.

        In a fixed public schedule that is who joins; of random batches, which stay secret, only
        the expected share.
        """
        sampling = self.server.mechanism.sampling
        shape = (self.server.mechanism.num_rounds, self.num_canaries)
        match sampling:
            case FullBatch():
                return np.ones(shape)
            case Cyclic():
                joined = np.zeros(shape)
                for t in range(shape[0]):
                    joined[t, sampling.draw(num_records=shape[1], round_index=t)] = 1.0
                return joined
            case Poisson(sampling_prob=prob):
                return np.full(shape, prob)
            case BallsInBins(num_bins=bins):
                return np.full(shape, 1.0 / bins)
        raise ValueError(
            f"{sampling.describe()}: an audit has batches of its own; choose sampling=full_batch, "
            "cyclic, poisson or balls_in_bins"
        )

    @property
    def sign_of_out(self) -> float:
        """What stands in the place of a canary that is out: its opposite, or nothing (NaN)."""
        return -1.0 if self.server.mechanism.neighboring_relation == "replace_one" else np.nan

    def seen(self, signs: Vector, *, streams: Streams, bug: Bug | None = None) -> Matrix:
        """Run all rounds and return what is seen along each canary's direction.

        Args:
            signs: Shape (m,), as of `CanaryGradients`.
            streams: Of this run and no other.
            bug: Planted where the account does not look: noise at half of κ, or a site that
                clips at ten times C. (With the account's own mechanism the ledger refuses the
                first; a union of sites refuses the second.)

        Returns:
            Shape (T, m), ⟨v_t, u_j⟩ in clip norms, less what the bystanders are known to add.
        """
        mechanism = self.server.mechanism
        clip_norm = mechanism.l2_clip_norm
        if bug == "noise halved":
            mechanism = mechanism.with_noise_multiplier(mechanism.noise_multiplier / 2)
        canaries = Site(
            name=CANARIES,
            num_records=self.num_canaries,
            gradients=CanaryGradients(
                signs=signs,
                model_params=len(self.start) - self.num_canaries,
                l2_clip_norm=clip_norm,
            ),
            sampling=at_site(mechanism.sampling, self.num_canaries),
            l2_clip_norm=clip_norm * (_UNCLIPPED if bug == "clip off" else 1.0),
            streams=streams.for_site(CANARIES),
        )
        bystanders = [
            replace(site, streams=streams.for_site(site.name)) for site in self.bystanders
        ]
        rule = Listening(rule=self.server.update_rule)
        server = replace(self.server, mechanism=mechanism, update_rule=rule)
        known: list[Vector] = []

        def exchange(broadcast: Broadcast) -> list[Reply]:
            replies = [site.work(broadcast) for site in bystanders]
            known.append(np.sum([self._along(reply.value) for reply in replies], axis=0))
            return [*replies, canaries.work(broadcast)]

        steps = rounds(
            server,
            rule.start(self.start, num_rounds=mechanism.num_rounds),
            sum_over_sites=server.over(exchange),
            streams=streams,
            ledger=Ledger(mechanism=mechanism, num_records=server.num_records),
        )
        for _ in steps:
            pass
        heard = np.array([self._along(value) for value in rule.heard])
        return np.asarray((heard - np.array(known)) / clip_norm)

    def _along(self, value: Vector) -> Vector:
        """Return the canaries' coordinates."""
        return value[len(value) - self.num_canaries :]
