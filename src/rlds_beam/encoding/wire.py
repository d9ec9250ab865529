"""The part of the protobuf wire format that our messages need, and TensorFlow's StructuredValue.

Varints are encoded one by one (`varint`, `read_varint`), as a packed list (`packed_varints`, `decode_varints`), or as a
matrix of equal width (`fixed_varints`, `decode_fixed_varints`): a varint may be longer than necessary, with high groups
of zeros, and every reader accepts it. Input is untrusted: every length is checked against the remaining bytes.

StructuredValue is the signature of Reverb tables and the spec of trajectories; tests compare it with TensorFlow's own
decoder.

Sources: https://protobuf.dev/programming-guides/encoding, tensorflow/core/protobuf/struct.proto
"""

from __future__ import annotations

import dataclasses
import functools
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from rlds_beam.typing import Array

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

VARINT, I64, LEN, I32 = 0, 1, 2, 5
"""Wire types, named as in the source."""

MAX_VARINT_BYTES = 10
"""Maximum bytes of a 64-bit number."""

MAX_SIZE_BYTES = 5
"""Maximum bytes of a length or tag."""

BLOCK = 1 << 16
"""Bytes of varints to decode at a time; keeps the work arrays in the cache."""


class MalformedError(ValueError):
    """The bytes are not the expected message; the error names the offset."""


@functools.lru_cache(maxsize=1 << 12)
def varint(value: int) -> bytes:
    """Encodes an int64 as a base-128 varint; negative values take 10 bytes."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def integer(field: int, value: int) -> bytes:
    """Encodes an int or enum field. The default 0 is omitted, as in proto3."""
    return varint(field << 3) + varint(value) if value else b""


def text(field: int, value: str | None) -> bytes:
    """Encodes a string field. The empty string is omitted, as in proto3."""
    return encode_delimited(field, value.encode()) if value else b""


def encode_delimited(field: int, payload: bytes) -> bytes:
    """Encodes a field of bytes, a packed list, or a message, even if empty."""
    return tag_and_length(field, len(payload)) + payload


def tag_and_length(field: int, length: int) -> bytes:
    """Encodes the tag and length before the `length` bytes of a length-delimited field."""
    return varint(field << 3 | 2) + varint(length)


def packed_varints(values: Array) -> bytes:
    """Encodes int64 [N] as consecutive varints, each as short as possible."""
    if len(values) and values.min() >= 0 and values.max() < 0x80:  # one byte each: flags, small integers
        return values.astype(np.uint8).tobytes()
    groups = values.view(np.uint64)[:, None] >> np.arange(0, 70, 7, dtype=np.uint64)
    groups[:, 9] = values < 0  # a shift by 63 leaves the sign bit only
    lengths = np.maximum(1, 10 - np.argmax(groups[:, ::-1] != 0, axis=1) - 10 * (values == 0))
    place = np.arange(10)
    out = (groups & np.uint64(0x7F)).astype(np.uint8) | ((place < lengths[:, None] - 1).astype(np.uint8) << 7)
    return bytes(out[place < lengths[:, None]])


def varint_width(largest: int) -> int:
    """The size in bytes of the varint of `largest`, which must not be negative."""
    return max(1, -(-largest.bit_length() // 7))


def fixed_varints(values: Array, width: int) -> Bytes:
    """Encodes integers [...] as varints of exactly `width` bytes each: uint8 [..., width]."""
    shifts = np.arange(0, 7 * width, 7, dtype=np.uint64)
    groups: Bytes = (values.astype(np.uint64, copy=False)[..., None] >> shifts).astype(np.uint8)
    groups[..., :-1] |= 0x80
    groups[..., -1] &= 0x7F
    return groups


def fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yields (number, wire type, start, end) for each field of the message `data[at:end]`."""
    while at < end:
        tag = data[at]
        at += 1
        if tag >= 0x80:
            begin = at - 1
            tag, at = read_varint(data, begin, end)
            if (
                at > begin + MAX_SIZE_BYTES or not data[at - 1]
            ):  # some readers reject tags that are longer than necessary
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
            raise MalformedError(f"a field of {size} bytes at byte {at}, but only {end - at} bytes are left")
        if not 0 < tag >> 3 < 1 << 29:
            raise MalformedError(f"field number {tag >> 3} before byte {at}")
        yield tag >> 3, wire, at, at + size
        at += size


