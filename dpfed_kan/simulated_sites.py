"""The sites of a simulation, built from the one document that travels in every message."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dpfed_kan.config import build, to_config
from dpfed_kan.data.federation import Federation
from dpfed_kan.data.records import Records
from dpfed_kan.experiment import Experiment
from dpfed_kan.federated.fused import FusedSites, UnionSite
from dpfed_kan.federated.site import Site
from dpfed_kan.kan import KANParams
from dpfed_kan.kan.device import check_device
from dpfed_kan.models import port
from dpfed_kan.privacy.clipping import Matrix, Vector
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
        check_device(experiment.runtime.device)
        self.federation: Federation = experiment.data.load(streams)
        self.input_dim = self.federation.held_out.features.shape[1]
        self.model = port.fixed(experiment.model, self.input_dim)
        _check_labels(self.model, self.federation.held_out)
        self.params: KANParams = port.start(
            self.model, self.input_dim, streams.generator("initial_params")
        )
        self._patients = _patients(experiment, self.federation)
        self.num_records = {
            site: len(shard) if site not in self._patients else int(self._patients[site].max()) + 1
            for site, shard in self.federation.shards.items()
        }
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

    @property
    def l2_clip_norm(self) -> float:
        """C."""
        return self._experiment.privacy.l2_clip_norm

    def fused(self, names: Sequence[str] | None = None) -> FusedSites:
        """Return sites as one: the same draws and, up to rounding, the same sums.

        Args:
            names: Which sites; None for all.
        """
        names = sorted(self.num_records if names is None else names)
        shards = [self.federation.shards[name] for name in names]
        gradients = self._gradients(
            np.concatenate([shard.features for shard in shards]),
            np.concatenate([shard.labels for shard in shards]),
        )
        firsts = np.cumsum([0, *(self.num_records[name] for name in names)]).tolist()
        sites = {
            name: UnionSite(
                num_records=self.num_records[name],
                sampling=at_site(self._experiment.sampling, self.num_records[name]),
                streams=self._streams.for_site(name),
                first=first,
            )
            for name, first in zip(names, firsts[:-1], strict=True)
        }
        patients = [self._patients[name] + sites[name].first for name in names if self._patients]
        return FusedSites(
            sites=sites,
            gradients=gradients,
            l2_clip_norm=self._experiment.privacy.l2_clip_norm,
            patients=np.concatenate(patients) if patients else None,
            rows_at_once=gradients.rows_at_once,
        )

    def _gradients(self, features: Matrix, labels: Vector) -> port.Gradients:
        return port.gradients(
            self.model,
            frozen=self.params.frozen,
            features=features,
            labels=labels,
            device=self._experiment.runtime.device,
            precision=self._experiment.precision,
        )

    def __reduce__(self) -> tuple[object, ...]:
        return simulated_sites, (self.settings,)

    def _build(self, partition_id: int) -> Site:
        names = sorted(self.num_records)
        if not 0 <= partition_id < len(names):
            raise ValueError(f"expected partition-id {partition_id} in [0, {len(names)})")
        shard = self.federation.shards[names[partition_id]]
        gradients = self._gradients(shard.features, shard.labels)
        return Site(
            name=names[partition_id],
            num_records=self.num_records[names[partition_id]],
            gradients=gradients,
            rows_at_once=gradients.rows_at_once,
            sampling=at_site(self._experiment.sampling, self.num_records[names[partition_id]]),
            l2_clip_norm=self._experiment.privacy.l2_clip_norm,
            streams=self._streams.for_site(names[partition_id]),
            patients=self._patients.get(names[partition_id]),
        )


def _patients(experiment: Experiment, federation: Federation) -> dict[str, NDArray[np.intp]]:
    """Return whose each record is, numbered within each site, where patients are the unit.

    Raises:
        ValueError: If the source does not name patients, or one is at more sites than allowed.
    """
    if experiment.privacy.privacy_unit == "record":
        return {}
    numbered = {}
    for site, shard in federation.shards.items():
        if shard.patients is None:
            raise ValueError(
                "privacy_unit=patient needs records that say whose they are: declare patient_id"
            )
        numbered[site] = np.unique(shard.patients, return_inverse=True)[1].astype(np.intp)
    allowed, found = experiment.privacy.sites_per_patient, federation.sites_per_patient
    if found > allowed:
        raise ValueError(
            f"some patient has records at {found} sites, more than privacy.sites_per_patient="
            f"{allowed}: each site clips on its own, so a patient's guarantee would multiply. Set "
            f"privacy.sites_per_patient={found} to have it multiplied and said so, or partition by "
            "patients (dpfed_kan.data.partition.PatientGroups)"
        )
    return numbered


def _check_labels(model: port.Model, records: Records) -> None:
    """Refuse a loss that the data's labels are not made for, before anything runs.

    Raises:
        ValueError: If the two do not fit.
    """
    match records.num_classes:
        case None:
            found, wanted = "numbers to predict", ("squared", 1)
            fits = model.loss in ("squared", "huber") and model.num_outputs == 1
        case 2:
            found, wanted = "two classes", ("logistic", 1)
            fits = (model.loss, model.num_outputs) == wanted
        case num_classes:
            found, wanted = f"{num_classes} classes", ("softmax", num_classes)
            fits = (model.loss, model.num_outputs) == wanted
    if not fits:
        raise ValueError(
            f"the data has {found}, but model.loss={model.loss} with "
            f"model.num_outputs={model.num_outputs} is for other labels: set "
            f"model.loss={wanted[0]} model.num_outputs={wanted[1]}"
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
