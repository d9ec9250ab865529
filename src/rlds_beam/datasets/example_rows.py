"""Rows stored as tf.Examples: columns and trajectories."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence

import numpy as np

from rlds_beam.datasets.base import Indices
from rlds_beam.datasets.record_files import RecordFiles
from rlds_beam.encoding.example.columns import RowDecoder, objects
from rlds_beam.encoding.wire import MalformedError
from rlds_beam.episodes.episode import Column
from rlds_beam.episodes.schema import Field
from rlds_beam.errors import RldsBeamError
from rlds_beam.images.encoded_images import EncodedImages


@dataclasses.dataclass(frozen=True)
class ExampleRows:
    """Rows stored as tf.Examples (`base.Rows`).

    Attributes:
      records: the stored records.
      stored: the fields of a record.
      stacks: columns stored in several fields, one per element: `camera` in `camera/0`, `camera/1`.
    """

    records: RecordFiles
    stored: tuple[Field, ...]
    stacks: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.records)

    @functools.cached_property
    def fields(self) -> Mapping[str, Field]:
        parts = {part for names in self.stacks.values() for part in names}
        known = {field.path: field for field in self.stored}
        stacked = {
            path: dataclasses.replace(known[names[0]], path=path, shape=(len(names), *known[names[0]].shape))
            for path, names in self.stacks.items()
        }
        return {**{path: field for path, field in known.items() if path not in parts}, **stacked}

    @functools.cached_property
    def _decoder(self) -> RowDecoder:
        return RowDecoder(self.stored)

    def read(self, indices: Indices, wanted: Sequence[str]) -> dict[str, Column]:
        payloads = self.records.read(indices)
        stored = [name for path in wanted for name in self.stacks.get(path, (path,))]
        try:
            columns = self._decoder.decode(payloads, stored)
        except MalformedError as error:
            path, number = self.records.place(int(indices[0]))
            raise RldsBeamError(
                f"{path}, among {len(payloads)} records from number {number} on: {error}; the manifest describes "
                "different records: convert the dataset again"
            ) from error
        return {path: _stacked(columns, self.stacks[path]) if path in self.stacks else columns[path] for path in wanted}


def _stacked(columns: Mapping[str, Column], names: Sequence[str]) -> Column:
    """Stacks the images of several fields into one column, [k, len(names)]."""
    parts = [columns[name] for name in names]
    first = parts[0]
    assert isinstance(first, EncodedImages)
    rows = np.stack([part.data for part in parts if isinstance(part, EncodedImages)], axis=1)
    return first.with_data(objects(list(rows)))


def stacks_of(fields: Sequence[Field]) -> dict[str, tuple[str, ...]]:
    """The trajectory columns stored as a JPEG per frame: `camera` in `camera/0`, `camera/1`."""
    stacks: dict[str, dict[int, str]] = {}
    for field in fields:
        match = re.fullmatch(r"(.+)/(\d+)", field.path)
        if match and field.encoding == "jpeg":
            stacks.setdefault(match[1], {})[int(match[2])] = field.path
    return {
        path: tuple(names[i] for i in range(len(names)))
        for path, names in stacks.items()
        if [*sorted(names)] == [*range(len(names))]
    }
