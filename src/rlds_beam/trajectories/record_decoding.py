"""Trajectory records decoded by column: the way back from `record_encoding`.

Records of one length are, almost always, the same bytes with other values in the same places. Where
those places are, a look at one record as a tf.Example tells; for the others it is enough that they
agree with it in every byte between, and each leaf is one strided copy. What does not fit is parsed
record by record.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rlds_beam.episodes.columns import concatenate
from rlds_beam.episodes.images import EncodedImages
from rlds_beam.formats.example import Feature, Kind, parse_example
from rlds_beam.formats.wire import (
    LONGEST_VARINT,
    MalformedError,
    are_fixed_varints,
    decode_fixed_varints,
    tag_and_length,
)

if TYPE_CHECKING:
    from rlds_beam.episodes.episode import Column
    from rlds_beam.trajectories.spec import Leaf, TrajectorySpec

Array = np.ndarray[Any, Any]
Bytes = npt.NDArray[np.uint8]


class TrajectoryDecoder:
    """Decodes the records of one dataset.

    Args:
      spec: the leaves of its trajectories.
      jpegs: of each leaf that is stored as JPEGs, the names that these have in a record.
    """

    def __init__(self, spec: TrajectorySpec, jpegs: Mapping[str, Sequence[str]]):
        self._leaves, self._jpegs = spec.leaves, jpegs
        self._frames = spec.item_shape[0] if spec.item_shape else 1
        self._template: _Template | None = None

    def decode(self, batch: Iterable[Bytes]) -> dict[str, Column]:
        """The columns of some records, one leaf after the other: each [frames of all records, ...].

        Images that are stored as JPEGs stay JPEGs.

        Args:
          batch: the payloads, as matrices uint8 [k, length] of records of one length.

        Raises:
          MalformedError: a record does not hold these leaves.
        """
        parts = [part for rows in batch for part in self._parts(rows)]
        if len(parts) == 1:
            return parts[0]
        return {leaf.path: concatenate([part[leaf.path] for part in parts]) for leaf in self._leaves}

    def _parts(self, rows: Bytes) -> Iterator[dict[str, Column]]:
        while len(rows):
            count = self._matching(rows)
            if count and self._template is not None:
                yield self._template.decode(rows[:count])
            else:
                count = 1
                yield self._parse(rows[0].tobytes())
            rows = rows[count:]

    def _matching(self, rows: Bytes) -> int:
        """How many of the first rows fit the template; it is replaced by a new one for a row that does not fit."""
        if self._frames is None or self._jpegs:  # hardly two records are of one length
            return 0
        count = self._template.matching(rows) if self._template is not None else 0
        if not count:
            self._template = _template(rows[0].tobytes(), self._leaves, self._frames)
            count = self._template.matching(rows) if self._template is not None else 0
        return count

    def _parse(self, payload: bytes) -> dict[str, Column]:
        """The columns of one record, however it is written."""
        example = parse_example(payload)
        columns: dict[str, Column] = {}
        for leaf in self._leaves:
            names = self._jpegs.get(leaf.path)
            features = [example.get(name, Feature(None)) for name in names or [leaf.path]]
            columns[leaf.path] = _images(features, leaf) if names else _values(features[0], leaf)
        frames = self._frames or len(columns["step_type"])
        for path, column in columns.items():
            if len(column) != frames:
                raise MalformedError(f"{path} is of {len(column)} frames where {frames} are expected")
        return columns


class _Hole(NamedTuple):
    """Where the values of a leaf are in a record: the bytes start..stop, `size` values."""

    leaf: Leaf
    start: int
    stop: int
    size: int

    def groups(self, rows: Bytes) -> Bytes:
        """The varints of an int64 leaf, which are of one width: [k, size, width]."""
        return rows[:, self.start : self.stop].reshape(len(rows), self.size, -1)

    def values(self, rows: Bytes) -> Array:
        """[frames of all rows, ...]."""
        if self.leaf.dtype == "int64":
            values = decode_fixed_varints(self.groups(rows))
        else:
            values = np.ascontiguousarray(rows[:, self.start : self.stop]).view(self.leaf.numpy_dtype)
        return values.reshape(-1, *self.leaf.shape)


class _Template(NamedTuple):
    """A record with holes; those are in the order of the leaves."""

    row: Bytes
    holes: tuple[_Hole, ...]

    def matching(self, rows: Bytes) -> int:
        """How many of the first rows are this record with other values in the holes."""
        if rows.shape[1] != len(self.row):
            return 0
        places = sorted((hole.start, hole.stop) for hole in self.holes)
        bounds = [0, *itertools.chain(*places), len(self.row)]
        same = [rows[:, a:b] == self.row[a:b] for a, b in zip(bounds[::2], bounds[1::2], strict=True)]
        same += [are_fixed_varints(hole.groups(rows)) for hole in self.holes if hole.leaf.dtype == "int64"]
        if all(part.all() for part in same):
            return len(rows)
        fits = np.logical_and.reduce([part.reshape(len(rows), -1).all(axis=1) for part in same])
        return int(np.argmin(fits))

    def decode(self, rows: Bytes) -> dict[str, Column]:
        """The columns of rows that match."""
        return {hole.leaf.path: hole.values(rows) for hole in self.holes}


def _template(payload: bytes, leaves: Sequence[Leaf], frames: int) -> _Template | None:
    """The template that a record is of; None where it is not written as ours are."""
    example = parse_example(payload)
    holes = [_hole(example.get(leaf.path, Feature(None)), payload, leaf, frames) for leaf in leaves]
    found = tuple(hole for hole in holes if hole is not None)
    return _Template(np.frombuffer(payload, np.uint8), found) if len(found) == len(holes) else None


def _hole(feature: Feature, payload: bytes, leaf: Leaf, frames: int) -> _Hole | None:
    """The one packed list (or the one string) of a leaf."""
    size = frames * math.prod(leaf.shape)
    widths = range(1, LONGEST_VARINT + 1) if leaf.dtype == "int64" else (leaf.numpy_dtype.itemsize,)
    for width in widths:
        start = feature.end - size * width
        head = tag_and_length(1, size * width)
        if feature.kind == _kind(leaf) and feature.data is payload and payload[feature.start : start] == head:
            return _Hole(leaf, start, feature.end, size)
    return None


def _kind(leaf: Leaf) -> Kind:
    kinds: dict[str, Kind] = {"float32": "float", "int64": "int64"}
    return kinds.get(leaf.dtype, "bytes")


def _values(feature: Feature, leaf: Leaf) -> Array:
    """[frames, ...] of one record."""
    if feature.kind != _kind(leaf):
        raise MalformedError(f"{leaf.path} is {_a(feature.kind)}, where {leaf.dtype} is {_a(_kind(leaf))}")
    if feature.kind == "bytes":
        data = b"".join(feature.strings())
        values = np.frombuffer(data, leaf.numpy_dtype, len(data) // leaf.numpy_dtype.itemsize)
    else:
        values = feature.floats() if feature.kind == "float" else feature.ints()
    if len(values) % math.prod(leaf.shape):
        raise MalformedError(f"{leaf.path} has {len(values)} values, which are no frames of {list(leaf.shape)}")
    return values.reshape(-1, *leaf.shape)


def _a(kind: Kind | None) -> str:
    return "missing" if kind is None else f"a list of {kind}"


def _images(features: Sequence[Feature], leaf: Leaf) -> EncodedImages:
    """The JPEGs of one record, one a frame."""
    found = [jpeg for feature in features for jpeg in feature.strings()]
    data = np.empty(len(found), object)
    data[:] = found
    return EncodedImages(data, leaf.shape, leaf.dtype)
