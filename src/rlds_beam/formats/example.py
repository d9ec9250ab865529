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

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from rlds_beam.episodes.violations import BadEpisode, Violation

Array: TypeAlias = "np.ndarray[Any, Any]"
Kind = Literal["bytes", "float", "int64"]

_Span: TypeAlias = "tuple[bytes, int, int]"
_KINDS: dict[int, Kind] = {1: "bytes", 2: "float", 3: "int64"}
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_KEY = _PACKED = 1 << 3 | _BYTES  # the tag of a map's key, and of field 1 as a packed list
_VALUE = 2 << 3 | _BYTES
_TAGS = {number << 3 | _BYTES: kind for number, kind in _KINDS.items()}
_BLOCK = 1 << 16  # bytes of varints decoded at a time: the work arrays stay in the cache


class NotAnExampleError(ValueError):
    """The bytes are not those of a tf.Example; says where they stop making sense."""


class Feature(NamedTuple):
    """One entry of an Example, still undecoded.

    Attributes:
      kind: which list it holds; None where the writer put none in.
      data, start, end: the bytes of that list's message are `data[start:end]`.
    """

    kind: Kind | None
    data: bytes = b""
    start: int = 0
    end: int = 0

    def floats(self) -> Array:
        """The values of a float_list: float32 [N]."""
        chunks = []
        for _, start, end in self._values(_FIXED32):
            if (end - start) % 4:
                raise NotAnExampleError(f"a float list of {end - start} bytes")
            # Sliced out, the values are aligned: a column is read many times, and numpy reads unaligned floats slowly.
            chunks.append(np.frombuffer(self.data[start:end], "<f4"))
        return chunks[0] if len(chunks) == 1 else np.concatenate([np.empty(0, "<f4"), *chunks])

    def ints(self, dtype: Any = np.int64) -> Array:
        """The values of an int64_list: [N] as `dtype`, by the conversion that `tf.cast` makes."""
        chunks = [decode_varints(self.data[start:end], dtype) for _, start, end in self._values(_VARINT)]
        return chunks[0] if len(chunks) == 1 else np.concatenate([np.empty(0, dtype), *chunks])

    def strings(self) -> list[bytes]:
        """The values of a bytes_list."""
        return [self.data[start:end] for _, start, end in self._values(_BYTES)]

    def _values(self, unpacked: int) -> Iterator[tuple[int, int, int]]:
        """(wire type, start, end) of each value, or packed list of values."""
        at, end = self.start, self.end
        if unpacked != _BYTES and at < end and self.data[at] == _PACKED:
            size, start = _varint(self.data, at + 1, end)
            if start + size == end:  # one packed list and nothing else, as everybody writes it
                yield _BYTES, start, end
                return
        for number, wire, start, stop in _fields(self.data, at, end):
            if number == 1 and wire in (_BYTES, unpacked):
                yield wire, start, stop


def parse_example(payload: bytes) -> dict[str, Feature]:
    """Key -> feature of a serialised tf.Example; a later entry of a key replaces an earlier one.

    Raises:
      NotAnExampleError: the bytes are not those of an Example, or of one without any entry
        (nothing at all parses as an empty Example).
    """
    found: dict[str, Feature] = {}
    for number, wire, start, end in _fields(payload, 0, len(payload)):
        if number != 1 or wire != _BYTES:
            continue
        for number, wire, first, last in _fields(payload, start, end):
            if number == 1 and wire == _BYTES:
                key, feature = _entry(payload, first, last)
                try:
                    found[key.decode()] = feature
                except UnicodeDecodeError:
                    raise NotAnExampleError(f"the key {key[:40]!r} is not UTF-8") from None
    if not found:
        raise NotAnExampleError("it has no entries" if payload else "it is empty")
    return found


def not_an_example(error: NotAnExampleError) -> BadEpisode:
    """What a `NotAnExampleError` means for an episode."""
    return BadEpisode(Violation("not_an_example", str(error)))


