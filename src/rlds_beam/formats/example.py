"""Reads a serialised tf.Example with numpy alone.

    message Example  { Features features = 1; }
    message Features { map<string, Feature> feature = 1; }
    message Feature  { oneof kind { BytesList bytes_list = 1; FloatList float_list = 2; Int64List int64_list = 3; } }
    message XxxList  { repeated ... value = 1; }   // floats and ints packed (as most writers do), or not

An episode is a handful of map entries holding long lists, so walking the entries in Python costs
nothing; the lists themselves are decoded by numpy, and only those that are asked for. The bytes
are untrusted: every length is checked against the bytes that are left.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from rlds_beam.episodes.violations import BadEpisode, Violation
from rlds_beam.formats.wire import I32, LEN, VARINT, MalformedError, decode_varints, fields, read_varint

Array: TypeAlias = "np.ndarray[Any, Any]"
Kind = Literal["bytes", "float", "int64"]

_Span: TypeAlias = "tuple[bytes, int, int]"
_KINDS: dict[int, Kind] = {1: "bytes", 2: "float", 3: "int64"}
_KEY = _PACKED = 1 << 3 | LEN  # the tag of a map's key, and of field 1 as a packed list
_VALUE = 2 << 3 | LEN
_TAGS = {number << 3 | LEN: kind for number, kind in _KINDS.items()}


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
        for _, start, end in self._values(I32):
            if (end - start) % 4:
                raise MalformedError(f"a float list of {end - start} bytes")
            # Sliced out, the values are aligned: a column is read many times, and numpy reads unaligned floats slowly.
            chunks.append(np.frombuffer(self.data[start:end], "<f4"))
        return chunks[0] if len(chunks) == 1 else np.concatenate([np.empty(0, "<f4"), *chunks])

    def ints(self, dtype: Any = np.int64) -> Array:
        """The values of an int64_list: [N] as `dtype`, by the conversion that `tf.cast` makes."""
        chunks = [decode_varints(self.data[start:end], dtype) for _, start, end in self._values(VARINT)]
        return chunks[0] if len(chunks) == 1 else np.concatenate([np.empty(0, dtype), *chunks])

    def strings(self) -> list[bytes]:
        """The values of a bytes_list."""
        return [self.data[start:end] for _, start, end in self._values(LEN)]

    def _values(self, unpacked: int) -> Iterator[tuple[int, int, int]]:
        """(wire type, start, end) of each value, or packed list of values."""
        at, end = self.start, self.end
        if unpacked != LEN and at < end and self.data[at] == _PACKED:
            size, start = read_varint(self.data, at + 1, end)
            if start + size == end:  # one packed list and nothing else, as most writers do
                yield LEN, start, end
                return
        for number, wire, start, stop in fields(self.data, at, end):
            if number == 1 and wire in (LEN, unpacked):
                yield wire, start, stop


def parse_example(payload: bytes) -> dict[str, Feature]:
    """Key -> feature of a serialised tf.Example; a later entry of a key replaces an earlier one.

    Raises:
      MalformedError: the bytes are not those of an Example, or of one without any entry
        (nothing at all parses as an empty Example).
    """
    found: dict[str, Feature] = {}
    for number, wire, start, end in fields(payload, 0, len(payload)):
        if number != 1 or wire != LEN:
            continue
        for number, wire, first, last in fields(payload, start, end):
            if number == 1 and wire == LEN:
                key, feature = _entry(payload, first, last)
                try:
                    found[key.decode()] = feature
                except UnicodeDecodeError:
                    raise MalformedError(f"the key {key[:40]!r} is not UTF-8") from None
    if not found:
        raise MalformedError("it has no entries" if payload else "it is empty")
    return found


def not_an_example(error: MalformedError) -> BadEpisode:
    """What a `MalformedError` means for an episode."""
    return BadEpisode(Violation("not_an_example", str(error)))


def _entry(data: bytes, at: int, end: int) -> tuple[bytes, Feature]:
    """(key, feature) of one entry of the map."""
    if end - at > 4 and data[at] == _KEY and data[at + 1] < 0x80:
        # As every writer does it: the key, the feature, its one list, and nothing else.
        value = at + 2 + data[at + 1]
        if value < end and data[value] == _VALUE:
            size, start = read_varint(data, value + 1, end)
            kind = _TAGS.get(data[start]) if size and start + size == end else None
            if kind is not None:
                size, first = read_varint(data, start + 1, end)
                if first + size == end:
                    return data[at + 2 : value], Feature(kind, data, first, end)
    return _any_entry(data, at, end)


def _any_entry(data: bytes, at: int, end: int) -> tuple[bytes, Feature]:
    """(key, feature) of an entry, however it is written."""
    key, value = b"", (b"", 0, 0)
    for number, wire, start, stop in fields(data, at, end):
        if number == 1 and wire == LEN:
            key = data[start:stop]
        elif number == 2 and wire == LEN:
            value = _merge(value, (data, start, stop))
    return key, _feature(*value)


def _feature(data: bytes, at: int, end: int) -> Feature:
    kind: Kind | None = None
    body = (b"", 0, 0)
    for number, wire, start, stop in fields(data, at, end):
        new = _KINDS.get(number)
        if new is not None and wire == LEN:
            # The second member of a oneof replaces the first; the same one again is merged.
            body = _merge(body if new == kind else (b"", 0, 0), (data, start, stop))
            kind = new
    return Feature(kind, *body)


def _merge(first: _Span, second: _Span) -> _Span:
    """Two messages in one field merge, and merging is concatenation."""
    if first[1] == first[2]:
        return second
    merged = first[0][first[1] : first[2]] + second[0][second[1] : second[2]]
    return merged, 0, len(merged)
