"""Reading many tf.Examples of one layout at once: the inverse of `templates`.

Where the values of a feature are in a record, a look at one record as a tf.Example tells. For others of the same length
it is enough that they agree with it in every byte between, and each feature is one strided copy.
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
    """How a feature is stored.

    Attributes:
      path: its name in the record.
      kind: the list that it is in.
      dtype: of the values; in a list of bytes, of their bytes.
      size: the number of values.
    """

    path: str
    kind: Kind
    dtype: np.dtype[Any]
    size: int


class _Place(NamedTuple):
    """Where the values of a feature are in a record: the bytes start..stop."""

    layout: FeatureLayout
    start: int
    stop: int

    def groups(self, rows: Bytes) -> Bytes:
        """The varints of an int64 list, which are of one width: [k, size, width]."""
        return rows[:, self.start : self.stop].reshape(len(rows), self.layout.size, -1)

    def values(self, rows: Bytes) -> Array:
        """[k, size]."""
        if self.layout.kind == "int64":
            return fitting(decode_fixed_varints(self.groups(rows)), self.layout.dtype)
        return np.ascontiguousarray(rows[:, self.start : self.stop]).view(self.layout.dtype)


class Match(NamedTuple):
    """A record with places for values; those are in the order of the layouts."""

    row: Bytes
    places: tuple[_Place, ...]

    def count(self, rows: Bytes) -> int:
        """How many of the first rows are this record with other values in the places."""
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
        """The values of rows that match, [k, size] by path."""
        return {place.layout.path: place.values(rows) for place in self.places}


def match_of(payload: bytes, layouts: Sequence[FeatureLayout]) -> Match | None:
    """The match that a record is of; None where it is not written as ours are."""
    example = parse_example(payload)
    places = [_place(example.get(layout.path, Feature(None)), payload, layout) for layout in layouts]
    matched = tuple(place for place in places if place is not None)
    return Match(np.frombuffer(payload, np.uint8), matched) if len(matched) == len(places) else None


def _place(feature: Feature, payload: bytes, layout: FeatureLayout) -> _Place | None:
    """The one packed list (or the one string) of a feature."""
    numbers = layout.kind == "int64"
    for width in range(1, LONGEST_VARINT + 1) if numbers else (layout.dtype.itemsize,):
        start = feature.end - layout.size * width
        head = tag_and_length(1, layout.size * width)
        if feature.kind == layout.kind and feature.data is payload and payload[feature.start : start] == head:
            return _Place(layout, start, feature.end)
    return None
