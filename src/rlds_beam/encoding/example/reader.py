"""Parses serialized tf.Examples with numpy only.

    message Example  { Features features = 1; }
    message Features { map<string, Feature> feature = 1; }
    message Feature  { oneof kind { BytesList bytes_list = 1; FloatList float_list = 2; Int64List int64_list = 3; } }
    message XxxList  { repeated ... value = 1; }   // floats and ints packed (as most writers do), or not

An episode has few map entries with long lists, so walking the entries in Python costs little. numpy decodes the lists,
and only those that are read. The bytes are untrusted: every length is checked against the remaining bytes.

Supported is what all writers write: entries of one key and one feature, features of one list, and lists that are packed
completely or not at all. Protobuf accepts more (a list in several parts, unknown fields), but its implementations and
TensorFlow's parser disagree on the result, so here it is malformed. So is everything that protobuf rejects.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np

from rlds_beam.encoding.wire import (
    BLOCK,
    I32,
    LEN,
    MAX_SIZE_BYTES,
    VARINT,
    MalformedError,
    decode_varints,
    fields,
    read_size,
    read_varint,
)
from rlds_beam.errors import BadEpisode, Violation
from rlds_beam.typing import Array

Kind = Literal["bytes", "float", "int64"]

_KINDS: dict[int, Kind] = {1: "bytes", 2: "float", 3: "int64"}
_ENTRY = _KEY = _PACKED = _BYTES = 1 << 3 | LEN  # the tags of a map's entry and key, of a packed list, and of bytes
_VALUE = 2 << 3 | LEN
_MAX_HEADER_BYTES = 1 + MAX_SIZE_BYTES  # maximum bytes of such a tag and the length after it
MAX_STRINGS = 1 << 21
"""Maximum values of a bytes_list; an empty value takes 2 bytes in a record, but 100 in memory."""
_FLOAT_TAG, _INT_TAG = 1 << 3 | I32, 1 << 3 | VARINT
_FLOAT = np.dtype("<f4")
_TAGS = {number << 3 | LEN: kind for number, kind in _KINDS.items()}


class Feature(NamedTuple):
    """The undecoded feature of an entry of an Example.

    Attributes:
      kind: the kind of list; None if there is no list.
      data, start, end: the bytes of the list's message are `data[start:end]`.
      first: the start of its numbers, if it is known to be one packed list; otherwise 0.
    """

    kind: Kind | None
    data: bytes = b""
    start: int = 0
    end: int = 0
    first: int = 0

    def floats(self) -> Array:
        """Decodes a float_list to float32 [N]."""
        # The slice is aligned: columns are read many times, and numpy reads unaligned floats slowly.
        packed = self.numbers()
        if len(packed) % 4:
            raise MalformedError(f"a float list of {len(packed)} bytes")
        return np.frombuffer(packed, _FLOAT)

    def ints(self, dtype: Any = np.int64) -> Array:
        """Decodes an int64_list to [N] of `dtype`. Raises OutOfRangeError if a value does not fit."""
        return decode_varints(self.numbers(), dtype)

    def numbers(self) -> bytes:
        """The numbers of a float_list or an int64_list, without tags: as in a packed list."""
        first = self.first or self.packed_start()
        if first:
            return self.data[first : self.end]
        return self._unpacked_floats() if self.kind == "float" else self._unpacked_ints()

    def strings(self) -> list[bytes]:
        """Decodes a bytes_list."""
        data = self.data
        starts, stops, _ = self.spans()
        return [data[start:stop] for start, stop in zip(starts, stops, strict=True)]

    def spans(self, head: bytes = b"", tail: bytes = b"") -> tuple[list[int], list[int], list[int]]:
        """The start and stop offsets in `data` of the values of a bytes_list.

        Also returns the indices of the values that do not begin with `head` and end with `tail`, which costs less here
        than later; none without a head.
        """
        data, at, end = self.data, self.start, self.end
        near = end - 4
        starts: list[int] = []
        stops: list[int] = []
        unlike: list[int] = []
        begins: Any = head and data.startswith
        ends: Any = head and data.endswith
        for _ in itertools.repeat(None, MAX_STRINGS):
            if at >= end:
                break
            if data[at] != _BYTES:
                raise MalformedError(f"no string at byte {at} of a bytes list")
            # Inlined for speed: there are many lengths, and most take one to three bytes.
            if at < near and (size := data[at + 1]) < 0x80:
                start = at + 2
            elif at < near and (more := data[at + 2]) < 0x80:
                size, start = size & 0x7F | more << 7, at + 3
            elif at < near and (most := data[at + 3]) < 0x80:
                size, start = size & 0x7F | (more & 0x7F) << 7 | most << 14, at + 4
            else:
                size, start = read_size(data, at + 1, end)
            stop = start + size
            if stop > end:
                read_size(data, at + 1, end)  # raises the error
            if head and not (begins(head, start, stop) and ends(tail, start, stop)):
                unlike.append(len(starts))
            starts.append(start)
            stops.append(stop)
            at = stop
        if at < end:
            raise MalformedError(f"a list of more than {MAX_STRINGS:,} strings at byte {self.start}")
        return starts, stops, unlike

    def check(self) -> None:
        """Decodes the list and discards it; raises MalformedError if it is malformed."""
        if self.kind == "bytes":
            self.strings()
        elif self.kind is not None:
            self.floats() if self.kind == "float" else self.ints()

    def packed_start(self) -> int:
        """The start of the numbers of one packed list; 0 if they are not packed, or the values are bytes."""
        data, at, end = self.data, self.start, self.end
        if self.kind == "bytes" or at >= end or data[at] != _PACKED:
            return 0
        size, start = read_varint(data, at + 1, end)
        if start + size != end or start > at + _MAX_HEADER_BYTES:
            raise MalformedError(f"a list of numbers in several parts at byte {at}")
        return start

    def _unpacked_floats(self) -> bytes:
        """The bytes of unpacked numbers, each after a tag."""
        raw = np.frombuffer(self.data, np.uint8, self.end - self.start, self.start)
        if len(raw) % 5 or (raw[::5] != _FLOAT_TAG).any():
            raise self._no_number()
        return raw.reshape(-1, 5)[:, 1:].tobytes()

    def _unpacked_ints(self) -> bytes:
        """The varints of unpacked numbers; every other varint is a tag of one byte."""
        raw, parts, of_value = np.frombuffer(self.data, np.uint8, self.end - self.start, self.start), [], 0
        for at in range(0, len(raw), BLOCK):
            block = raw[at : at + BLOCK]
            ends = block < 0x80
            number = np.cumsum(ends, dtype=np.int32) - ends + of_value
            of_value = (of_value + int(np.count_nonzero(ends))) & 1
            is_tag = number & 1 == 0
            if (block[is_tag] != _INT_TAG).any():
                raise self._no_number()
            parts.append(block[~is_tag].tobytes())
        if of_value:
            raise self._no_number()
        return b"".join(parts)

    def _no_number(self) -> MalformedError:
        return MalformedError(f"the list at byte {self.start} has other values than numbers")


class _Head(NamedTuple):
    """The start of an entry in an earlier record.

    Attributes:
      begin: the bytes before the content of the list: all tags and lengths, and the key. If the list is packed, also
        the bytes before its numbers.
      packed: the number of these bytes that belong to the list: 0 if it is not packed.
      length: the size of the whole entry in bytes, according to these lengths.
      key, kind: the key and kind of the entry.
    """

    begin: bytes
    packed: int
    length: int
    key: str
    kind: Kind


class ExampleParser:
    """A faster `parse_example` for consecutive records, with the same results and errors.

    Records of a dataset have the same keys in the same order, and lists of numbers often have the same lengths. If an
    entry starts with the same bytes up to its list, then key, kind, and lengths are the same and are not parsed again.

    Thread-safe: what is kept of an entry is one tuple, valid for any record that contains its bytes.
    """

    def __init__(self) -> None:
        self._heads: list[_Head | None] = []

    def parse(self, payload: bytes) -> dict[str, Feature]:
        """Parses a record to key -> feature, like `parse_example`."""
        try:
            features = self._parse(payload)
        except (MalformedError, UnicodeDecodeError):
            features = None
        return features or parse_example(payload)  # which raises the error

    def _parse(self, payload: bytes) -> dict[str, Feature] | None:
        """The features of a record; None if it is not written like most: one map, and each key once."""
        end = len(payload)
        if not end or payload[0] != _ENTRY:
            return None
        size, at = read_size(payload, 1, end)
        if at + size != end:
            return None
        features: dict[str, Feature] = {}
        heads, begins = self._heads, payload.startswith
        entries, known = 0, len(self._heads)
        while at < end:
            head = heads[entries] if entries < known else None
            if head is not None and begins(head.begin, at):
                begin, packed, length, key, kind = head
                first, stop = at + len(begin), at + length
                if stop > end:
                    return None
                features[key] = Feature(kind, payload, first - packed, stop, packed and first)
            else:
                if payload[at] != _ENTRY:
                    return None
                size, start = read_size(payload, at + 1, end)
                stop = start + size
                raw, feature = parse_entry(payload, start, stop)
                key = raw.decode()
                if head is None or key != head.key or feature.kind != "bytes":  # each list of bytes has another length
                    head = _head(payload, at, stop, key, feature)
                    heads[entries : entries + 1] = [head]
                    if head is not None and head.packed:
                        feature = Feature(head.kind, payload, feature.start, stop, feature.start + head.packed)
                features[key] = feature
            at = stop
            entries += 1
        return features if len(features) == entries else None


def _head(payload: bytes, at: int, stop: int, key: str, feature: Feature) -> _Head | None:
    """The start of the entry `payload[at:stop]`; None if it does not end with its list."""
    if feature.kind is None or feature.end != stop:
        return None
    first = 0
    with contextlib.suppress(MalformedError):  # whoever reads the list raises it
        first = feature.packed_start()
    return _Head(payload[at : first or feature.start], first and first - feature.start, stop - at, key, feature.kind)


def parse_example(payload: bytes) -> dict[str, Feature]:
    """Parses a serialized tf.Example to key -> feature; the last entry of a key wins.

    Raises:
      MalformedError: the bytes are not an Example, or it has no entries (no bytes at all parse as an empty Example).
    """
    features: dict[str, Feature] = {}
    for start, end in _entries(payload):
        raw, feature = parse_entry(payload, start, end)
        try:
            key = raw.decode()
        except UnicodeDecodeError:
            raise MalformedError(f"the key {raw[:40]!r} is not UTF-8") from None
        if key in features:
            features[key].check()  # check it now, since it is replaced
        features[key] = feature
    if not features:
        raise MalformedError("the record has no entries" if payload else "the record is empty")
    return features


def _entries(payload: bytes) -> Iterator[tuple[int, int]]:
    """The start and end of each entry of the map."""
    for number, wire, start, end in fields(payload, 0, len(payload)):
        if number == 1 and wire == LEN:
            for number, wire, first, last in fields(payload, start, end):
                if number == 1 and wire == LEN:
                    yield first, last


def entry_spans(payload: bytes) -> dict[str, tuple[int, int]]:
    """Maps keys to (start, end) of the entries of a serialized tf.Example, each with its key and feature.

    For copying features between records without decoding them.

    Raises:
      MalformedError: see `parse_example`, which checks more.
    """
    return {parse_entry(payload, start, end)[0].decode(): (start, end) for start, end in _entries(payload)}


def not_an_example(error: MalformedError) -> BadEpisode:
    """Converts a `MalformedError` to a `BadEpisode`."""
    return BadEpisode(Violation("not_an_example", str(error)))


def parse_entry(data: bytes, at: int, end: int) -> tuple[bytes, Feature]:
    """Parses one entry of the map to (key, feature): each once, in any order."""
    if end - at > 4 and data[at] == _KEY and data[at + 1] < 0x80:
        # The usual case: the key, the feature, its one list, and nothing else.
        value = at + 2 + data[at + 1]
        if value < end and data[value] == _VALUE:
            size, start = read_varint(data, value + 1, end)
            if size and start + size == end and start <= value + _MAX_HEADER_BYTES and data[start] in _TAGS:
                size, first = read_varint(data, start + 1, end)
                if first + size == end and first <= start + _MAX_HEADER_BYTES:
                    return data[at + 2 : value], Feature(_TAGS[data[start]], data, first, end)
    spans = {}
    for _ in range(2):
        if at >= end:
            raise MalformedError(f"an entry without its {'feature' if _KEY in spans else 'key'} before byte {at}")
        tag = data[at]
        size, start = read_size(data, at + 1, end)
        at = start + size
        spans[tag] = start, at
    if at != end or _KEY not in spans or _VALUE not in spans:
        raise MalformedError(f"an entry that is not a key and a feature before byte {end}")
    (start, stop), (at, end) = spans[_KEY], spans[_VALUE]
    if at == end:
        return data[start:stop], Feature(None)
    kind = _TAGS.get(data[at])
    size, first = read_size(data, at + 1, end)
    if kind is None or first + size != end:
        raise MalformedError(f"a feature that is not one list at byte {at}")
    return data[start:stop], Feature(kind, data, first, end)
