"""Varints one by one, packed, and of equal width."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds_beam.encoding.wire import (
    MAX_VARINT_BYTES,
    MalformedError,
    are_fixed_varints,
    decode_fixed_varints,
    decode_varints,
    fixed_varints,
    packed_varints,
    read_varint,
    varint,
    varint_width,
)

INT64 = st.integers(-(2**63), 2**63 - 1) | st.integers(-200, 200)


def test_one_varint() -> None:
    """The examples from https://protobuf.dev/programming-guides/encoding, and the limits."""
    assert varint(1) == b"\x01"
    assert varint(150) == b"\x96\x01"
    assert varint(-2) == b"\xfe" + b"\xff" * 8 + b"\x01"
    for value in (0, 127, 128, 16383, 16384, 2**62, 2**63 - 1, -1, -(2**63)):
        assert read_varint(b"\0" + varint(value) + b"\0", 1, 12) == (value % 2**64, 1 + len(varint(value)))


@given(st.lists(INT64))
def test_lists_of_varints(numbers: list[int]) -> None:
    values = np.array(numbers, np.int64)
    packed = packed_varints(values)
    assert packed == b"".join(map(varint, numbers))
    np.testing.assert_array_equal(decode_varints(packed), values)


@given(st.lists(INT64, min_size=1))
def test_varints_of_equal_width(numbers: list[int]) -> None:
    values = np.array(numbers, np.int64)
    width = varint_width(max(number % 2**64 for number in numbers))
    for groups in (fixed_varints(values, width), fixed_varints(values, MAX_VARINT_BYTES)):
        assert are_fixed_varints(groups).all()
        np.testing.assert_array_equal(decode_fixed_varints(groups), values)
        np.testing.assert_array_equal(decode_varints(groups.tobytes()), values)


@pytest.mark.parametrize("raw", [b"\x80", b"\x01\x80", b"\x80" * 10 + b"\x01", b"\x80" * 100_000 + b"\x01"])
def test_endless_numbers_are_rejected(raw: bytes) -> None:
    with pytest.raises(MalformedError):
        decode_varints(raw)
    with pytest.raises(MalformedError):
        read_varint(raw.removeprefix(b"\x01"), 0, len(raw.removeprefix(b"\x01")))
