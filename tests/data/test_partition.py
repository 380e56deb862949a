import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfed_kan.data.federation import IID, FederatedData
from dpfed_kan.data.findings import DataError
from dpfed_kan.data.partition import (
    Dirichlet,
    FeatureSkew,
    Natural,
    Pathological,
    PatientGroups,
    QuantitySkew,
    Shards,
)
from dpfed_kan.data.records import Records
from dpfed_kan.schema_file import load_schema
from dpfed_kan.streams import Streams

STREAMS = Streams.from_seed(0)
FIXTURES = Path(__file__).parent / "fixtures"


@dataclass(frozen=True)
class Given:
    """A source of records that are at hand."""

    records: Records

    def load(self, streams: Streams) -> Records:
        return self.records


def records(num_records: int, *, seed: int = 0, num_patients: int | None = None) -> Records:
    rng = np.random.default_rng(seed)
    patients = None
    if num_patients is not None:
        patients = np.array([f"p{k}" for k in rng.integers(num_patients, size=num_records)])
    return Records(
        features=np.arange(2.0 * num_records).reshape(-1, 2) / (2 * num_records),
        labels=np.where(rng.random(num_records) < 0.3, 1.0, -1.0),
        feature_names=("a", "b"),
        patients=patients,
        sites=np.array([f"hospital-{k}" for k in rng.integers(3, size=num_records)]),
    )


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


PARTITIONS = [
    lambda k: IID(num_sites=k),
    lambda k: Dirichlet(num_sites=k, concentration=0.1),
    lambda k: Dirichlet(num_sites=k, concentration=100.0),
    lambda k: Pathological(num_sites=k, classes_per_site=1 if k > 1 else 2),
    lambda k: Pathological(num_sites=k, classes_per_site=2),
    lambda k: Shards(num_sites=k, shards_per_site=2),
    lambda k: QuantitySkew(num_sites=k, concentration=0.3),
    lambda k: FeatureSkew(num_sites=k, feature="b"),
    lambda k: PatientGroups(num_sites=k),
    lambda k: Natural(),
]


@pytest.mark.parametrize("make", PARTITIONS)
@given(num_records=st.integers(30, 90), num_sites=st.integers(1, 7), seed=st.integers(0, 9))
def test_no_record_is_lost_or_doubled(
    make: Any, num_records: int, num_sites: int, seed: int
) -> None:
    given_records = records(num_records, seed=seed, num_patients=12)
    parts = make(num_sites).split(given_records, np.random.default_rng(seed))
    together = np.sort(np.concatenate(list(parts.values())))
    np.testing.assert_array_equal(together, np.arange(num_records))
    again = make(num_sites).split(given_records, np.random.default_rng(seed))
    assert {site: part.tolist() for site, part in parts.items()} == {
        site: part.tolist() for site, part in again.items()
    }
    if not isinstance(make(num_sites), Natural):
        assert len(parts) == num_sites


@pytest.mark.parametrize("make", PARTITIONS)
@given(seed=st.integers(0, 20))
def test_a_federation_loses_none_either_and_no_site_is_empty(make: Any, seed: int) -> None:
    source = Given(records(60, seed=seed, num_patients=20))
    data = FederatedData(source=source, partition=make(3), min_records=1, small_sites="leave_out")
    federation = data.load(Streams.from_seed(seed))
    assert all(len(shard) > 0 for shard in federation.shards.values())
    ids = [part.features[:, 0] for part in (*federation.shards.values(), federation.held_out)]
    if not federation.left_out:
        np.testing.assert_array_equal(np.sort(np.concatenate(ids)), source.records.features[:, 0])


def test_a_small_concentration_makes_unlike_sites_and_a_large_one_like_ones() -> None:
    def spread(concentration: float) -> float:
        given_records = records(4000)
        parts = Dirichlet(num_sites=4, concentration=concentration).split(given_records, rng())
        return float(np.std([(given_records.labels[p] > 0).mean() for p in parts.values()]))

    assert spread(0.1) > 0.1 > 0.03 > spread(1000.0)


def test_a_pathological_site_sees_its_classes_only() -> None:
    given_records = records(200)
    parts = Pathological(num_sites=4, classes_per_site=1).split(given_records, rng())
    assert all(len(set(given_records.labels[part])) == 1 for part in parts.values())
    both = Pathological(num_sites=4, classes_per_site=2).split(given_records, rng())
    assert all(len(set(given_records.labels[part])) == 2 for part in both.values())
    with pytest.raises(ValueError, match="classes_per_site=3 of at most 2"):
        Pathological(num_sites=4, classes_per_site=3).split(given_records, rng())
    with pytest.raises(ValueError, match="num_sites·classes_per_site=1"):
        Pathological(num_sites=1, classes_per_site=1).split(given_records, rng())


def test_feature_bands_do_not_overlap() -> None:
    given_records = records(100)
    parts = FeatureSkew(num_sites=4, feature="a").split(given_records, rng())
    ends = [given_records.features[part, 0] for part in parts.values()]
    assert all(low.max() < high.min() for low, high in itertools.pairwise(ends))
    with pytest.raises(ValueError, match=r"feature='c' in \{a, b\}"):
        FeatureSkew(feature="c").split(given_records, rng())


