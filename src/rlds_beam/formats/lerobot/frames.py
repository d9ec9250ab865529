"""Frames of episodes, ready to be written to Parquet."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from rlds_beam.formats.lerobot import language, tables
from rlds_beam.formats.lerobot.features import LerobotFeature

if TYPE_CHECKING:
    import pyarrow as pa

Array: TypeAlias = "np.ndarray[Any, Any]"
Values: TypeAlias = "Array | Sequence[str] | Sequence[bytes | memoryview]"
"""The values of a column: numbers (T, ...), text, or images."""


@dataclasses.dataclass(frozen=True)
class LerobotFrames:
    """The frames of an episode.

    Attributes:
      columns: all columns of the Parquet file, by name.
      length: the number of frames.
    """

    columns: Mapping[str, Values]
    length: int

    @functools.cached_property
    def bytes(self) -> int:
        """The size of the columns."""
        return sum(
            values.nbytes if isinstance(values, np.ndarray) else sum(map(len, values))
            for values in self.columns.values()
        )


@dataclasses.dataclass(frozen=True)
class FrameColumns:
    """The columns of a Parquet file of frames.

    Attributes:
      features: the features in the file, before LeRobot's own columns.
    """

    features: tuple[LerobotFeature, ...]

    @functools.cached_property
    def schema(self) -> pa.Schema:
        return tables.frames_schema(self.features)

    def table(self, episodes: Sequence[LerobotFrames]) -> pa.Table:
        """The frames of these episodes, concatenated."""
        import pyarrow as pa

        columns = {feature.name: _joined(feature, [one.columns[feature.name] for one in episodes])
                   for feature in self.features}  # fmt: skip
        for name in self.schema.names[len(self.features) :]:
            columns[name] = pa.array(np.concatenate([cast(Array, one.columns[name]) for one in episodes]))
        return pa.Table.from_arrays(list(columns.values()), schema=self.schema)


def _joined(feature: LerobotFeature, parts: Sequence[Any]) -> pa.Array:
    if feature.kind == "number":
        return tables.numbers_array(feature, np.concatenate(parts))
    values = list(itertools.chain.from_iterable(parts))
    if feature.kind == "language":
        return language.rows_array(feature.name, values)
    return tables.texts_array(feature, values) if feature.kind == "text" else tables.images_array(values)
