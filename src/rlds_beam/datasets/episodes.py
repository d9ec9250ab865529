"""RLDS episodes and their steps as rows."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam.datasets.base import Indices, PerThread, by_file
from rlds_beam.datasets.record_files import RecordFiles
from rlds_beam.encoding.example.columns import objects
from rlds_beam.encoding.example.reading import parse_example
from rlds_beam.encoding.wire import MalformedError
from rlds_beam.episodes.columns import concatenate
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.episodes.keys import EpisodeKey
from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.errors import BadEpisode, RldsBeamError
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.reading.base import Decoder

_AT_ONCE = 64
"""Episodes per read when reading lengths."""

STEPS = "steps/"


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

    def lengths(self, indices: Indices) -> list[int]:
        """The lengths of some episodes in steps; decodes no more than needed."""
        numbers = indices + self.first
        step_counts = []
        for index, payload in zip(numbers.tolist(), self.records.read(numbers), strict=True):
            try:
                step_counts.append(len(parse_example(payload)["steps/is_first"].ints()))
            except (KeyError, MalformedError) as error:
                raise self._unreadable(index, f"not an RLDS episode: {error}") from error
        return step_counts

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


class StepRows:
    """Steps of RLDS episodes as rows (`base.Rows`). Reading a step decodes its episode.

    Reading the first step reads all episodes once to find their lengths.
    """

    def __init__(self, episodes: EpisodeRows):
        self._episodes = episodes
        self._decoded: PerThread[Episode] = PerThread(self._decode, most=2)
        self._lock = threading.Lock()
        self._starts: Indices | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"episodes": self._episodes, "starts": self._starts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["episodes"])  # type: ignore[misc]
        self._starts = state["starts"]

    @property
    def fields(self) -> Mapping[str, Field]:
        return self._episodes.schema.steps

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def starts(self) -> Indices:
        """The index of each episode's first step, then the total number of steps."""
        with self._lock:
            if self._starts is None:
                count, lengths = len(self._episodes), [0]
                for first in range(0, count, _AT_ONCE):
                    lengths += self._episodes.lengths(np.arange(first, min(first + _AT_ONCE, count)))
                self._starts = np.cumsum(lengths)
        return self._starts

    def _decode(self, name: str) -> Episode:
        return self._episodes.episodes(np.array([int(name)]))[0]

    def read(self, indices: Indices, wanted: Sequence[str]) -> dict[str, Column]:
        groups = by_file(indices, self.starts)
        if not groups:
            return {path: _nothing(self.fields[path]) for path in wanted}
        parts: dict[str, list[Column]] = {path: [] for path in wanted}
        for number, _, steps in groups:
            episode = self._decoded[str(number)]
            for path in wanted:
                parts[path].append(episode.steps[path][steps])
        back = np.argsort(np.concatenate([which for _, which, _ in groups]), kind="stable")
        return {path: concatenate(columns)[back] for path, columns in parts.items()}


def _nothing(field: Field) -> Column:
    if field.encoding in ("png", "jpeg"):
        return EncodedImages(objects([]), field.shape, field.dtype)
    if field.dtype == "string" or None in field.shape:
        return objects([])
    return np.empty((0, *field.closed_shape), field.numpy_dtype)
