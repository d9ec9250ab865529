"""Our tf.Example reader against protobuf, on mutated and unusual messages."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
from cases import cases

from rlds_beam.encoding.example.reader import parse_example
from rlds_beam.encoding.tfds.rlds_dataset import default_schema, encode_example
from rlds_beam.encoding.wire import MalformedError, encode_delimited
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


def test_a_tag_longer_than_necessary_is_malformed():
    """Protobuf accepts it, but TensorFlow skips it as unknown."""
    data = encode_delimited(1, entry(b"a", encode_delimited(2, FLOATS)))
    long = b"\x8a\x00" + data[1:]
    assert by_protobuf(long) == by_protobuf(data) == by_us(data)
    assert by_us(long) is None


@pytest.mark.parametrize("odd", ODD)
def test_messages_on_which_readers_disagree_are_malformed(odd):
    data = encode_delimited(1, entry(b"a", ODD[odd]))
    with pytest.raises(MalformedError):
        parse_example(data)["a"].floats()


def test_unpacked_numbers():
    numbers = b"".join(b"\x0d" + np.float32(i).tobytes() for i in range(3))
    example = parse_example(encode_delimited(1, entry(b"a", encode_delimited(2, numbers))))
    assert example["a"].floats().tolist() == [0, 1, 2]


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