def read_size(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Reads a length at `at`; returns it and the start of the bytes it counts, which must end by `end`.

    Raises:
      MalformedError: the bytes end after `end`, or the length takes more than 5 bytes.
    """
    if at < end and data[at] < 0x80:
        size = data[at]
        at += 1
    else:
        begin = at
        size, at = read_varint(data, at, end)
        if at > begin + MAX_SIZE_BYTES:
            raise MalformedError(f"a length of {at - begin} bytes before byte {at}")
    if size > end - at:
        raise MalformedError(f"a field of {size} bytes at byte {at}, but only {end - at} bytes are left")
    return size, at


def read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Reads a varint at `at`; returns its value and its end, which must not exceed `end`.

    Raises:
      MalformedError: the varint does not end by `end`, or is longer than 10 bytes.
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
    raise MalformedError(f"a number without an end at byte {at}")


class OutOfRangeError(MalformedError):
    """A number does not fit its dtype.

    Attributes:
      value: the number.
      place: the index of the number in its list.
    """

    def __init__(self, value: int, place: int, dtype: np.dtype[Any]):
        super().__init__(f"{value} is not a {dtype.name}")
        self.value, self.place = value, place


def fitting(values: Array, dtype: Any, first: int = 0) -> Array:
    """Casts integers to a dtype; for uint64, negative values map to the upper half, as in protobuf.

    Args:
      first: the index of the first value in its list, for the error.

    Raises:
      OutOfRangeError: a value does not fit.
    """
    kind = np.dtype(dtype)
    if kind.itemsize < 8 and len(values):
        low, high = (0, 1) if kind.kind == "b" else (np.iinfo(kind).min, np.iinfo(kind).max)
        if int(values.max()) > high or int(values.min()) < low:
            at = int(np.argmax((values > high) | (values < low)))
            raise OutOfRangeError(int(values.reshape(-1)[at]), first + at, kind)
    return values.astype(kind, copy=False)


def decode_varints(data: bytes, dtype: Any = np.int64) -> Array:
    """Decodes all varints in `data` to [N] of `dtype`; see `fitting` for uint64.

    Raises:
      MalformedError: the last varint does not end, or one is longer than 10 bytes.
      OutOfRangeError: a value does not fit the dtype.
    """
    raw = np.frombuffer(data, np.uint8)
    if data.isascii():  # one byte each: bools, labels, small counts
        if dtype == np.bool_ and data.strip(b"\0\1"):  # leaves values that are neither 0 nor 1
            return fitting(raw, dtype)
        return raw.astype(dtype)
    last = raw < 0x80
    if not last[-1]:
        raise MalformedError("a number without an end")
    values = np.empty(np.count_nonzero(last), dtype)
    done = at = 0
    while at < len(raw):
        ends = last[at : at + BLOCK]
        size = len(ends) - int(ends[:-11:-1].argmax())  # up to the end of the last complete number in the block
        block = _varint_block(raw[at : at + size], ends[:size])
        values[done : done + len(block)] = fitting(block, dtype, done)
        done += len(block)
        at += size
    return values


def _varint_block(raw: Array, last: Array) -> Array:
    """Decodes the varints of a block to unsigned or int64 [N]; `last` marks the bytes that end one."""
    if not (raw[1:] & raw[:-1] & 0x80).any():  # one or two bytes each: pixels, most counts
        values: Array = raw.astype(np.uint16)
        more = raw[:-1] >= 0x80
        values[1:] <<= more * np.uint8(7)
        values[1:] |= (raw[:-1] & 0x7F) * more
        return np.compress(last, values)  # several times faster than values[last]
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
    """Decodes varints of equal width, uint8 [..., width] (see `are_fixed_varints`), to int64 [...]."""
    values = np.zeros(groups.shape[:-1], np.uint64)
    for i in range(groups.shape[-1]):
        values |= (groups[..., i] & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7 * i)
    return values.view(np.int64)


def are_fixed_varints(groups: Bytes) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Whether each byte of [..., width] has the continuation bit that a varint of this width needs there."""
    continues = np.arange(groups.shape[-1]) < groups.shape[-1] - 1
    fits: np.ndarray[Any, np.dtype[np.bool_]] = (groups >= 0x80) == continues
    return fits


class WireMessage:
    """A parsed message. If a field occurs several times, the last one wins, as in protobuf.

    Raises:
      MalformedError: the bytes are not a message.
      ValueError: a field has another type (raised on access).
    """

    def __init__(self, data: bytes):
        self._fields: dict[int, list[int | bytes]] = {}
        for number, wire, start, end in fields(data, 0, len(data)):
            value: int | bytes = read_varint(data, start, end)[0] if wire == VARINT else data[start:end]
            self._fields.setdefault(number, []).append(value)

    def __contains__(self, field: int) -> bool:
        return field in self._fields

    def integer(self, field: int) -> int:
        """An int32, int64, or bool field; 0 if missing."""
        value = self.unsigned(field)
        return value - (1 << 64) if value >> 63 else value

    def unsigned(self, field: int) -> int:
        """A uint64 or enum field; 0 if missing."""
        value = self._last(field, 0)
        if not isinstance(value, int):
            raise ValueError(f"field {field} is not an integer")
        return value

    def double(self, field: int) -> float:
        """A double field; 0 if missing."""
        return float(struct.unpack("<d", self._bytes(field, 8) or bytes(8))[0])

    def text(self, field: int) -> str:
        """A string field; empty if missing."""
        return self._bytes(field).decode()

    def message(self, field: int) -> WireMessage:
        """A message field; empty if missing."""
        return WireMessage(self._bytes(field))

    def messages(self, field: int) -> list[WireMessage]:
        """A repeated message field."""
        values = self._fields.get(field, [])
        return [WireMessage(value) for value in values if isinstance(value, bytes)]

    def _bytes(self, field: int, size: int | None = None) -> bytes:
        value = self._last(field, b"")
        if not isinstance(value, bytes) or (value and size is not None and len(value) != size):
            raise ValueError(f"field {field} has another type")
        return value

    def _last(self, field: int, default: int | bytes) -> int | bytes:
        return self._fields.get(field, [default])[-1]


# tensorflow/core/framework/types.proto
DATA_TYPES = {
    "float32": 1,
    "float64": 2,
    "int32": 3,
    "uint8": 4,
    "int16": 5,
    "int8": 6,
    "string": 7,
    "int64": 9,
    "bool": 10,
    "bfloat16": 14,
    "uint16": 17,
    "float16": 19,
    "uint32": 22,
    "uint64": 23,
}


_DTYPES = {number: name for name, number in DATA_TYPES.items()}

_DEEPEST = 50
"""Maximum levels of a signature; each takes two levels of messages, and protobuf reads at most 100."""

# Fields of StructuredValue.
_TENSOR_SPECS, _SEQUENCES, _DICT, _NAMED_TUPLE = (33, 35), (51, 52), 53, 54


@dataclasses.dataclass(frozen=True)
class SignatureLeaf:
    """A leaf of a table's signature: a column of its items.

    Attributes:
      path: names and indices joined by `/`, for example `observation/state`; empty if the signature is a single leaf.
      dtype: TensorFlow's dtype name, which equals numpy's; `unknown` if the leaf is not a tensor of a dtype that
        trajectories have.
      shape: the shape of a whole item, including the time axis; an unknown dimension or shape is None.
    """

    path: str
    dtype: str
    shape: tuple[int | None, ...] | None


def signature_leaves(value: WireMessage, path: tuple[str, ...] = ()) -> Iterator[SignatureLeaf]:
    """The leaves of a StructuredValue, in the order of `tf.nest`."""
    if len(path) > _DEEPEST:
        raise ValueError(f"the signature has more than {_DEEPEST} levels")
    for name, child in _children(value):
        yield from signature_leaves(child, (*path, name))
    spec = next((field for field in _TENSOR_SPECS if field in value), None)
    if spec is not None:
        tensor = value.message(spec)
        yield SignatureLeaf("/".join(path), _DTYPES.get(tensor.unsigned(3), "unknown"), _shape(tensor.message(2)))
    elif not any(field in value for field in (*_SEQUENCES, _DICT, _NAMED_TUPLE)):
        yield SignatureLeaf("/".join(path), "unknown", None)


def _children(value: WireMessage) -> list[tuple[str, WireMessage]]:
    for field in _SEQUENCES:
        if field in value:
            return [(str(i), child) for i, child in enumerate(value.message(field).messages(1))]
    if _DICT in value:  # tf.nest sorts dicts; protobuf maps are unordered
        entries = value.message(_DICT).messages(1)
        return sorted(((e.text(1), e.message(2)) for e in entries), key=lambda entry: entry[0])
    return [(pair.text(1), pair.message(2)) for pair in value.message(_NAMED_TUPLE).messages(2)]


def _shape(message: WireMessage) -> tuple[int | None, ...] | None:
    """The shape in a TensorShapeProto."""
    if message.integer(3):
        return None
    sizes = (dim.integer(1) for dim in message.messages(2))
    return tuple(None if size < 0 else size for size in sizes)
