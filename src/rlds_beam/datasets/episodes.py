"""RLDS episodes as rows, read from their records."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np

from rlds_beam.datasets.base import STEPS, Indices
from rlds_beam.datasets.record_files import RecordFiles
from rlds_beam.encoding.example.columns import objects
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.episodes.keys import EpisodeKey
from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.errors import BadEpisode, RldsBeamError
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.reading.base import Decoder


@dataclasses.dataclass(frozen=True)
class EpisodeRows:
    """Episodes as rows (`base.Rows`): `steps/...` are columns [T, ...], the others are metadata.

    Attributes:
      records: the stored records.
      schema: the schema of the episodes.
      decoder: decodes a record into an episode.
      first, count: the slice of the split's episodes.
    """

    records: RecordFiles
    schema: Schema
    decoder: Decoder
    first: int = 0
    count: int | None = None

    def __len__(self) -> int:
        there = max(0, len(self.records) - self.first)
        return there if self.count is None else min(self.count, there)

    @functools.cached_property
    def fields(self) -> Mapping[str, Field]:
        steps = {
            STEPS + path: dataclasses.replace(field, path=STEPS + path, shape=(None, *field.shape))
            for path, field in self.schema.steps.items()
        }
        return {**steps, **self.schema.metadata}

    def episodes(self, indices: Indices) -> list[Episode]:
        """Reads episodes by index.

        Raises:
          RldsBeamError: an episode cannot be read; `rlds-beam validate` lists all of these.
        """
        numbers = indices + self.first
        return [self._episode(payload, int(i)) for i, payload in zip(numbers, self.records.read(numbers), strict=True)]

    def _episode(self, payload: bytes, index: int) -> Episode:
        try:
            return self.decoder.decode(payload, EpisodeKey("dataset/1.0.0", "all", 0, index))
        except BadEpisode as bad:
            raise self._unreadable(index, str(bad)) from bad

    def _unreadable(self, index: int, why: str) -> RldsBeamError:
        path, number = self.records.place(index)
        return RldsBeamError(
            f"{path}, record {number}: {why}; `rlds-beam validate` lists all such records, `convert` leaves them out"
        )

    def read(self, indices: Indices, wanted: Sequence[str]) -> dict[str, Column]:
        episodes = self.episodes(indices)
        return {path: self._column(path, episodes) for path in wanted}

    def _column(self, path: str, episodes: Sequence[Episode]) -> Column:
        field = self.fields[path]
        if path.startswith(STEPS):
            columns = [episode.steps[path.removeprefix(STEPS)] for episode in episodes]
            if field.encoding in ("png", "jpeg"):
                data = [column.data for column in columns if isinstance(column, EncodedImages)]
                return EncodedImages(objects(data), field.shape[-3:], field.dtype)
            return objects(columns)
        values = [episode.metadata[path] for episode in episodes]
        if field.encoding in ("png", "jpeg"):
            return EncodedImages(objects(values), field.shape, field.dtype)
        if None in field.shape or field.dtype == "string":
            return objects(values)
        return np.array(values, field.numpy_dtype).reshape(len(values), *field.closed_shape)
