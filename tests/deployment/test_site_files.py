"""What a site's administrator gives, and the key that is made from it."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from dpfed_kan.deployment.site_files import site_files
from dpfed_kan.streams import Streams

GIVEN = {"site": "north", "data": "/d/north.csv", "schema": "/d/schema.yaml", "state": "/s"}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"site": None}, "expected site to be a name"),
        ({"site": "../north"}, "expected site='../north' to be letters"),
        ({"data": "north.csv"}, "expected data to be an absolute path"),
        ({"state": 7}, "expected state to be an absolute path"),
        ({"allow-seed": "yes"}, "expected allow-seed, share-metrics true or false"),
        ({"alow-seed": True}, "unknown alow-seed"),
    ],
)
def test_a_wrong_configuration_is_named_by_key(change, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        site_files({**GIVEN, **change})


@pytest.mark.parametrize("name", ["data", "schema", "state"])
def test_a_path_that_is_missing_is_named(name):
    config = {key: value for key, value in GIVEN.items() if key != name}
    with pytest.raises(ValueError, match=f"expected {name}, absolute paths"):
        site_files(config)


def test_nothing_is_allowed_that_was_not_asked_for():
    files = site_files(GIVEN)
    assert not files.allow_seed
    assert not files.share_metrics
    assert files.channel_ca is None


def test_many_processes_at_once_make_one_key(tmp_path):
    files = site_files({**GIVEN, "state": str(tmp_path / "state")})
    with ThreadPoolExecutor(8) as pool:
        keys = {streams.key for streams in pool.map(lambda _: files.streams(), range(32))}
    assert len(keys) == 1
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["key"]
    assert files.streams().key in keys


def test_a_key_of_a_simulation_is_no_key_of_a_site(tmp_path):
    Streams.from_seed(0).save(tmp_path / "key")
    files = site_files({**GIVEN, "state": str(tmp_path)})
    with pytest.raises(ValueError, match="key of a simulation"):
        files.streams()


def test_no_two_runs_of_a_key_draw_alike():
    own = Streams.from_entropy()
    draws = [
        streams.generator("sampling", round_index=0).random(4).tolist()
        for streams in (own, own.for_run("00" * 16), own.for_run("01" * 16))
    ]
    assert len({tuple(draw) for draw in draws}) == 3
    again = own.for_run("01" * 16).generator("sampling", round_index=0).random(4).tolist()
    assert again == draws[2]
