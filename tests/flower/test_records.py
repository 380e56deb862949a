from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from dpfed_kan.federated.site import Broadcast, Reply
from dpfed_kan.flower.records import (
    Facts,
    WireError,
    decode_broadcast,
    decode_facts,
    decode_reply,
    decode_vector,
    encode_broadcast,
    encode_facts,
    encode_reply,
    encode_vector,
)

CANARY = 31415.92653589793
VECTOR = np.array([1.5, -2.25, CANARY, 5e-324])


def reply_record(array: Array, **config: object) -> RecordDict:
    config = {"round_index": 0, "site": "site-1", **config}
    return RecordDict(
        {"arrays": ArrayRecord({"clipped_sum": array}), "config": ConfigRecord(config)}
    )


@pytest.mark.parametrize("length", [0, 1, 7, 4096, 100_003])
def test_a_vector_has_the_bytes_of_flowers_own_encoding(length):
    vector = np.random.default_rng(length).standard_normal(length)
    ours, theirs = encode_vector(vector), Array(vector)
    assert (ours.data, ours.dtype, tuple(ours.shape), ours.stype) == (
        theirs.data,
        theirs.dtype,
        tuple(theirs.shape),
        theirs.stype,
    )
    assert decode_vector(theirs).tobytes() == vector.tobytes() == ours.numpy().tobytes()


def test_a_vector_that_is_not_contiguous_is_sent_as_what_it_shows():
    vector = np.arange(10.0)[::3]
    assert decode_vector(encode_vector(vector)).tolist() == [0.0, 3.0, 6.0, 9.0]


@pytest.mark.parametrize(
    "value", [np.arange(3), np.zeros(3, dtype=np.float32), np.zeros((2, 2)), np.float64(1.0)]
)
def test_nothing_but_a_float64_vector_is_sent(value):
    with pytest.raises(WireError, match="expected a float64 vector"):
        encode_vector(value)


def test_broadcast_reply_and_facts_come_back_as_they_were_sent():
    broadcast = Broadcast(round_index=3, params=VECTOR)
    came, settings = decode_broadcast(encode_broadcast(broadcast, settings="s"))
    assert (came.round_index, came.params.tobytes(), settings) == (3, VECTOR.tobytes(), "s")
    reply = decode_reply(encode_reply(Reply(site="a", round_index=2, value=VECTOR)))
    assert (reply.site, reply.round_index, reply.value.tobytes()) == ("a", 2, VECTOR.tobytes())
    facts = Facts(site="a", num_records=7, num_params=4)
    assert decode_facts(encode_facts(facts)) == facts


def test_a_reply_holds_the_named_array_the_round_and_the_site_and_nothing_else():
    record = encode_reply(Reply(site="a", round_index=2, value=VECTOR))
    assert list(record) == ["arrays", "config"]
    assert list(record.array_records["arrays"]) == ["clipped_sum"]
    assert dict(record.config_records["config"]) == {"round_index": 2, "site": "a"}


def test_what_was_decoded_cannot_be_written_to():
    with pytest.raises(ValueError, match="read-only"):
        decode_vector(encode_vector(VECTOR))[0] = 1.0


GOOD = encode_vector(VECTOR)
CONFIG = ConfigRecord({"round_index": 0, "site": "site-1"})


@pytest.mark.parametrize(
    "array",
    [
        Array(VECTOR.astype(np.float32)),
        Array(VECTOR.astype(">f8")),
        Array(VECTOR.reshape(2, 2)),
        Array("float64", (4,), "torch.Tensor", GOOD.data),
        Array("float64", (4,), "numpy.ndarray", GOOD.data[:-1]),
        Array("float64", (4,), "numpy.ndarray", GOOD.data + b"\0" * 8),
        Array("float64", (3,), "numpy.ndarray", GOOD.data),
        Array("float64", (-4,), "numpy.ndarray", GOOD.data),
        Array("float64", (4,), "numpy.ndarray", b""),
        Array("float64", (4,), "numpy.ndarray", Array(VECTOR.astype(np.int64)).data),
    ],
    ids=[
        "float32", "big-endian", "matrix", "torch", "truncated", "too long", "other length",
        "negative length", "empty", "integers named float64",
    ],
)  # fmt: skip
def test_anything_but_the_bytes_of_a_float64_vector_is_refused_without_its_values(array):
    with pytest.raises(WireError) as refused:
        decode_reply(reply_record(array))
    assert "31415" not in str(refused.value)


@pytest.mark.parametrize(
    "record",
    [
        RecordDict(),
        RecordDict({"arrays": ArrayRecord({"params": GOOD}), "config": CONFIG}),
        RecordDict({"arrays": ArrayRecord(), "config": CONFIG}),
        RecordDict({"arrays": ArrayRecord({"clipped_sum": GOOD, "batch": GOOD}), "config": CONFIG}),
        RecordDict({"other": ArrayRecord({"clipped_sum": GOOD}), "config": CONFIG}),
        RecordDict(
            {
                "arrays": ArrayRecord({"clipped_sum": GOOD}),
                "config": CONFIG,
                "more": ArrayRecord({"clipped_sum": GOOD}),
            }
        ),
        RecordDict({"arrays": ArrayRecord({"clipped_sum": GOOD})}),
        RecordDict({"arrays": MetricRecord(), "config": CONFIG}),
        RecordDict({"arrays": ArrayRecord({"clipped_sum": GOOD}), "config": MetricRecord()}),
        reply_record(GOOD, round_index="0"),
        reply_record(GOOD, round_index=True),
        reply_record(GOOD, round_index=-1),
        reply_record(GOOD, site=7),
    ],
)
def test_a_reply_with_other_names_or_types_is_refused(record):
    with pytest.raises(WireError, match="expected"):
        decode_reply(record)


@pytest.mark.parametrize("missing", ["site", "num_records", "num_params"])
def test_facts_with_a_name_missing_are_refused(missing):
    record = encode_facts(Facts(site="a", num_records=7, num_params=4))
    del record.config_records["config"][missing]
    with pytest.raises(WireError, match="expected an answer with"):
        decode_facts(record)


def test_a_broadcast_without_settings_is_refused():
    record = encode_broadcast(Broadcast(round_index=0, params=VECTOR), settings="s")
    del record.config_records["config"]["settings"]
    with pytest.raises(WireError, match="settings"):
        decode_broadcast(record)
