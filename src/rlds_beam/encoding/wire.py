"""The part of Protobuf's wire format that a few messages need.

Varints come one by one (`varint`, `read_varint`), as a list end to end (`packed_varints`, `decode_varints`), and as a
matrix in which all are of one width (`fixed_varints`, `decode_fixed_varints`): a varint may be longer than need be,
with high groups of zeros, and every reader takes it. What is read is untrusted: every length is checked against the
bytes that are left.

Source of the format: https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]

VARINT, I64, LEN, I32 = 0, 1, 2, 5
"""The wire types, as the page above calls them."""

LONGEST_VARINT = 10
"""Bytes of a 64-bit number at most."""

LONGEST_SIZE = 5
"""Bytes of a length, or of a tag, at most."""

BLOCK = 1 << 16
"""Bytes of varints decoded at a time: the work arrays stay in the cache."""


class MalformedError(ValueError):
    """The bytes are not the message that they should be; says from where on."""


@functools.lru_cache(maxsize=1 << 12)
def varint(value: int) -> bytes:
    """`value` (int64; a negative one takes 10 bytes) as a base-128 varint."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def integer(field: int, value: int) -> bytes:
    """An int or enum field. The default 0 is left out, as in proto3."""
    return varint(field << 3) + varint(value) if value else b""


def text(field: int, value: str | None) -> bytes:
    """A string field. The empty string is left out, as in proto3."""
    return delimited(field, value.encode()) if value else b""


def delimited(field: int, payload: bytes) -> bytes:
    """A field of bytes, a packed list or a message: written even when empty."""
    return tag_and_length(field, len(payload)) + payload


def tag_and_length(field: int, length: int) -> bytes:
    """The bytes before the `length` bytes of a length-delimited field."""
    return varint(field << 3 | 2) + varint(length)


def packed_varints(values: Array) -> bytes:
    """int64 [N] as varints end to end, each as short as it can be."""
    if len(values) and values.min() >= 0 and values.max() < 0x80:  # flags, most choices: a byte each
        return values.astype(np.uint8).tobytes()
    groups = values.view(np.uint64)[:, None] >> np.arange(0, 70, 7, dtype=np.uint64)
    groups[:, 9] = values < 0  # a shift by 63 leaves the sign bit only
    lengths = np.maximum(1, 10 - np.argmax(groups[:, ::-1] != 0, axis=1) - 10 * (values == 0))
    place = np.arange(10)
    out = (groups & np.uint64(0x7F)).astype(np.uint8) | ((place < lengths[:, None] - 1).astype(np.uint8) << 7)
    return bytes(out[place < lengths[:, None]])


