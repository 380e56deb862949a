import itertools
import os
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from randomgen import AESCounter

from dpfed_kan.streams import Streams

PURPOSES = ["noise", "sampling", "initial_params", "synthetic_data", "split", "partition"]


def test_the_bit_generator_is_aes_128_in_counter_mode() -> None:
    key = bytes(range(16))
    raw = AESCounter(key=int.from_bytes(key, "little"), counter=0).random_raw(64)
    blocks = b"".join(index.to_bytes(16, "little") for index in range(32))
    expected = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(blocks)
    assert raw.astype("<u8").tobytes() == expected


def test_a_stream_opened_again_starts_again() -> None:
    streams = Streams.from_seed(3)
    first = streams.generator("noise", round_index=5).standard_normal(100)
    assert np.array_equal(first, streams.generator("noise", round_index=5).standard_normal(100))


def test_no_two_names_share_a_stream() -> None:
    streams = Streams.from_seed(0)
    rngs = [streams.generator(purpose) for purpose in PURPOSES]
    rngs += [streams.generator("noise", round_index=t) for t in range(4)]
    rngs += [streams.generator("sampling", round_index=t) for t in range(4)]
    rngs += [
        streams.for_site(site).generator("sampling", round_index=t)
        for site in ("site-1", "site-2", "site-11")
        for t in range(2)
    ]
    draws = np.array([rng.standard_normal(10_000) for rng in rngs])
    correlations = np.corrcoef(draws) - np.eye(len(draws))
    assert np.abs(correlations).max() < 0.05


def test_sites_that_hold_the_same_records_draw_different_rows() -> None:
    streams = Streams.from_seed(0)
    draws = [
        streams.for_site(f"site-{k}").generator("sampling", round_index=0).random(200) < 0.2
        for k in range(4)
    ]
    for first, second in itertools.combinations(draws, 2):
        assert not np.array_equal(first, second)


def test_fresh_streams_differ_and_say_that_they_are_not_seeded() -> None:
    first, second = Streams.from_entropy(), Streams.from_entropy()
    assert first.key != second.key
    assert not first.seeded
    assert Streams.from_seed(1).seeded


def test_the_key_is_in_no_text() -> None:
    streams = Streams.from_entropy()
    assert streams.key.hex() not in repr(streams)
    assert repr(streams.key) not in repr(streams)
    with pytest.raises(ValueError, match="32 bytes") as error:
        Streams(key=b"CANARY", seeded=False)
    assert "CANARY" not in str(error.value)


def test_a_saved_key_is_readable_by_its_owner_only_and_loads_again(tmp_path: Path) -> None:
    path = tmp_path / "key"
    for streams in (Streams.from_entropy(), Streams.from_seed(7)):
        path.unlink(missing_ok=True)
        streams.save(path)
        assert os.stat(path).st_mode & 0o777 == 0o600
        assert Streams.load(path) == streams
        with pytest.raises(FileExistsError):
            streams.save(path)
    path.write_text("CANARY")
    with pytest.raises(ValueError, match="not a key file") as error:
        Streams.load(path)
    assert "CANARY" not in str(error.value)


@pytest.mark.parametrize("seed", [-1, 1.5, True, "0"])
def test_a_seed_is_a_natural_number(seed: object) -> None:
    with pytest.raises(ValueError, match="seed"):
        Streams.from_seed(seed)  # type: ignore[arg-type]