def test_quantity_skew_makes_unequal_sites() -> None:
    sizes = [len(p) for p in QuantitySkew(concentration=0.3).split(records(400), rng()).values()]
    assert max(sizes) > 2 * min(sizes)


@pytest.mark.parametrize("seed", range(5))
def test_a_patient_is_never_in_two_places(seed: int) -> None:
    source = Given(records(300, seed=seed, num_patients=60))
    federation = FederatedData(
        source=source, partition=PatientGroups(num_sites=3), min_records=5
    ).load(Streams.from_seed(seed))
    places = [
        set(part.patients.tolist())  # type: ignore[union-attr]
        for part in (*federation.shards.values(), federation.held_out)
    ]
    assert sum(map(len, places)) == len(set.union(*places)) > 50
    assert federation.sites_per_patient == 1
    scattered = FederatedData(source=source, partition=IID(num_sites=3), min_records=5)
    assert scattered.load(STREAMS).sites_per_patient == 3


def test_partitions_that_need_more_than_the_source_says_are_refused() -> None:
    bare = Records(features=np.zeros((9, 1)), labels=np.ones(9), feature_names=("a",))
    with pytest.raises(ValueError, match="declare patient_id"):
        PatientGroups().split(bare, rng())
    with pytest.raises(ValueError, match="which site they come from"):
        Natural().split(bare, rng())
    with pytest.raises(ValueError, match="holds records out itself"):
        FederatedData(source=Given(bare), partition=IID(), test_fraction=None).load(STREAMS)


def test_a_small_site_is_refused_with_the_reason_unless_something_is_said() -> None:
    few = Given(records(90).take(np.arange(60)))
    sites, counts = np.unique(few.records.sites, return_counts=True)  # type: ignore[type-var]
    smallest = str(sites[counts.argmin()])

    def load(**settings: Any) -> Any:
        return FederatedData(source=few, partition=Natural(), **settings).load(STREAMS)

    with pytest.raises(DataError, match=rf"{smallest} has {counts.min()} records .* fewer than"):
        load(min_records=int(counts.min()) + 1)
    left = load(min_records=int(counts.min()) + 1, small_sites="leave_out")
    assert set(left.left_out) == {smallest}
    assert smallest not in left.shards
    assert smallest not in left.held_out.sites
    assert set(load(min_records=2).shards) == set(sites)
    with pytest.raises(DataError, match="small_sites=leave_out to train without such sites"):
        load(min_records=1000, small_sites="leave_out")  # nobody is left


def test_few_patients_are_few_however_many_their_records() -> None:
    source = Given(records(300, num_patients=9))
    with pytest.raises(DataError, match=r"patients, fewer than min_records=20"):
        FederatedData(source=source, partition=PatientGroups(num_sites=2)).load(STREAMS)


def csv_data(*names: str, **settings: Any) -> FederatedData:
    from dpfed_kan.data.files import CSVFiles, SiteFile

    files = tuple(SiteFile(site=name, path=f"{name}.csv") for name in names)
    schema = load_schema(FIXTURES / "schema.yaml")
    source = CSVFiles(root=str(FIXTURES), files=files, schema=schema)
    return FederatedData(source=source, partition=Natural(), **settings)


def test_an_empty_site_is_named_and_left_out_and_nobody_left_stops_the_run() -> None:  # F04
    with pytest.raises(DataError, match="no usable rows at any site"):
        csv_data("f04_header_only").load(STREAMS)
    with pytest.raises(DataError, match="f04_header_only has 0 records"):
        csv_data("base_site_a", "f04_header_only").load(STREAMS)
    both = csv_data("base_site_a", "f04_header_only", small_sites="leave_out").load(STREAMS)
    alone = csv_data("base_site_a").load(STREAMS)
    assert "f04_header_only has 0 records" in both.left_out["f04_header_only"]
    np.testing.assert_array_equal(
        both.shards["base_site_a"].features, alone.shards["base_site_a"].features
    )


def test_one_row_is_refused_and_runs_with_the_explicit_option() -> None:  # F05
    with pytest.raises(DataError, match=r"f05_one_row has 1 records"):
        csv_data("base_site_a", "f05_one_row", test_fraction=0.1).load(STREAMS)
    admitted = csv_data("base_site_a", "f05_five_rows", test_fraction=0.1, min_records=1)
    assert set(admitted.load(STREAMS).shards) == {"base_site_a", "f05_five_rows"}


@pytest.mark.parametrize(
    ("site", "said"),
    [
        ("f07_site_extra_column", "column 7 of the file, after 'chol', is not in the schema"),
        ("f07_site_missing_column", "column 'oldpeak' is missing"),
        ("d05_labels_text", "column 'target': neither a positive nor a negative code"),
    ],
)
def test_a_site_whose_file_differs_is_named_before_training(site: str, said: str) -> None:  # F07
    with pytest.raises(DataError, match=rf"{site}.*{re.escape(said)}"):
        csv_data("base_site_a", site).load(STREAMS)