def varint_width(largest: int) -> int:
    """Bytes of the varint of `largest`, which is not negative."""
    return max(1, -(-largest.bit_length() // 7))


def fixed_varints(values: Array, width: int) -> Bytes:
    """Integers [...] as varints of exactly `width` bytes each: uint8 [..., width]."""
    shifts = np.arange(0, 7 * width, 7, dtype=np.uint64)
    groups: Bytes = (values.astype(np.uint64, copy=False)[..., None] >> shifts).astype(np.uint8)
    groups[..., :-1] |= 0x80
    groups[..., -1] &= 0x7F
    return groups


def fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """(number, wire type, start, end) of each field of the message `data[at:end]`."""
    while at < end:
        tag = data[at]
        at += 1
        if tag >= 0x80:
            begin = at - 1
            tag, at = read_varint(data, begin, end)
            if at > begin + LONGEST_SIZE or not data[at - 1]:  # some readers know no tag that is longer than need be
                raise MalformedError(f"a tag of {at - begin} bytes before byte {at}")
        wire = tag & 7
        if wire == LEN:
            if at < end and data[at] < 0x80:
                size = data[at]
                at += 1
            else:
                size, at = read_size(data, at, end)
        elif wire == VARINT:
            size = read_varint(data, at, end)[1] - at
        elif wire in (I64, I32):
            size = 8 if wire == I64 else 4
        else:
            raise MalformedError(f"wire type {wire} before byte {at}")
        if size > end - at:
            raise MalformedError(f"a field of {size} bytes at byte {at}, where {end - at} are left")
        if not 0 < tag >> 3 < 1 << 29:
            raise MalformedError(f"field number {tag >> 3} before byte {at}")
        yield tag >> 3, wire, at, at + size
        at += size


def read_size(data: bytes, at: int, end: int) -> tuple[int, int]:
    """(size, where it begins) of what the length at `at` announces, which is there before `end`.

    Raises:
      MalformedError: it is not, or the length is longer than 5 bytes.
    """
    if at < end and data[at] < 0x80:
        size = data[at]
        at += 1
    else:
        begin = at
        size, at = read_varint(data, at, end)
        if at > begin + LONGEST_SIZE:
            raise MalformedError(f"a length of {at - begin} bytes before byte {at}")
    if size > end - at:
        raise MalformedError(f"a field of {size} bytes at byte {at}, where {end - at} are left")
    return size, at


def read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """(value, where it ends) of the varint at `at`, which ends before `end`.

    Raises:
      MalformedError: it does not, or is longer than 10 bytes.
    """
    if at < end and data[at] < 0x80:
        return data[at], at + 1
    if end - at > 1 and data[at + 1] < 0x80:
        return data[at] & 0x7F | data[at + 1] << 7, at + 2
    if end - at > 2 and data[at + 2] < 0x80:  # the length of most images
        return data[at] & 0x7F | (data[at + 1] & 0x7F) << 7 | data[at + 2] << 14, at + 3
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
    raise MalformedError(f"a number that does not end at byte {at}")


class OutOfRangeError(MalformedError):
    """A number does not fit its dtype.

    Attributes:
      value: the number.
      place: which one of the list it is.
    """

    def __init__(self, value: int, place: int, dtype: np.dtype[Any]):
        super().__init__(f"{value} is no {dtype.name}")
        self.value, self.place = value, place


def fitting(values: Array, dtype: Any, first: int = 0) -> Array:
    """Integers in another dtype; in uint64, negative ones are its upper half, as protobuf stores it.

    Args:
      first: the place of the first value in its list, for the error.

    Raises:
      OutOfRangeError: one does not fit.
    """
    kind = np.dtype(dtype)
    if kind.itemsize < 8 and len(values):
        low, high = (0, 1) if kind.kind == "b" else (np.iinfo(kind).min, np.iinfo(kind).max)
        if int(values.max()) > high or int(values.min()) < low:
            at = int(np.argmax((values > high) | (values < low)))
            raise OutOfRangeError(int(values.reshape(-1)[at]), first + at, kind)
    return values.astype(kind, copy=False)


def decode_varints(data: bytes, dtype: Any = np.int64) -> Array:
    """All varints in `data`: [N] as `dtype`; what that means for uint64 is said at `fitting`.

    Raises:
      MalformedError: the last one does not end, or one is longer than 10 bytes.
      OutOfRangeError: one does not fit the dtype.
    """
    raw = np.frombuffer(data, np.uint8)
    if data.isascii():  # bools, labels, small counts: a byte each
        if dtype == np.bool_ and data.strip(b"\0\1"):  # which leaves what is neither 0 nor 1
            return fitting(raw, dtype)
        return raw.astype(dtype)
    last = raw < 0x80
    if not last[-1]:
        raise MalformedError("a number that does not end")
    values = np.empty(np.count_nonzero(last), dtype)
    done = at = 0
    while at < len(raw):
        ends = last[at : at + BLOCK]
        size = len(ends) - int(ends[:-11:-1].argmax())  # up to the last number that ends in the block
        block = _varint_block(raw[at : at + size], ends[:size])
        values[done : done + len(block)] = fitting(block, dtype, done)
        done += len(block)
        at += size
    return values


def _varint_block(raw: Array, last: Array) -> Array:
    """The varints of a block, given which bytes end one: unsigned or int64, [N]."""
    if not (raw[1:] & raw[:-1] & 0x80).any():  # one or two bytes each: pixels, most counts
        values: Array = raw.astype(np.uint16)
        more = raw[:-1] >= 0x80
        values[1:] <<= more * np.uint8(7)
        values[1:] |= (raw[:-1] & 0x7F) * more
        return np.compress(last, values)  # several times as fast as values[last]
    ends = np.flatnonzero(last)
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - starts
    shortest, longest = int(lengths.min(initial=9)), int(lengths.max(initial=0))
    if longest > 9 or not last[-1]:
        raise MalformedError("a number longer than 10 bytes")
    wide = (raw[starts] & 0x7F).astype(np.uint64)
    for k in range(1, shortest + 1):
        wide |= (raw[starts + k] & 0x7F).astype(np.uint64) << np.uint64(7 * k)
    for k in range(shortest + 1, longest + 1):
        longer = np.flatnonzero(lengths >= k)
        wide[longer] |= (raw[starts[longer] + k] & 0x7F).astype(np.uint64) << np.uint64(7 * k)
    signed: Array = wide.view(np.int64)
    return signed


def decode_fixed_varints(groups: Bytes) -> Array:
    """int64 [...] of varints of one width, uint8 [..., width] (`are_fixed_varints`)."""
    values = np.zeros(groups.shape[:-1], np.uint64)
    for i in range(groups.shape[-1]):
        values |= (groups[..., i] & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7 * i)
    return values.view(np.int64)


def are_fixed_varints(groups: Bytes) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Of each byte of [..., width], whether it continues where a varint of this width does."""
    continues = np.arange(groups.shape[-1]) < groups.shape[-1] - 1
    fits: np.ndarray[Any, np.dtype[np.bool_]] = (groups >= 0x80) == continues
    return fits


class Message:
    """A message that was read. If a field occurs several times, the last one counts, as in protobuf.

    Raises:
      MalformedError: the bytes are not a message.
      ValueError: on a look at a field: it is of another type.
    """

    def __init__(self, data: bytes):
        self._fields: dict[int, list[int | bytes]] = {}
        for number, wire, start, end in fields(data, 0, len(data)):
            value: int | bytes = read_varint(data, start, end)[0] if wire == VARINT else data[start:end]
            self._fields.setdefault(number, []).append(value)

    def __contains__(self, field: int) -> bool:
        return field in self._fields

    def integer(self, field: int) -> int:
        """An int32, int64 or bool field; 0 if it is missing."""
        value = self.unsigned(field)
        return value - (1 << 64) if value >> 63 else value

    def unsigned(self, field: int) -> int:
        """A uint64 or enum field; 0 if it is missing."""
        value = self._last(field, 0)
        if not isinstance(value, int):
            raise ValueError(f"field {field} is not an integer")
        return value

    def double(self, field: int) -> float:
        """A double field; 0 if it is missing."""
        return float(struct.unpack("<d", self._bytes(field, 8) or bytes(8))[0])

    def text(self, field: int) -> str:
        """A string field; empty if it is missing."""
        return self._bytes(field).decode()

    def message(self, field: int) -> Message:
        """A field that is a message; an empty one if it is missing."""
        return Message(self._bytes(field))

    def messages(self, field: int) -> list[Message]:
        """A repeated field of messages."""
        values = self._fields.get(field, [])
        return [Message(value) for value in values if isinstance(value, bytes)]

    def _bytes(self, field: int, size: int | None = None) -> bytes:
        value = self._last(field, b"")
        if not isinstance(value, bytes) or (value and size is not None and len(value) != size):
            raise ValueError(f"field {field} is of another type")
        return value

    def _last(self, field: int, default: int | bytes) -> int | bytes:
        return self._fields.get(field, [default])[-1]
