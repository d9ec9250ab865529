"""Small tf.Examples that would take gigabytes: unpacked lists, and lists of empty strings."""

from __future__ import annotations

import tracemalloc

import pytest

from rlds_beam.encoding.example.reader import MAX_STRINGS, parse_example
from rlds_beam.encoding.wire import MalformedError, encode_delimited

COUNT = 1_000_000


def example(kind: int, values: bytes) -> bytes:
    return encode_delimited(
        1, encode_delimited(1, encode_delimited(1, b"a") + encode_delimited(2, encode_delimited(kind, values)))
    )


@pytest.mark.parametrize(
    ("kind", "value", "expected"), [(2, b"\x0d\0\0\x80?", 1.0), (3, b"\x08\x05", 5), (3, b"\x08\xff\x01", 255)]
)
def test_unpacked_numbers_take_no_object_each(kind: int, value: bytes, expected: float) -> None:
    payload = example(kind, value * COUNT)
    tracemalloc.start()
    try:
        feature = parse_example(payload)["a"]
        values = feature.floats() if kind == 2 else feature.ints()
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(values) == COUNT and (values == expected).all()
    assert most < 40 * COUNT  # one object per number took 70 bytes, plus list entries


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (3, b"\x08"),
        (3, b"\x08\x80"),
        (3, b"\x88\x00\x01"),
        (3, b"\x08\x01\x10\x01"),
        (3, b"\x08\x01\x0a\x01\x01"),
        (2, b"\x0d\0\0\0"),
        (2, b"\x0d\0\0\0\0\x15\0\0\0\0"),
    ],
)
def test_lists_that_are_not_only_numbers(kind: int, values: bytes) -> None:
    feature = parse_example(example(kind, values))["a"]
    with pytest.raises(MalformedError):
        feature.floats() if kind == 2 else feature.ints()


def test_strings_are_counted() -> None:
    assert len(parse_example(example(1, b"\n\0" * MAX_STRINGS))["a"].strings()) == MAX_STRINGS
    with pytest.raises(MalformedError, match="more than 2,097,152 strings"):
        parse_example(example(1, b"\n\0" * (MAX_STRINGS + 1)))["a"].strings()
