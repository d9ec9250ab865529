"""Parses similar records of one dataset fast: bytes that equal the last record's are not parsed again."""

from __future__ import annotations

from typing import NamedTuple

from rlds_beam.encoding.example.reading import ENTRY, TAGS, Feature, Kind, parse_entry, parse_example
from rlds_beam.encoding.wire import MalformedError, delimited, read_size, tag_and_length


class _Start(NamedTuple):
    """The start of an entry in the last record.

    Attributes:
      begin: the bytes before the content of the list: all lengths, and the key.
      length: the size of the whole entry in bytes, according to these lengths.
      key, kind: the key and kind of the entry.
      raw: the key as stored.
    """

    begin: bytes
    length: int
    key: str
    kind: Kind
    raw: bytes


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
        try:
            at = _first_entry(payload, end)
            for i, (begin, length, key, kind, raw) in enumerate(starts):
                if payload.startswith(begin, at):
                    stop = at + length
                    if stop > end:
                        return None
                    features[key] = Feature(kind, payload, at + len(begin), stop)
                else:
                    if at >= end or payload[at] != ENTRY:
                        return None
                    size, first = read_size(payload, at + 1, end)
                    stop = first + size
                    other, feature = parse_entry(payload, first, stop)
                    if other != raw or feature.kind is None or feature.end != stop:
                        return None
                    features[key] = feature
                    starts[i] = _Start(payload[at : feature.start], stop - at, key, feature.kind, raw)
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


def _usual_starts(payload: bytes, features: dict[str, Feature]) -> list[_Start]:
    """The starts of the entries; empty if the record is not written like most: entry after entry."""
    starts = []
    at = _first_entry(payload, len(payload))
    for key, feature in features.items():
        if feature.kind is None:
            return []
        raw, size = key.encode(), feature.end - feature.start
        inner = tag_and_length(TAGS[feature.kind], size)
        head = delimited(1, raw) + tag_and_length(2, len(inner) + size) + inner
        begin = tag_and_length(1, len(head) + size) + head
        if not payload.startswith(begin, at) or at + len(begin) != feature.start:
            return []
        starts.append(_Start(begin, len(begin) + size, key, feature.kind, raw))
        at = feature.end
    return starts
