"""Open a deployed site: its own file under its own schema, for one study."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from dpfed_kan.assessment import quality
from dpfed_kan.channel.client import serve
from dpfed_kan.data.encoding import read_records
from dpfed_kan.data.federation import hold_out
from dpfed_kan.data.records import Records
from dpfed_kan.deployment.guarding import answer, approve, guard
from dpfed_kan.deployment.site_files import SiteFiles
from dpfed_kan.deployment.study import Study, described_columns
from dpfed_kan.federated.refusal import Refusal
from dpfed_kan.federated.site import Broadcast, Reply, Site
from dpfed_kan.flower.deployed_records import ChannelOffer, SiteFacts
from dpfed_kan.models import port
from dpfed_kan.privacy.clipping import Vector
from dpfed_kan.privacy.joint_sampling import at_site
from dpfed_kan.schema_file import load_schema
from dpfed_kan.sites.guard import GuardedSite
from dpfed_kan.streams import Streams


@dataclass(frozen=True, kw_only=True)
class DeployedSite:
    """One site that serves one study.

    Args:
        files: What its administrator gave.
        study: What the server asks.
        site: Its training records behind the gradient port; behind its policy and ledger, too,
            where it has a policy.
        num_records: n_k, in units of privacy.
        num_params: D.
        held_out: Its held-out records.
    """

    files: SiteFiles
    study: Study
    site: Site | GuardedSite
    num_records: int
    num_params: int
    held_out: Records = field(repr=False)

    @property
    def run_id(self) -> str:
        """Of the run that is served."""
        return self.study.run_id

    def work(self, broadcast: Broadcast) -> Reply:
        """Answer a broadcast.

        Raises:
            Refusal: If the plan or the site's ledger says no.
        """
        if isinstance(self.site, GuardedSite):
            return answer(self.site, broadcast)
        return self.site.work(broadcast)

    def serve(self, offer: ChannelOffer) -> int:
        """Answer broadcasts over the data channel until the server ends it; return how many.

        Raises:
            Refusal: If this site has no certificate to know the server by.
            ChannelError: If the server refuses, or stays away.
        """
        if self.files.channel_ca is None:
            raise Refusal("the channel transport: this site has no channel-ca")
        return serve(
            self.work,
            site=self.files.site,
            run_id=self.run_id,
            address=offer.address,
            token=offer.token,
            certificate_authority=self.files.channel_ca.read_bytes(),
            dimension=self.num_params,
        )

    def metrics(self, params: Vector) -> dict[str, Any] | None:
        """Return what a model is worth on the held-out records; None unless both sides agree.

        Args:
            params: Shape (D,).
        """
        if not (self.study.source.share_metrics and self.files.share_metrics):
            return None
        model = port.fixed(self.study.experiment.model, self.study.input_dim)
        scores = port.decisions(model, params, self.study.frozen, self.held_out.features)
        return asdict(
            quality(
                scores,
                self.held_out.labels,
                loss=model.loss,
                huber_delta=model.huber_delta,
            )
        )


def open_site(files: SiteFiles, study: Study) -> DeployedSite:
    """Read the site's file, hold out its share, and put the rest behind the gradient port.

    Guarantees:
        Unless the study declares a seed and the site allows that, every draw comes from the
        site's own key, which is made of the operating system's entropy and never leaves.

    A site with a policy works only for a study whose sizes are all known: it can then write down
    the plan that it says yes to.

    Raises:
        Refusal: If the site says no.
        ValueError: If a file cannot be used; for the site's own eyes.
    """
    site, train, held_out = _read(files, study)
    guarded = files.policy is not None and study.num_records is not None
    return DeployedSite(
        files=files,
        study=study,
        site=guard(site, files=files, study=study, train=train) if guarded else site,
        num_records=site.num_records,
        num_params=site.gradients.num_params,
        held_out=held_out,
    )


def facts(files: SiteFiles, study: Study) -> SiteFacts:
    """Return what a site says before round 0; to a study whose sizes are known, also yes or no.

    A site that is not in the study says its name alone; one with another schema, what that
    declares. Nothing is set aside in the site's ledger.

    Raises:
        Refusal: If the site says no: to the plan by its policy, or for another reason.
        ValueError: If a file cannot be used; for the site's own eyes.
    """
    if files.site not in study.source.sites:
        return SiteFacts(site=files.site, columns=())
    columns = described_columns(load_schema(files.schema))
    if columns != described_columns(study.source.schema):
        return SiteFacts(site=files.site, columns=columns)
    site, train, held_out = _read(files, study)
    if files.policy is not None and study.num_records is not None:
        approve(site, files=files, study=study, train=train)
    return SiteFacts(
        site=files.site,
        columns=columns,
        num_records=site.num_records,
        num_params=site.gradients.num_params,
        num_classes=held_out.num_classes or 0,
    )


def _read(files: SiteFiles, study: Study) -> tuple[Site, Records, Records]:
    """Return the site without its guard, what it trains on, and what it holds out."""
    experiment = study.experiment
    if files.site not in study.source.sites:
        raise Refusal("this site is not in the study")
    if experiment.seed is not None and not files.allow_seed:
        raise Refusal("a declared seed: this site serves no simulation")
    split, draws = _streams(files, study)
    schema = load_schema(files.schema)
    if described_columns(schema) != described_columns(study.source.schema):
        raise Refusal("the schema of this site is not the one of the study")
    records = read_records(files.data, schema, site=files.site)
    if len(records) < experiment.data.min_records:
        raise Refusal("fewer records than the study's least number")
    held_out = hold_out(records, study.test_fraction, split.generator("split"))
    train = records.take(np.flatnonzero(~held_out))
    patients = None
    if experiment.privacy.privacy_unit == "patient":
        if train.patients is None:
            raise Refusal("patients are the unit, which this site's schema does not name")
        patients = np.unique(train.patients, return_inverse=True)[1].astype(np.intp)
    num_records = len(train) if patients is None else int(patients.max()) + 1
    gradients = port.gradients(
        port.fixed(experiment.model, study.input_dim),
        frozen=study.frozen,
        features=train.features,
        labels=train.labels,
        device=study.runtime.device,
    )
    site = Site(
        name=files.site,
        num_records=num_records,
        gradients=gradients,
        rows_at_once=gradients.rows_at_once,
        sampling=at_site(experiment.sampling, num_records),
        l2_clip_norm=experiment.privacy.l2_clip_norm,
        streams=draws,
        patients=patients,
    )
    return site, train, records.take(np.flatnonzero(held_out))


def _streams(files: SiteFiles, study: Study) -> tuple[Streams, Streams]:
    """Return what splits, the same for all runs, and what samples, other for every run."""
    if study.experiment.seed is not None:
        seeded = Streams.from_seed(study.experiment.seed).for_site(files.site)
        return seeded, seeded
    own = files.streams()
    return own, own.for_run(study.run_id)
