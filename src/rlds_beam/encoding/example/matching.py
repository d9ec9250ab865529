"""Decodes many tf.Examples of one layout at once; the inverse of `templates`.

One record is parsed as a tf.Example to find the offsets of its values. Other records of the same length match if all
bytes between the values are equal; then each feature is one strided copy.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rlds_beam.encoding.example.reading import Feature, Kind, parse_example
from rlds_beam.encoding.wire import LONGEST_VARINT, are_fixed_varints, decode_fixed_varints, fitting, tag_and_length

Array = np.ndarray[Any, Any]
Bytes = npt.NDArray[np.uint8]


class FeatureLayout(NamedTuple):
    """The storage of a feature.

    Attributes:
      path: the name of the feature in the record.
      kind: the kind of its list.
      dtype: the dtype of the values; in a list of bytes, the dtype stored in the bytes.
      size: the number of values.
    """

    path: str
    kind: Kind
    dtype: np.dtype[Any]
    size: int


class _Place(NamedTuple):
    """The offsets of a feature's values in a record."""

    layout: FeatureLayout
    start: int
    stop: int

    def groups(self, rows: Bytes) -> Bytes:
        """The varints of an int64 list, all of the same width: [k, size, width]."""
        return rows[:, self.start : self.stop].reshape(len(rows), self.layout.size, -1)

    def values(self, rows: Bytes) -> Array:
        """Decodes the values, [k, size]."""
        if self.layout.kind == "int64":
            return fitting(decode_fixed_varints(self.groups(rows)), self.layout.dtype)
        return np.ascontiguousarray(rows[:, self.start : self.stop]).view(self.layout.dtype)


class Match(NamedTuple):
    """A record and the places of its values, in the order of the layouts."""

    row: Bytes
    places: tuple[_Place, ...]

    def count(self, rows: Bytes) -> int:
        """The number of leading rows that equal this record outside of the places."""
        if rows.shape[1] != len(self.row):
            return 0
        places = sorted((place.start, place.stop) for place in self.places)
        bounds = [0, *itertools.chain(*places), len(self.row)]
        same = [rows[:, a:b] == self.row[a:b] for a, b in zip(bounds[::2], bounds[1::2], strict=True)]
        same += [are_fixed_varints(place.groups(rows)) for place in self.places if place.layout.kind == "int64"]
        if all(part.all() for part in same):
            return len(rows)
        fits = np.logical_and.reduce([part.reshape(len(rows), -1).all(axis=1) for part in same])
        return int(np.argmin(fits))

    def decode(self, rows: Bytes) -> dict[str, Array]:
        """Decodes matching rows to values [k, size] by path."""
        return {place.layout.path: place.values(rows) for place in self.places}


def match_of(payload: bytes, layouts: Sequence[FeatureLayout]) -> Match | None:
    """Creates a match from a record; None if rlds-beam would write it differently."""
    example = parse_example(payload)
    places = [_place(example.get(layout.path, Feature(None)), payload, layout) for layout in layouts]
    matched = tuple(place for place in places if place is not None)
    return Match(np.frombuffer(payload, np.uint8), matched) if len(matched) == len(places) else None


def _place(feature: Feature, payload: bytes, layout: FeatureLayout) -> _Place | None:
    """Finds the one packed list (or one string) of a feature."""
    numbers = layout.kind == "int64"
    for width in range(1, LONGEST_VARINT + 1) if numbers else (layout.dtype.itemsize,):
        start = feature.end - layout.size * width
        head = tag_and_length(1, layout.size * width)
        if feature.kind == layout.kind and feature.data is payload and payload[feature.start : start] == head:
            return _Place(layout, start, feature.end)
    return None
