"""Reads a serialised tf.Example with numpy alone.

    message Example  { Features features = 1; }
    message Features { map<string, Feature> feature = 1; }
    message Feature  { oneof kind { BytesList bytes_list = 1; FloatList float_list = 2; Int64List int64_list = 3; } }
    message XxxList  { repeated ... value = 1; }   // floats and ints packed (as everybody writes them), or not

An episode is a handful of map entries holding long lists, so walking the entries in Python costs
nothing; the lists themselves are decoded by numpy, and only those that are asked for. The bytes
are untrusted: every length is checked against what is there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

import numpy as np

from rlds_beam.rules import BadEpisode, Violation

Array: TypeAlias = "np.ndarray[Any, Any]"
Kind = Literal["bytes", "float", "int64"]

_KINDS: dict[int, Kind] = {1: "bytes", 2: "float", 3: "int64"}
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_BLOCK = 1 << 16  # bytes of varints decoded at a time: the work arrays stay in the cache


class NotAnExample(ValueError):
    """The bytes are not those of a tf.Example; says where they stop making sense."""


@dataclasses.dataclass(frozen=True, slots=True)
class Feature:
    """One entry of an Example, still undecoded.

    Attributes:
      kind: which list it holds; None where the writer put none in.
      body: the bytes of that list's message.
    """

    kind: Kind | None
    body: bytes | memoryview

    def floats(self) -> Array:
        """The values of a float_list: float32 [N], a view of the record where it is packed."""
        chunks = [
            np.frombuffer(chunk, "<f4") if wire == _BYTES else np.frombuffer(chunk, "<f4", 1)
            for wire, chunk in self._values(_FIXED32)
        ]
        return chunks[0] if len(chunks) == 1 else np.concatenate([np.empty(0, "<f4"), *chunks])

    def ints(self, dtype: Any = np.int64) -> Array:
        """The values of an int64_list: [N] as `dtype`, by the conversion that `tf.cast` makes."""
        chunks = [decode_varints(chunk, dtype) for _, chunk in self._values(_VARINT)]
        return chunks[0] if len(chunks) == 1 else np.concatenate([np.empty(0, dtype), *chunks])

    def strings(self) -> list[bytes]:
        """The values of a bytes_list."""
        return [bytes(chunk) for _, chunk in self._values(_BYTES)]

    def _values(self, unpacked: int) -> Iterator[tuple[int, memoryview]]:
        for number, wire, value in _fields(memoryview(self.body)):
            if number == 1 and wire in (_BYTES, unpacked):
                if unpacked == _FIXED32 and len(value) % 4:
                    raise NotAnExample(f"a float list of {len(value)} bytes")
                yield wire, value


def parse_example(payload: bytes) -> dict[str, Feature]:
    """Key -> feature of a serialised tf.Example; a later entry of a key replaces an earlier one.

    Raises:
      NotAnExample: the bytes are not those of an Example, or of one without any entry (nothing
        at all parses as an empty Example).
    """
    found: dict[str, Feature] = {}
    for number, wire, features in _fields(memoryview(payload)):
        if number != 1 or wire != _BYTES:
            continue
        for number, wire, entry in _fields(features):
            if number == 1 and wire == _BYTES:
                key, feature = _entry(entry)
                found[key] = feature
    if not found:
        raise NotAnExample("it has no entries" if len(payload) else "it is empty")
    return found


def not_an_example(error: NotAnExample) -> BadEpisode:
    """What a `NotAnExample` means for an episode."""
    return BadEpisode(Violation("not_an_example", str(error)))


def _entry(entry: memoryview) -> tuple[str, Feature]:
    key, value = b"", None
    for number, wire, content in _fields(entry):
        if number == 1 and wire == _BYTES:
            key = bytes(content)
        elif number == 2 and wire == _BYTES:
            value = content if value is None else _join(value, content)
    try:
        return key.decode(), _feature(value)
    except UnicodeDecodeError:
        raise NotAnExample(f"the key {key[:40]!r} is not UTF-8") from None


def _feature(value: memoryview | None) -> Feature:
    kind: Kind | None = None
    body: bytes | memoryview = b""
    for number, wire, content in _fields(value) if value is not None else ():
        new = _KINDS.get(number)
        if new is None or wire != _BYTES:
            continue
        # Two messages in one field merge, and merging is writing one behind the other; a second
        # member of a oneof replaces the first.
        body = _join(body, content) if new == kind else content
        kind = new
    return Feature(kind, body)


def _join(first: bytes | memoryview, second: memoryview) -> memoryview:
    return memoryview(bytes(first) + bytes(second))


def _fields(message: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """(number, wire type, content) of each field of a message; a varint's content is its bytes."""
    at, end = 0, len(message)
    while at < end:
        tag, at = _varint(message, at, end)
        wire = tag & 7
        if wire == _BYTES:
            size, at = _varint(message, at, end)
        elif wire == _VARINT:
            size = _varint(message, at, end)[1] - at
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            raise NotAnExample(f"wire type {wire} at byte {at}")
        if size > end - at:
            raise NotAnExample(f"a field of {size} bytes where {end - at} are left")
        if not 0 < tag >> 3 < 1 << 29:
            raise NotAnExample(f"field number {tag >> 3}")
        yield tag >> 3, wire, message[at : at + size]
        at += size


def _varint(message: memoryview, at: int, end: int) -> tuple[int, int]:
    """(value, where it ends) of one varint."""
    value = shift = 0
    while at < end and shift < 70:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
    raise NotAnExample("a number that does not end")


def decode_varints(data: bytes | memoryview, dtype: Any = np.int64) -> Array:
    """All varints in `data`: [N] as `dtype` (wrapping like a C cast; bool is "not 0").

    Raises:
      NotAnExample: the last one does not end, or one is longer than 10 bytes.
    """
    raw = np.frombuffer(data, np.uint8)
    if not len(raw):
        return np.empty(0, dtype)
    if raw[-1] >= 0x80:
        raise NotAnExample("a number that does not end")
    last = raw < 0x80
    count = int(np.count_nonzero(last))
    if count == len(raw):  # bools, labels, small counts: a byte each
        return raw.astype(dtype)
    values = np.empty(count, dtype)
    done = at = 0
    while at < len(raw):
        ends = np.flatnonzero(last[at : at + _BLOCK])
        if not len(ends):
            raise NotAnExample("a number longer than 10 bytes")
        block = raw[at : at + int(ends[-1]) + 1]
        values[done : done + len(ends)] = _varint_block(block, ends).astype(dtype)
        done += len(ends)
        at += len(block)
    return values


def _varint_block(raw: Array, ends: Array) -> Array:
    """The varints of a block, given where each ends: int64 [N]."""
    starts = np.empty_like(ends)
    starts[0] = 0
    starts[1:] = ends[:-1] + 1
    lengths = ends - starts
    longest = int(lengths.max())
    if longest > 9:
        raise NotAnExample("a number longer than 10 bytes")
    values = (raw[starts] & 0x7F).astype(np.uint64)
    for k in range(1, longest + 1):
        longer = np.flatnonzero(lengths >= k)
        values[longer] |= (raw[starts[longer] + k] & 0x7F).astype(np.uint64) << np.uint64(7 * k)
    return values.view(np.int64)
