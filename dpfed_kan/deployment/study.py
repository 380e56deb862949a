"""`Study`: what the server tells every site of a run: all of it public, no key in it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from dpfed_kan._validate import check_count
from dpfed_kan.config import build, to_config
from dpfed_kan.data.deployed import SitesOwnFiles
from dpfed_kan.data.encoding import encoded_names
from dpfed_kan.data.schema import Schema
from dpfed_kan.experiment import Experiment
from dpfed_kan.federated.deployed import Deployed
from dpfed_kan.privacy.clipping import Vector
from dpfed_kan.privacy.mechanism import Mechanism

_MEMBERS = {"study", "run_id", "frozen", "num_records"}
_RUN_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, kw_only=True)
class Study:
    """The public part of a run.

    Args:
        experiment: With data of `SitesOwnFiles` and `Deployed` as its runtime.
        run_id: 32 hexadecimal digits; the same when the run is resumed.
        frozen: Parameters that are not trained.
        num_records: Site name to n_k, and the noise in `experiment` calibrated; None before the
            sites have been met.
    """

    experiment: Experiment
    run_id: str
    frozen: Vector = field(repr=False)
    num_records: Mapping[str, int] | None = None

    def __post_init__(self) -> None:
        if not _RUN_ID.fullmatch(self.run_id):
            raise ValueError("expected run_id to be 32 hexadecimal digits")
        data = self.experiment.data
        if not isinstance(data.source, SitesOwnFiles) or not isinstance(self.runtime, Deployed):
            raise ValueError("a study of real sites needs data=at_sites and runtime=deployed")
        if data.test_fraction is None or data.held_out_by != "site":
            raise ValueError(
                "real sites each hold out a share of their own records: set data.held_out_by=site "
                "and data.test_fraction in (0, 1)"
            )
        if self.num_records is None:
            return
        if set(self.num_records) != set(self.source.sites):
            raise ValueError("expected the size of every site of the study, and of no other")
        if self.experiment.noise.noise_multiplier is None:
            raise ValueError("expected a planned study to have its noise calibrated")

    def planned(self, mechanism: Mechanism, num_records: Mapping[str, int]) -> Study:
        """Return the study with what is known once all sites have been met.

        Args:
            mechanism: Its noise calibrated.
            num_records: Site name to n_k.
        """
        experiment = self.experiment
        if experiment.noise.noise_multiplier is None:
            privacy = replace(experiment.privacy, target_epsilon=None)
            experiment = replace(experiment, noise=mechanism.noise, privacy=privacy)
        return replace(self, experiment=experiment, num_records=dict(num_records))

    @property
    def source(self) -> SitesOwnFiles:
        """What is known of the sites' files."""
        source = self.experiment.data.source
        if not isinstance(source, SitesOwnFiles):
            raise TypeError(f"expected SitesOwnFiles, got {type(source).__name__}")
        return source

    @property
    def runtime(self) -> Deployed:
        """How the sites are reached."""
        runtime = self.experiment.runtime
        if not isinstance(runtime, Deployed):
            raise ValueError("a study of real sites needs runtime=deployed")
        return runtime

    @property
    def test_fraction(self) -> float:
        """The share of its records that each site holds out."""
        fraction = self.experiment.data.test_fraction
        if fraction is None:
            raise ValueError("expected data.test_fraction in (0, 1)")
        return fraction

    @property
    def input_dim(self) -> int:
        """d, the number of encoded columns."""
        return len(encoded_names(self.source.schema))

    def settings(self) -> str:
        """Return the study as the text that travels; the server's own paths stay behind."""
        config = to_config(self.experiment)
        config["runtime"] = to_config(
            Deployed(transport=self.runtime.transport, device=self.runtime.device)
        )
        frozen = np.ascontiguousarray(self.frozen, dtype="<f8").tobytes().hex()
        sizes = None if self.num_records is None else dict(sorted(self.num_records.items()))
        document = {"study": config, "run_id": self.run_id, "frozen": frozen}
        return json.dumps(document | {"num_records": sizes})


def study_of(settings: str) -> Study:
    """Return the study that a message describes.

    Raises:
        ValueError: If it describes none.
    """
    document = json.loads(settings)
    if not isinstance(document, dict) or set(document) != _MEMBERS:
        raise ValueError(f"expected the settings of a study: {', '.join(sorted(_MEMBERS))}")
    sizes = document["num_records"]
    if sizes is not None:
        if not isinstance(sizes, dict):
            raise ValueError("expected num_records by site")
        for size in sizes.values():
            check_count("num_records", size)
    frozen = np.frombuffer(bytes.fromhex(document["frozen"]), dtype="<f8")
    return Study(
        experiment=build(document["study"]),
        run_id=document["run_id"],
        frozen=frozen.copy(),
        num_records=sizes,
    )


def described_columns(schema: Schema) -> tuple[str, ...]:
    """Return the declaration of each column and of the label, as text: all that a model sees.

    How a file is written (separator, decimal mark, encoding) is each site's own business.
    """
    declared = [to_config(column) for column in (*schema.columns, schema.label)]
    return tuple(json.dumps(column, sort_keys=True, ensure_ascii=False) for column in declared)


def differences(wanted: tuple[str, ...], found: tuple[str, ...]) -> str:
    """Return which declarations differ, by column name.

    Args:
        wanted: `described_columns` of the study.
        found: Of the site.
    """
    ours, theirs = (
        {str(json.loads(text)["name"]): text for text in described} for described in (wanted, found)
    )
    told = [f"column {name!r} is missing" for name in ours if name not in theirs]
    told += [f"column {name!r} is not in the study" for name in theirs if name not in ours]
    told += [
        f"column {name!r} is declared otherwise"
        for name in ours
        if name in theirs and ours[name] != theirs[name]
    ]
    return "; ".join(told) if told else "the columns are in another order"