def _entry(data: bytes, at: int, end: int) -> tuple[bytes, Feature]:
    """(key, feature) of one entry of the map."""
    if end - at > 4 and data[at] == _KEY and data[at + 1] < 0x80:
        # As every writer does it: the key, the feature, its one list, and nothing else.
        value = at + 2 + data[at + 1]
        if value < end and data[value] == _VALUE:
            size, start = _varint(data, value + 1, end)
            kind = _TAGS.get(data[start]) if size and start + size == end else None
            if kind is not None:
                size, first = _varint(data, start + 1, end)
                if first + size == end:
                    return data[at + 2 : value], Feature(kind, data, first, end)
    return _any_entry(data, at, end)


def _any_entry(data: bytes, at: int, end: int) -> tuple[bytes, Feature]:
    """(key, feature) of an entry, however it is written."""
    key, value = b"", (b"", 0, 0)
    for number, wire, start, stop in _fields(data, at, end):
        if number == 1 and wire == _BYTES:
            key = data[start:stop]
        elif number == 2 and wire == _BYTES:
            value = _merge(value, (data, start, stop))
    return key, _feature(*value)


def _feature(data: bytes, at: int, end: int) -> Feature:
    kind: Kind | None = None
    body = (b"", 0, 0)
    for number, wire, start, stop in _fields(data, at, end):
        new = _KINDS.get(number)
        if new is not None and wire == _BYTES:
            # The second member of a oneof replaces the first; the same one again is merged.
            body = _merge(body if new == kind else (b"", 0, 0), (data, start, stop))
            kind = new
    return Feature(kind, *body)


def _merge(first: _Span, second: _Span) -> _Span:
    """Two messages in one field merge, and merging is writing one behind the other."""
    if first[1] == first[2]:
        return second
    merged = first[0][first[1] : first[2]] + second[0][second[1] : second[2]]
    return merged, 0, len(merged)


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """(number, wire type, start, end) of each field of the message `data[at:end]`."""
    while at < end:
        tag = data[at]
        at += 1
        if tag >= 0x80:
            tag, at = _varint(data, at - 1, end)
        wire = tag & 7
        if wire == _BYTES:
            if at < end and data[at] < 0x80:
                size = data[at]
                at += 1
            else:
                size, at = _varint(data, at, end)
        elif wire == _VARINT:
            size = _varint(data, at, end)[1] - at
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            raise NotAnExampleError(f"wire type {wire} before byte {at}")
        if size > end - at:
            raise NotAnExampleError(f"a field of {size} bytes at byte {at}, where {end - at} are left")
        if not 0 < tag >> 3 < 1 << 29:
            raise NotAnExampleError(f"field number {tag >> 3} before byte {at}")
        yield tag >> 3, wire, at, at + size
        at += size


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """(value, where it ends) of one varint."""
    if at < end and data[at] < 0x80:
        return data[at], at + 1
    if end - at > 1 and data[at + 1] < 0x80:
        return data[at] & 0x7F | data[at + 1] << 7, at + 2
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
    raise NotAnExampleError(f"a number that does not end at byte {at}")


def decode_varints(data: bytes, dtype: Any = np.int64) -> Array:
    """All varints in `data`: [N] as `dtype`, wrapping like a C cast; bool is "not 0".

    Raises:
      NotAnExampleError: the last one does not end, or one is longer than 10 bytes.
    """
    raw = np.frombuffer(data, np.uint8)
    if data.isascii():  # bools, labels, small counts: a byte each
        return raw.astype(dtype)
    last = raw < 0x80
    if not last[-1]:
        raise NotAnExampleError("a number that does not end")
    values = np.empty(np.count_nonzero(last), dtype)
    done = at = 0
    while at < len(raw):
        ends = last[at : at + _BLOCK]
        size = len(ends) - int(ends[:-11:-1].argmax())  # up to the last number that ends in the block
        block = _varint_block(raw[at : at + size], ends[:size])
        values[done : done + len(block)] = block.astype(dtype)
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
    longest = int(lengths.max(initial=0))
    if longest > 9 or not last[-1]:
        raise NotAnExampleError("a number longer than 10 bytes")
    wide = (raw[starts] & 0x7F).astype(np.uint64)
    for k in range(1, longest + 1):
        longer = np.flatnonzero(lengths >= k)
        wide[longer] |= (raw[starts[longer] + k] & 0x7F).astype(np.uint64) << np.uint64(7 * k)
    signed: Array = wide.view(np.int64)
    return signed
