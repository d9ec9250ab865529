"""Decodes trajectory records by column: the inverse of `record_encoding`.

Records of equal length almost always have the same layout with different values (`encoding.example.row_decoder`).
Others are parsed one by one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rlds_beam.encoding.example.reader import Feature, Kind, parse_example
from rlds_beam.encoding.example.row_decoder import FeatureLayout, Match, match_record
from rlds_beam.encoding.example.rows import Bytes
from rlds_beam.encoding.wire import MalformedError
from rlds_beam.episodes.columns import concatenate
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.typing import Array

if TYPE_CHECKING:
    from rlds_beam.episodes.episode import Column
    from rlds_beam.trajectories.spec import SpecLeaf, TrajectorySpec


class TrajectoryDecoder:
    """Decodes the records of one dataset.

    Args:
      spec: the spec of its trajectories.
      jpegs: leaf stored as JPEGs -> the names of its JPEGs in a record.
    """

    def __init__(self, spec: TrajectorySpec, jpegs: Mapping[str, Sequence[str]]):
        self._leaves, self._jpegs = spec.leaves, jpegs
        self._frames = spec.item_shape[0] if spec.item_shape else 1
        self._template: Match | None = None

    def decode(self, batch: Iterable[Bytes]) -> dict[str, Column]:
        """Decodes records to columns, one per leaf: [frames of all records, ...].

        Images that are stored as JPEGs stay JPEGs.

        Args:
          batch: the payloads, as matrices uint8 [k, length] of records of equal length.

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
                values = self._template.decode(rows[:count])
                yield {leaf.path: values[leaf.path].reshape(-1, *leaf.shape) for leaf in self._leaves}
            else:
                count = 1
                yield self._parse(rows[0].tobytes())
            rows = rows[count:]

    def _matching(self, rows: Bytes) -> int:
        """The number of leading rows that match the template; a row that does not match replaces the template."""
        if self._frames is None or self._jpegs:  # records rarely have equal length
            return 0
        count = self._template.count(rows) if self._template is not None else 0
        if not count:
            layouts = [
                FeatureLayout(leaf.path, _kind(leaf), leaf.numpy_dtype, self._frames * math.prod(leaf.shape))
                for leaf in self._leaves
            ]
            self._template = match_record(rows[0].tobytes(), layouts)
            count = self._template.count(rows) if self._template is not None else 0
        return count

    def _parse(self, payload: bytes) -> dict[str, Column]:
        """Parses one record of any layout."""
        example = parse_example(payload)
        columns: dict[str, Column] = {}
        for leaf in self._leaves:
            names = self._jpegs.get(leaf.path)
            features = [example.get(name, Feature(None)) for name in names or [leaf.path]]
            columns[leaf.path] = _images(features, leaf) if names else _values(features[0], leaf)
        frames = self._frames or len(columns["step_type"])
        for path, column in columns.items():
            if len(column) != frames:
                raise MalformedError(f"{path} has {len(column)} frames, expected {frames}")
        return columns


def _kind(leaf: SpecLeaf) -> Kind:
    kinds: dict[str, Kind] = {"float32": "float", "int64": "int64"}
    return kinds.get(leaf.dtype, "bytes")


def _values(feature: Feature, leaf: SpecLeaf) -> Array:
    """The values of one record, [frames, ...]."""
    if feature.kind != _kind(leaf):
        raise MalformedError(f"{leaf.path} is {_a(feature.kind)}, but {leaf.dtype} needs {_a(_kind(leaf))}")
    if feature.kind == "bytes":
        data = b"".join(feature.strings())
        values = np.frombuffer(data, leaf.numpy_dtype, len(data) // leaf.numpy_dtype.itemsize)
    else:
        values = feature.floats() if feature.kind == "float" else feature.ints()
    if len(values) % math.prod(leaf.shape):
        raise MalformedError(
            f"{leaf.path} has {len(values)} values, which is not a multiple of frames of {list(leaf.shape)}"
        )
    return values.reshape(-1, *leaf.shape)


def _a(kind: Kind | None) -> str:
    return "missing" if kind is None else f"a list of {kind}"


def _images(features: Sequence[Feature], leaf: SpecLeaf) -> EncodedImages:
    """The JPEGs of one record, one per frame."""
    jpegs = [jpeg for feature in features for jpeg in feature.strings()]
    data = np.empty(len(jpegs), object)
    data[:] = jpegs
    return EncodedImages(data, leaf.shape, leaf.dtype)
