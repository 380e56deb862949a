import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer

from dpfed_kan.data.breast_cancer import BreastCancer
from dpfed_kan.data.federation import IID, FederatedData
from dpfed_kan.data.records import Records
from dpfed_kan.data.scaling import scale_by_public_range
from dpfed_kan.data.synthetic import SyntheticLogistic
from dpfed_kan.streams import Streams

STREAMS = Streams.from_seed(0)


def records(features: np.ndarray, labels: np.ndarray | None = None) -> Records:
    signs = np.resize([1.0, -1.0], len(features)) if labels is None else labels
    names = tuple(f"column {j}" for j in range(features.shape[1]))
    return Records(features=features, labels=signs, feature_names=names)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_cell_that_is_not_finite_is_named_by_column_and_row_and_not_shown(poison: float) -> None:
    features = np.full((9, 3), 0.123)
    features[[2, 7], 1] = poison
    with pytest.raises(ValueError, match=r"column 'column 1' is not finite in rows 2, 7;") as error:
        records(features)
    assert "0.123" not in str(error.value)


def test_many_bad_rows_are_counted_and_not_listed() -> None:
    features = np.full((50, 1), math.nan)
    with pytest.raises(ValueError, match=r"rows 0, 1, 2, 3, 4 and 45 more"):
        records(features)


@pytest.mark.parametrize("bad", [0.0, 2.0, math.nan])
def test_a_label_that_is_no_class_is_named_by_row(bad: float) -> None:
    with pytest.raises(ValueError, match=r"label to be -1 or \+1; it is not in row 3$"):
        records(np.zeros((5, 1)), np.array([1.0, -1.0, 1.0, bad, 1.0]))


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match="labels"):
        records(np.zeros((5, 1)), np.ones(4))
    with pytest.raises(ValueError, match="features of shape"):
        Records(features=np.zeros((5, 2)), labels=np.ones(5), feature_names=("only",))


def test_scaling_maps_the_public_range_onto_the_unit_ball() -> None:
    values = np.array([[0.0, 10.0], [5.0, 20.0], [10.0, 30.0], [-99.0, 99.0]])
    scaled = scale_by_public_range(values, low=np.array([0.0, 10]), high=np.array([10.0, 30]))
    unit = np.array([[-1, -1], [0, 0], [1, 1], [-1, 1]]) / math.sqrt(2)
    np.testing.assert_allclose(scaled, unit, atol=1e-15)
    assert np.linalg.norm(scaled, axis=1).max() <= 1 + 1e-15


def test_a_range_of_one_point_is_fine_and_an_empty_one_is_not() -> None:
    flat = scale_by_public_range(np.full((3, 1), 5.0), low=np.array([5.0]), high=np.array([5.0]))
    np.testing.assert_array_equal(flat, np.zeros((3, 1)))
    for low, high in ((6.0, 5.0), (math.nan, 1.0), (0.0, math.inf)):
        with pytest.raises(ValueError, match="low <= high"):
            scale_by_public_range(np.zeros((1, 1)), low=np.array([low]), high=np.array([high]))


def test_breast_cancer_is_scaled_by_its_published_ranges_and_not_by_its_records() -> None:
    loaded = BreastCancer().load(STREAMS)
    assert (len(loaded), len(loaded.feature_names)) == (569, 30)
    assert (loaded.labels == 1).sum() == 212  # malignant
    bundle = load_breast_cancer()
    published = re.search(r"radius \(mean\):\s+([\d.]+)\s+([\d.]+)", bundle.DESCR)
    assert published is not None
    low, high = map(float, published.groups())
    expected = (2 * (bundle.data[:, 0] - low) / (high - low) - 1) / math.sqrt(30)
    np.testing.assert_allclose(loaded.features[:, 0], expected, atol=1e-12)
    assert np.abs(loaded.features).max() <= 1 / math.sqrt(30) + 1e-12
    assert np.linalg.norm(loaded.features, axis=1).max() <= 1


def test_synthetic_labels_follow_the_stated_law_and_the_streams() -> None:
    source = SyntheticLogistic(num_records=4000, input_dim=5, steepness=8.0)
    first, again = source.load(STREAMS), source.load(STREAMS)
    np.testing.assert_array_equal(first.features, again.features)
    assert not np.array_equal(first.features, source.load(Streams.from_seed(1)).features)
    assert np.linalg.norm(first.features, axis=1).max() <= 1
    assert abs((first.labels > 0).mean() - 0.5) < 0.05
    direction = first.features.T @ first.labels
    margins = first.features @ (direction / np.linalg.norm(direction)) * math.sqrt(5)
    sure = np.abs(margins) > 0.5
    assert (np.sign(margins[sure]) == first.labels[sure]).mean() > 0.95


@given(
    num_records=st.integers(12, 80),
    num_sites=st.integers(1, 9),
    test_fraction=st.floats(0.05, 0.25),
    seed=st.integers(0, 5),
)
def test_no_record_is_lost_or_doubled(
    num_records: int, num_sites: int, test_fraction: float, seed: int
) -> None:
    source = SyntheticLogistic(num_records=num_records, input_dim=2)
    data = FederatedData(
        source=source, partition=IID(num_sites=num_sites), test_fraction=test_fraction
    )
    streams = Streams.from_seed(seed)
    federation = data.load(streams)
    parts = [*federation.shards.values(), federation.held_out]
    together = np.concatenate([part.features for part in parts])
    original = source.load(streams).features
    np.testing.assert_array_equal(
        together[np.lexsort(together.T)], original[np.lexsort(original.T)]
    )
    sizes = [len(shard) for shard in federation.shards.values()]
    assert max(sizes) - min(sizes) <= 1
    assert list(federation.shards) == sorted(federation.shards)
    assert len(federation.shards) == num_sites


def test_the_same_streams_deal_the_same_records_and_others_others() -> None:
    data = FederatedData(source=SyntheticLogistic(num_records=50), partition=IID(num_sites=2))
    first, again = data.load(STREAMS), data.load(STREAMS)
    for site in first.shards:
        np.testing.assert_array_equal(first.shards[site].features, again.shards[site].features)
    fixed = FederatedData(source=BreastCancer(), partition=IID(num_sites=2))
    held = [fixed.load(Streams.from_seed(seed)).held_out.features for seed in (0, 1)]
    assert not np.array_equal(held[0], held[1])


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, math.nan])
def test_a_test_fraction_leaves_records_on_both_sides(fraction: float) -> None:
    with pytest.raises(ValueError, match="test_fraction"):
        FederatedData(source=BreastCancer(), partition=IID(), test_fraction=fraction)
    tiny = FederatedData(
        source=SyntheticLogistic(num_records=3), partition=IID(num_sites=1), test_fraction=0.01
    )
    with pytest.raises(ValueError, match="both sides of 3"):
        tiny.load(STREAMS)


def test_more_sites_than_records_are_refused() -> None:
    data = FederatedData(source=SyntheticLogistic(num_records=5), partition=IID(num_sites=6))
    with pytest.raises(ValueError, match="num_sites=6"):
        data.load(STREAMS)
