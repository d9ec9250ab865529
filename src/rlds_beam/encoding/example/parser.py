"""Parses similar records of one dataset fast: bytes that equal the last record's are not parsed again."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from rlds_beam.encoding.example.reader import (
    ENTRY,
    TAGS,
    VALUE,
    Feature,
    Kind,
    kind_of_tag,
    parse_example,
)
from rlds_beam.encoding.wire import (
    MAX_SIZE_BYTES,
    MalformedError,
    encode_delimited,
    read_size,
    read_varint,
    tag_and_length,
    varint,
)


class _Start(NamedTuple):
    """The start of an entry in the last record.

    Attributes:
      begin: the bytes before the content of the list: all lengths, and the key. If the list is packed, also the bytes
        before its numbers.
      packed: the number of these bytes that belong to the list: 0 if it is not packed.
      length: the size of the whole entry in bytes, according to these lengths.
      key, kind: the key and kind of the entry.
      raw: the key as stored, with the bytes around it that do not depend on lengths.
    """

    begin: bytes
    packed: int
    length: int
    key: str
    kind: Kind
    raw: bytes

    @classmethod
    def of(cls, payload: bytes, at: int, key: str, raw: bytes, feature: Feature) -> _Start:
        """The start of an entry that begins at `at`."""
        kind = feature.kind
        assert kind is not None
        first = 0
        with contextlib.suppress(MalformedError):  # whoever reads the list raises it
            first = feature.packed_start()
        begin = payload[at : first or feature.start]
        return cls(begin, first and first - feature.start, feature.end - at, key, kind, raw)


class ExampleParser:
    """A faster `parse_example` for consecutive records, with the same results and errors.

    Records of a dataset have the same keys in the same order, and lists of numbers often have the same lengths. If an
    entry starts with the same bytes up to its list, then key, kind, and lengths are the same and are not parsed again.
    Otherwise the lengths are parsed; a record with other keys is parsed by `parse_example`.

    Thread-safe: the state of an entry is one tuple, valid for any record that contains its bytes.
    """

    def __init__(self) -> None:
        self._starts: list[_Start] = []

    def parse(self, payload: bytes) -> dict[str, Feature]:
        """Parses a record to key -> feature, like `parse_example`."""
        features = self._as_before(payload)
        if features is None:
            features = parse_example(payload)
            self._starts = _usual_starts(payload, features)
        return features

    def _as_before(self, payload: bytes) -> dict[str, Feature] | None:
        """The features of a record with the same keys as the last one; None if keys differ or it is malformed."""
        starts, end = self._starts, len(payload)
        features: dict[str, Feature] = {}
        begins = payload.startswith
        try:
            at = _first_entry(payload, end)
            for i, (begin, packed, length, key, kind, raw) in enumerate(starts):
                if begins(begin, at):
                    first, stop = at + len(begin), at + length
                    if stop > end:
                        return None
                    features[key] = Feature(kind, payload, first - packed, stop, packed and first)
                else:
                    feature = _entry_like(payload, at, end, raw)
                    if feature is None or feature.kind is None:
                        return None
                    stop = feature.end
                    features[key] = feature
                    if kind != "bytes" or feature.kind != kind:  # each list of bytes has another length
                        starts[i] = _Start.of(payload, at, key, raw, feature)
                at = stop
        except MalformedError:
            return None  # `parse_example` raises the error
        return features if at == end and features else None


def _first_entry(payload: bytes, end: int) -> int:
    """The start of the entries, if the record is one map and nothing else; otherwise the end of the record."""
    if not end or payload[0] != ENTRY:
        return end
    size, at = read_size(payload, 1, end)
    return at if at + size == end else end


def _entry_like(payload: bytes, at: int, end: int, raw: bytes) -> Feature | None:
    """The feature of the entry at `at`, up to its end; None if it has another key or is not written as usual."""
    if at >= end or payload[at] != ENTRY:
        return None
    size, start = read_size(payload, at + 1, end)
    if not payload.startswith(raw, start):
        return None
    stop, value = start + size, start + len(raw)
    if value >= stop:
        return None
    size, tag = read_varint(payload, value, stop)
    if not size or tag + size != stop or tag > value + MAX_SIZE_BYTES:
        return None
    size, first = read_varint(payload, tag + 1, stop)
    kind = kind_of_tag(payload[tag])
    if kind is None or first + size != stop or first > tag + 1 + MAX_SIZE_BYTES:
        return None
    return Feature(kind, payload, first, stop)


def _usual_starts(payload: bytes, features: dict[str, Feature]) -> list[_Start]:
    """The starts of the entries; empty if the record is not written like most: entry after entry."""
    starts = []
    at = _first_entry(payload, len(payload))
    for key, feature in features.items():
        if feature.kind is None:
            return []
        raw, size = encode_delimited(1, key.encode()) + bytes([VALUE]), feature.end - feature.start
        inner = tag_and_length(TAGS[feature.kind], size)
        head = raw + varint(len(inner) + size) + inner
        begin = tag_and_length(1, len(head) + size) + head
        if not payload.startswith(begin, at) or at + len(begin) != feature.start:
            return []
        starts.append(_Start.of(payload, at, key, raw, feature))
        at = feature.end
    return starts
