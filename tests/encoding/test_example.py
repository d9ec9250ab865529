"""tf.Examples: the reader against protobuf, on sound, mutated, and unusual messages."""

from __future__ import annotations

import pickle
import random
import tracemalloc
from collections import Counter
from typing import Any

import numpy as np
import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from rlds_beam.encoding.example.reader import MAX_STRINGS, ExampleParser, Feature, parse_example
from rlds_beam.encoding.tfds.rlds_dataset import default_schema, encode_example
from rlds_beam.encoding.wire import MalformedError, OutOfRangeError, encode_delimited
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.errors import BadEpisode
from rlds_beam.reading.decoding import EpisodeDecoder
from rlds_beam.testing import make_episode

tf = pytest.importorskip("tensorflow")

MESSAGES = cases(3000)

Values = dict[str, tuple[str | None, list[Any]]]
"""Maps a key to the kind of its list and its values (floats as bits, so that NaN equals NaN)."""


def bits(values: Any) -> list[int]:
    return np.array(values, "<f4").view("<u4").tolist()


def by_protobuf(data: bytes) -> Values | None:
    """Reads with protobuf; None if it refuses, or if there is nothing, which we refuse."""
    try:
        features = tf.train.Example.FromString(data).features.feature
    except Exception:  # a DecodeError of the protobuf that TensorFlow uses
        return None
    found: Values = {}
    for key, feature in features.items():
        kind = feature.WhichOneof("kind")
        values = list(getattr(feature, kind).value) if kind else []
        found[key] = (kind and kind.removesuffix("_list"), bits(values) if kind == "float_list" else values)
    return found or None


def by_us(data: bytes) -> Values | None:
    """Reads all features with our parser; None if it refuses."""
    read: Values = {}
    try:
        for key, feature in parse_example(data).items():
            if feature.kind == "float":
                read[key] = ("float", bits(feature.floats()))
            elif feature.kind == "int64":
                read[key] = ("int64", feature.ints().tolist())
            else:
                read[key] = (feature.kind, feature.strings() if feature.kind else [])
    except MalformedError:
        return None
    return read


def mutated(data: bytes, chance: random.Random) -> bytes:
    """One to three bytes are changed, lost, or added, or the end is missing."""
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(data))
        data = chance.choice(
            [
                data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :],
                data[:at] + data[at + 1 :],
                data[:at] + chance.randbytes(1) + data[at:],
                data[: max(at, 1)],
            ]
        )
    return data


def sound() -> list[bytes]:
    """Messages with each kind of list."""
    feature, train = tf.train.Feature, tf.train
    lists = {
        "a": feature(bytes_list=train.BytesList(value=[b"", b"xyz"])),
        "b": feature(float_list=train.FloatList(value=[1.5, float("nan"), -2])),
        "steps/\u00e9": feature(int64_list=train.Int64List(value=[0, -1, 300, 1 << 62])),
        "none": feature(),
    }
    whole = [train.Example(features=train.Features(feature={key: lists[key]})) for key in lists]
    whole.append(train.Example(features=train.Features(feature=lists)))
    return [one.SerializeToString() for one in whole]


def test_we_accept_only_what_protobuf_accepts_with_equal_values() -> None:
    chance, seen, messages = random.Random(0), Counter[str](), sound()
    for data in messages:
        assert by_us(data) == by_protobuf(data) is not None
    for _ in range(MESSAGES):
        data = mutated(chance.choice(messages), chance)
        ours, theirs = by_us(data), by_protobuf(data)
        seen["both" if ours and theirs else "refused"] += 1
        assert ours is None or ours == theirs, data.hex()
    assert min(seen["both"], seen["refused"]) > MESSAGES // 50


def entry(key: bytes, feature: bytes) -> bytes:
    return encode_delimited(1, encode_delimited(1, key) + encode_delimited(2, feature))


FLOATS = encode_delimited(1, np.float32([1, 2]).tobytes())
ODD = {
    "packed twice": encode_delimited(2, FLOATS + FLOATS),
    "packed, then not": encode_delimited(2, FLOATS + b"\x0d" + bytes(4)),
    "not packed, then packed": encode_delimited(2, b"\x0d" + bytes(4) + FLOATS),
    "two lists": encode_delimited(2, FLOATS) + encode_delimited(2, FLOATS),
    "lists of two kinds": encode_delimited(1, b"") + encode_delimited(2, FLOATS),
    "an unknown field": encode_delimited(2, FLOATS) + encode_delimited(9, b"x"),
    "one in the list": encode_delimited(2, FLOATS + encode_delimited(9, b"x")),
    "part of a float": encode_delimited(2, encode_delimited(1, bytes(7))),
    "a group": encode_delimited(2, FLOATS) + b"\x4b\x4c",
}


@pytest.mark.parametrize("odd", ODD)
def test_messages_on_which_readers_disagree_are_malformed(odd):
    data = encode_delimited(1, entry(b"a", ODD[odd]))
    with pytest.raises(MalformedError):
        parse_example(data)["a"].floats()


