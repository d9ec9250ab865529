"""Compares our tf.Example reader with protobuf and TensorFlow, on broken messages.

RLDS_BEAM_FUZZ=100000 pytest tests/encoding/example/test_fuzz.py
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import numpy as np
import pytest
from cases import cases
from example_fuzz import Fuzz, Values, bits, by_protobuf, by_us

from rlds_beam.encoding.example.reader import parse_example
from rlds_beam.encoding.tfds.rlds_dataset import default_schema, encode_example
from rlds_beam.encoding.wire import MalformedError, encode_delimited
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.errors import BadEpisode
from rlds_beam.reading.decoding import EpisodeDecoder
from rlds_beam.testing import make_episode

MESSAGES = int(os.environ.get("RLDS_BEAM_FUZZ", cases(3000)))
SEED = int(os.environ.get("RLDS_BEAM_FUZZ_SEED", "0"))


def canonical(values: Values | None) -> Values | None:
    """Maps empty to malformed: we reject an Example without entries, but protobuf accepts it."""
    return values or None


@pytest.mark.timeout(1200)
def test_we_accept_only_what_protobuf_accepts_with_equal_values():
    """Protobuf accepts every message that we accept, with the same values."""
    fuzz, seen = Fuzz(SEED), Counter[str]()
    for _ in range(MESSAGES):
        data = fuzz.example()
        ours, theirs = by_us(data), canonical(by_protobuf(data))
        seen["both" if ours and theirs else "rejected by protobuf" if not theirs else "rejected only by us"] += 1
        assert ours is None or ours == theirs, data.hex()
    assert min(seen["both"], seen["rejected by protobuf"], seen["rejected only by us"]) > MESSAGES // 50


@pytest.mark.timeout(1200)
def test_values_equal_tensorflow():
    """If both TensorFlow (used by TFDS) and we accept a message, the values are the same."""
    tf = pytest.importorskip("tensorflow")
    dtypes = {"bytes": tf.string, "float": tf.float32, "int64": tf.int64}
    fuzz, compared = Fuzz(SEED + 1), 0
    for _ in range(MESSAGES):
        data = fuzz.example()
        ours = by_us(data)
        if ours is None:
            continue
        expected = {key: tf.io.VarLenFeature(dtypes[kind]) for key, (kind, _) in ours.items() if kind and key}
        if not expected:
            continue
        try:
            read = tf.io.parse_single_example(data, expected)
        except (tf.errors.InvalidArgumentError, UnicodeDecodeError):  # UnicodeDecodeError: the message quotes the bytes
            continue
        for key in expected:
            values = read[key].values.numpy().tolist()
            assert (bits(values) if ours[key][0] == "float" else values) == ours[key][1], (key, data.hex())
        compared += 1
    assert compared > MESSAGES // 5


def test_usual_messages_are_accepted():
    fuzz = Fuzz(SEED + 2)
    fuzz_example = [fuzz.features() for _ in range(200)]  # `odd` is 0: only usual messages
    for features in fuzz_example:
        data = encode_delimited(1, features)
        assert by_us(data) == by_protobuf(data) is not None


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
