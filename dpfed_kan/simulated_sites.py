"""The sites of a simulation, built from the one document that travels in every message."""

from __future__ import annotations

import json
from functools import lru_cache

from dpfed_kan.config import build, to_config
from dpfed_kan.data.federation import Federation
from dpfed_kan.experiment import Experiment
from dpfed_kan.federated.site import Site
from dpfed_kan.kan import KANGradients, KANParams
from dpfed_kan.privacy.joint_sampling import at_site
from dpfed_kan.streams import Streams


class SimulatedSites:
    """All sites of a simulated federation; each is built when it is first asked for.

    A simulation is one trust domain, so its key travels with its settings. A copy that
    arrives in another process is built once there and kept.

    Args:
        experiment: What is simulated.
        streams: Its streams.
    """

    def __init__(self, experiment: Experiment, streams: Streams) -> None:
        self.federation: Federation = experiment.data.load(streams)
        self.input_dim = self.federation.held_out.features.shape[1]
        self.model = experiment.model.for_inputs(self.input_dim)
        self.params: KANParams = self.model.initialize(
            self.input_dim, streams.generator("initial_params")
        )
        self.num_records = {site: len(shard) for site, shard in self.federation.shards.items()}
        self.settings = json.dumps(
            {
                "experiment": to_config(experiment),
                "key": streams.key.hex(),
                "seeded": streams.seeded,
            }
        )
        self._experiment = experiment
        self._streams = streams
        self._sites: dict[int, Site] = {}

    def __call__(self, settings: str, partition_id: int) -> Site:
        """Return a site.

        Args:
            settings: Of the message: must be this simulation's.
            partition_id: The site's place in the order of names, from 0.

        Raises:
            ValueError: If the message belongs to another simulation, or there is no such site.
        """
        if settings != self.settings:
            raise ValueError("the message belongs to another simulation")
        if partition_id not in self._sites:
            self._sites[partition_id] = self._build(partition_id)
        return self._sites[partition_id]

    def __reduce__(self) -> tuple[object, ...]:
        return simulated_sites, (self.settings,)

    def _build(self, partition_id: int) -> Site:
        names = sorted(self.num_records)
        if not 0 <= partition_id < len(names):
            raise ValueError(f"expected partition-id {partition_id} in [0, {len(names)})")
        shard = self.federation.shards[names[partition_id]]
        return Site(
            name=names[partition_id],
            num_records=len(shard),
            gradients=KANGradients(
                model=self.model,
                frozen=self.params.frozen,
                features=shard.features,
                labels=shard.labels,
            ),
            sampling=at_site(self._experiment.sampling, len(shard)),
            l2_clip_norm=self._experiment.privacy.l2_clip_norm,
            streams=self._streams.for_site(names[partition_id]),
        )


@lru_cache(maxsize=1)
def simulated_sites(settings: str) -> SimulatedSites:
    """Return the simulation that a document describes, the same object while it is in use."""
    document = json.loads(settings)
    streams = Streams(key=bytes.fromhex(document["key"]), seeded=document["seeded"])
    return SimulatedSites(build(document["experiment"]), streams)


def build_site(settings: str, partition_id: int) -> Site:
    """Return a site of the simulation that a message's settings describe."""
    return simulated_sites(settings)(settings, partition_id)