@pytest.mark.parametrize("name", ["steps/reward", "steps/not/asked", "nor/for/this"])
def test_a_malformed_list_makes_the_record_malformed(name: str) -> None:
    """Even if the field is not wanted, since protobuf rejects the record."""
    episode = make_episode(3)
    decoder, key = EpisodeDecoder(default_schema(episode)), EpisodeKey("a/1.0.0", "train", 0, 0)
    sound = encode_example(episode, default_schema(episode))
    assert len(decoder.decode(sound, key)) == 3
    record: Any = sound + encode_delimited(1, entry(name.encode(), encode_delimited(2, encode_delimited(1, bytes(7)))))
    assert by_protobuf(record) is None
    with pytest.raises(BadEpisode) as bad:
        decoder.decode(record, key)
    assert [v.rule for v in bad.value.violations] == ["not_an_example"]


def test_both_entries_of_a_duplicate_key_must_be_valid() -> None:
    bad, good = encode_delimited(2, encode_delimited(1, bytes(7))), encode_delimited(2, FLOATS)
    data = encode_delimited(1, entry(b"a", bad) + entry(b"a", good))
    assert by_protobuf(data) is None
    with pytest.raises(MalformedError):
        parse_example(data)


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_int64_lists_equal_protobuf(values: list[int]) -> None:
    check_ints(np.array(values, np.int64))


@pytest.mark.parametrize("high", [2, 128, 1 << 14, 1 << 21, 1 << 62])
def test_long_lists_of_every_width(high: int) -> None:
    check_ints(np.random.default_rng(high % 97).integers(-high if high > 1 << 20 else 0, high, 100_000))


def check_ints(values: Any) -> None:
    """Checks the values as int64 and in narrower dtypes, which reject values that do not fit."""
    message = tf.train.Example()
    message.features.feature["x"].int64_list.value.extend(values.tolist())
    feature = parse_example(message.SerializeToString())["x"]
    np.testing.assert_array_equal(feature.ints(), values)
    for dtype, low, high in ((np.uint8, 0, 255), (np.int32, -(2**31), 2**31 - 1), (np.bool_, 0, 1)):
        if ((values >= low) & (values <= high)).all():
            np.testing.assert_array_equal(feature.ints(dtype), values.astype(dtype))
        else:
            with pytest.raises(OutOfRangeError):
                feature.ints(dtype)


# Small records that would take gigabytes


@pytest.mark.parametrize(
    ("kind", "value", "expected"), [(2, b"\x0d\0\0\x80?", 1.0), (3, b"\x08\x05", 5), (3, b"\x08\xff\x01", 255)]
)
def test_unpacked_numbers_take_no_object_each(kind: int, value: bytes, expected: float) -> None:
    count = 1_000_000
    payload = encode_delimited(1, entry(b"a", encode_delimited(kind, value * count)))
    tracemalloc.start()
    try:
        feature = parse_example(payload)["a"]
        values = feature.floats() if kind == 2 else feature.ints()
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(values) == count and (values == expected).all()
    assert most < 40 * count  # one object per number took 70 bytes, plus list entries


def test_strings_are_counted() -> None:
    def example(count: int) -> bytes:
        return encode_delimited(1, entry(b"a", encode_delimited(1, b"\n\0" * count)))

    assert len(parse_example(example(MAX_STRINGS))["a"].strings()) == MAX_STRINGS
    with pytest.raises(MalformedError, match="more than 2,097,152 strings"):
        parse_example(example(MAX_STRINGS + 1))["a"].strings()


# The parser that remembers the last record


def outcome(parse: Any, payload: bytes) -> list[tuple[str, Feature]] | str:
    """The features in order, or the error for a malformed record."""
    try:
        return [(key, plain(feature)) for key, feature in parse(payload).items()]
    except MalformedError as error:
        return str(error)


def plain(feature: Feature) -> Feature:
    """The feature as `parse_example` returns it: without the start of its numbers, which must be the right one."""
    without = feature._replace(first=0)
    assert not feature.first or feature.first == without.packed_start()
    return without


def check_all(payloads: list[bytes], parser: ExampleParser) -> None:
    for payload in payloads:
        assert outcome(parser.parse, payload) == outcome(parse_example, payload), payload.hex()


def test_every_remembered_byte_matters() -> None:
    """Changes each byte of a record in three ways, after an intact record of the same lengths."""
    records = [encode_example(make_episode(length)) for length in (1, 3, 3, 40, 200)]
    parser = ExampleParser()
    check_all(records, parser)
    parser, payload = pickle.loads(pickle.dumps(parser)), records[1]
    for at in range(len(payload)):
        for flip in (1, 0x80, 0xFF):
            changed = bytearray(payload)
            changed[at] ^= flip
            check_all([payload, bytes(changed), payload[:at]], parser)
