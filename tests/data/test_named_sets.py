"""The named data sets: what is in ../shared, and small files of our own."""

import csv
import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfed_kan.config import build
from dpfed_kan.data.dna_splice import DNASplice
from dpfed_kan.data.findings import DataError
from dpfed_kan.data.geometry import CheckerboardGap, MultiInterval, XORGap
from dpfed_kan.data.heart_disease import SITES, HeartDisease
from dpfed_kan.data.mnist import MNIST
from dpfed_kan.streams import Streams
from tests.test_config import composed

STREAMS = Streams.from_seed(0)


def test_heart_disease_is_read_as_flamby_reads_it(shared_dir: Path) -> None:
    root = shared_dir / "data" / "heart_disease"
    records = HeartDisease(root=str(root)).load(STREAMS)
    with (root / "fed_heart_flamby_split.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(records) == 740
    assert [row["site"] for row in rows] == records.sites.tolist()  # type: ignore[union-attr]
    held_out = [row["split"] == "test" for row in rows]
    assert held_out == records.held_out.tolist()  # type: ignore[union-attr]
    np.testing.assert_array_equal(
        records.labels, [1.0 if row["disease"] == "1" else -1.0 for row in rows]
    )
    unit = records.features * np.sqrt(15)
    for name, low, high in (("age", 20, 80), ("chol", 0, 600), ("oldpeak", -3, 7)):
        raw = np.array([float(row[name]) for row in rows])
        place = records.feature_names.index(name)
        expected = np.clip((raw - (low + high) / 2) / ((high - low) / 2), -1, 1)
        np.testing.assert_allclose(unit[:, place], expected, atol=1e-12)
    assert len(records.feature_names) == 15


def test_heart_disease_complete_indicates_what_is_missing(shared_dir: Path) -> None:
    root = shared_dir / "data" / "heart_disease"
    records = HeartDisease(root=str(root), variant="all").load(STREAMS)
    assert len(records) == 920
    assert np.linalg.norm(records.features, axis=1).max() <= 1 + 1e-12
    missing = records.features[:, records.feature_names.index("chol is missing")] > 0
    swiss = records.sites == "switzerland"
    assert (missing & swiss).sum() == 123
    positives = {site: int((records.labels[records.sites == site] > 0).sum()) for site in SITES}
    assert positives["switzerland"] == 115


def test_a_missing_file_says_what_to_get_from_where_and_where_to_put_it(tmp_path: Path) -> None:
    sources = [
        (HeartDisease(root=str(tmp_path)), "processed.cleveland.data", "archive.ics.uci.edu"),
        (MNIST(root=str(tmp_path)), "train-images-idx3-ubyte.gz", "yann.lecun.com"),
        (DNASplice(root=str(tmp_path)), "splice_junction_60bp.csv", "archive.ics.uci.edu"),
    ]
    for source, name, archive in sources:
        with pytest.raises(DataError) as error:
            source.load(STREAMS)  # type: ignore[attr-defined]
        for word in (str(tmp_path / name), archive, "data.root="):
            assert word in str(error.value)


def write_idx(path: Path, array: np.ndarray) -> None:
    head = struct.pack(f">I{array.ndim}I", 0x0800 | array.ndim, *array.shape)
    content = head + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.fixture
def tiny_mnist(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for name, size in (("train", 30), ("t10k", 10)):
        write_idx(tmp_path / f"{name}-images-idx3-ubyte.gz", rng.integers(256, size=(size, 4, 4)))
        write_idx(tmp_path / f"{name}-labels-idx1-ubyte", np.resize([3, 8, 1], size))
    return tmp_path


def test_mnist_takes_two_digits_in_the_stated_scaling(tiny_mnist: Path) -> None:
    def load(**settings: Any) -> Any:
        return MNIST(root=str(tiny_mnist), num_train=15, **settings).load(STREAMS)

    pixels = load()
    assert (len(pixels), int(pixels.held_out.sum())) == (15 + 7, 7)
    assert (pixels.features.min(), pixels.features.max()) == (0.0, 1.0)
    signed = load(pixel_scaling="signed")
    np.testing.assert_allclose(signed.features, (2 * pixels.features - 1) / 4, atol=1e-12)
    norms = np.linalg.norm(load(pixel_scaling="unit_norm").features, axis=1)
    np.testing.assert_allclose(norms, 1.0)
    with pytest.raises(DataError, match="num_train=21 of at most 20"):
        MNIST(root=str(tiny_mnist), num_train=21).load(STREAMS)


def test_all_ten_digits_are_classes_of_their_own(tiny_mnist: Path) -> None:
    loaded = MNIST(root=str(tiny_mnist), all_digits=True, num_train=None).load(STREAMS)
    two = MNIST(root=str(tiny_mnist), num_train=None).load(STREAMS)
    assert loaded.num_classes == 10
    assert len(loaded) >= len(two)
    for digit, sign in ((8, 1.0), (3, -1.0)):
        assert (loaded.labels == digit).sum() == (two.labels == sign).sum()


def test_a_torn_idx_file_is_named(tiny_mnist: Path) -> None:
    for name, content in (
        ("train-images-idx3-ubyte.gz", gzip.compress(b"\x00\x00\x08\x03")),
        ("train-images-idx3-ubyte.gz", b"not gzip"),
        ("train-labels-idx1-ubyte", struct.pack(">II", 0x0801, 30) + b"12"),
    ):
        before = (tiny_mnist / name).read_bytes()
        (tiny_mnist / name).write_bytes(content)
        with pytest.raises(DataError, match=rf"{name} is not an IDX file"):
            MNIST(root=str(tiny_mnist), num_train=None).load(STREAMS)
        (tiny_mnist / name).write_bytes(before)


def test_mnist_in_full_has_its_known_numbers(shared_dir: Path) -> None:
    records = MNIST(root=str(shared_dir / "data" / "mnist"), num_train=None).load(STREAMS)
    assert records.held_out is not None
    train, test = records.labels[~records.held_out], records.labels[records.held_out]
    assert ((train < 0).sum(), (train > 0).sum()) == (6131, 5851)
    assert ((test < 0).sum(), (test > 0).sum()) == (1010, 974)


def test_dna_is_one_hot_with_norm_one(shared_dir: Path, tmp_path: Path) -> None:
    records = DNASplice(root=str(shared_dir / "data" / "dna_splice")).load(STREAMS)
    assert ((records.labels > 0).sum(), (records.labels < 0).sum()) == (767, 765)
    np.testing.assert_allclose(np.linalg.norm(records.features, axis=1), 1.0)
    letters = "".join(np.resize(list("ACGT"), 60))
    rows = ["sequence,class", f"{letters},ei", f"{letters[:-1]}X,ie", "ACGT,n"]
    (tmp_path / "splice_junction_60bp.csv").write_text("\n".join(rows))
    with pytest.raises(DataError, match="not 60 letters ACGT and a class in rows 3, 4"):
        DNASplice(root=str(tmp_path)).load(STREAMS)


def test_the_small_site_of_the_trial_is_refused_and_the_others_go_on(shared_dir: Path) -> None:
    root = f"data.root={shared_dir / 'data' / 'ercp_indo_rct'}"
    with pytest.raises(DataError, match=r"4_Case has 3 records .* fewer than min_records=20"):
        build(composed("data=ercp", root)).data.load(STREAMS)
    allowed = build(composed("data=ercp", root, "data.small_sites=leave_out")).data.load(STREAMS)
    assert list(allowed.shards) == ["1_UM", "2_IU", "3_UK"]
    assert list(allowed.left_out) == ["4_Case"]
    assert sum(len(s) for s in allowed.shards.values()) + len(allowed.held_out) == 164 + 413 + 22


@pytest.mark.parametrize(
    "source",
    [
        MultiInterval(num_records=500, input_dim=1),
        XORGap(num_records=500, input_dim=3),
        CheckerboardGap(num_records=500),
    ],
)
def test_the_separable_tasks_keep_their_gap_and_both_classes(source: Any) -> None:
    records = source.load(STREAMS)
    assert len(records) == 500
    assert 0.35 < (records.labels > 0).mean() < 0.65
    cube = records.features * np.sqrt(source.input_dim)
    signal = cube[:, : min(2, source.input_dim)]
    positive, negative = signal[records.labels > 0], signal[records.labels < 0]
    apart = np.abs(positive[:, None] - negative[None]).max(axis=2).min()
    assert source.gap <= apart + 1e-12 < 3 * source.gap


def test_xor_is_the_sign_of_the_product() -> None:
    records = XORGap(num_records=200).load(STREAMS)
    np.testing.assert_array_equal(records.labels, np.sign(records.features.prod(axis=1)))


def test_a_gap_that_leaves_no_room_is_refused() -> None:
    with pytest.raises(ValueError, match="must have room beside the gap"):
        CheckerboardGap(num_cells=4, gap=0.5)
