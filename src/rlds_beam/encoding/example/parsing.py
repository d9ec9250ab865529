"""Parses the records of one dataset, which are alike: what was read of the last one is compared, not read again."""

from __future__ import annotations

from typing import NamedTuple

from rlds_beam.encoding.example.reading import ENTRY, TAGS, Feature, Kind, parse_entry, parse_example
from rlds_beam.encoding.wire import MalformedError, delimited, read_size, tag_and_length


class _Start(NamedTuple):
    """How an entry of the last record began.

    Attributes:
      begin: its bytes up to the first of its list: all lengths, and the key.
      length: bytes of the whole entry, which these lengths say.
      key, kind: of the entry.
      raw: the key as it is stored.
    """

    begin: bytes
    length: int
    key: str
    kind: Kind
    raw: bytes


class ExampleParser:
    """`parse_example` for one record after another: the same result and the same errors, in less time.

    Records of one dataset have the same keys in the same order, and lists of numbers are often as long as in the record
    before. An entry that begins with the same bytes up to its list has the same key, kind and lengths: none of them is
    read again. Of one that begins otherwise the lengths are read; a record with other keys is read by `parse_example`.

    Threads may share one: what is remembered of an entry is one tuple, true of any record in which its bytes are found.
    """

    def __init__(self) -> None:
        self._starts: list[_Start] = []

    def parse(self, payload: bytes) -> dict[str, Feature]:
        """Key -> feature; as `parse_example`."""
        features = self._as_before(payload)
        if features is None:
            features = parse_example(payload)
            self._starts = _usual_starts(payload, features)
        return features

    def _as_before(self, payload: bytes) -> dict[str, Feature] | None:
        """The features of a record with the keys of the last one; None of any other, and of a malformed one."""
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
            return None  # which `parse_example` says in its own words
        return features if at == end and features else None


def _first_entry(payload: bytes, end: int) -> int:
    """Where the entries begin of a record that is one map and nothing else; its end of any other."""
    if not end or payload[0] != ENTRY:
        return end
    size, at = read_size(payload, 1, end)
    return at if at + size == end else end


def _usual_starts(payload: bytes, features: dict[str, Feature]) -> list[_Start]:
    """How the entries begin; nothing of a record that is not written as most writers do it: entry after entry."""
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
