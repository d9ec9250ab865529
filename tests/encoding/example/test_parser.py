"""The parser that remembers the last record has the same results as the one that does not."""

from __future__ import annotations

import pickle
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds_beam.encoding.example import reader as example_parsing
from rlds_beam.encoding.example.reader import ExampleParser, Feature, parse_example
from rlds_beam.encoding.tfds.rlds_dataset import default_schema, encode_example
from rlds_beam.encoding.wire import MalformedError, encode_delimited
from rlds_beam.testing import make_episode


def outcome(parse, payload: bytes) -> list[tuple[str, Feature]] | str:
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


def check_all(payloads: Iterable[bytes], parser: ExampleParser) -> None:
    for payload in payloads:
        assert outcome(parser.parse, payload) == outcome(parse_example, payload), payload.hex()


def record(length: int) -> bytes:
    episode = make_episode(length)
    return encode_example(episode, default_schema(episode))


RECORDS = [record(length) for length in (1, 3, 3, 40, 200)]


@pytest.fixture(scope="module")
def warm() -> ExampleParser:
    """A parser that has read a record and was pickled to a worker."""
    parser = ExampleParser()
    parser.parse(RECORDS[1])
    return pickle.loads(pickle.dumps(parser))


@given(
    st.lists(
        st.tuples(st.sampled_from(RECORDS), st.integers(0, 10_000), st.sampled_from(("sound", "cut", "byte", "more"))),
        min_size=2,
        max_size=6,
    ),
    st.binary(min_size=1, max_size=12),
)
def test_intact_damaged_and_cut_records_in_any_order(chosen: list[tuple[bytes, int, str]], other: bytes) -> None:
    parser = ExampleParser()
    for payload, place, kind in chosen:
        at = place % len(payload)
        changed = {
            "sound": payload,
            "cut": payload[:at],
            "byte": payload[:at] + other + payload[at + len(other) :],
            "more": payload[:at] + other + payload[at:],
        }[kind]
        check_all([payload, changed], parser)


def test_every_remembered_byte_matters(warm: ExampleParser) -> None:
    """Changes each byte of a record in three ways, after an intact record of the same lengths."""
    payload = RECORDS[1]
    for at in range(len(payload)):
        for flip in (1, 0x80, 0xFF):
            changed = bytearray(payload)
            changed[at] ^= flip
            check_all([payload, bytes(changed), payload[:at]], warm)


def test_a_similar_record_is_not_parsed_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = ExampleParser()
    parser.parse(RECORDS[0])
    expected = [parse_example(payload) for payload in RECORDS]
    monkeypatch.setattr(example_parsing, "parse_example", lambda payload: pytest.fail("parsed from the start"))
    found = [parser.parse(payload) for payload in RECORDS]
    assert [{key: plain(feature) for key, feature in one.items()} for one in found] == expected


def test_keys_before_the_first_and_after_the_last() -> None:
    entry = encode_delimited(
        1,
        encode_delimited(1, b"a")
        + encode_delimited(2, encode_delimited(2, encode_delimited(1, np.float32([1]).tobytes()))),
    )
    other = entry.replace(b"\x01a", b"\x01b")
    parser = ExampleParser()
    for entries in (entry, entry + other, entry, other + entry, other, entry + entry, b"", entry):
        check_all([encode_delimited(1, entries)], parser)
