"""Decoded episodes of a dataset, cached, and as JSON."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Hashable, Mapping

import numpy as np

from rlds_beam import storage
from rlds_beam.checking.rules import CheckOptions
from rlds_beam.checking.validation import validate_episode
from rlds_beam.checking.verdicts import IgnoredValues
from rlds_beam.datasets.base import Cache
from rlds_beam.episodes.columns import is_text
from rlds_beam.episodes.episode import Column, Episode, EpisodeKey
from rlds_beam.errors import Violation
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.reading.base import Source
from rlds_beam.reading.reader import find_shard, read_episode
from rlds_beam.viewing.browser.frames import CameraFrames, find_cameras

HELD_BYTES = 64 << 20
"""Maximum bytes of decoded episodes held, or one episode."""
_AT_ONCE = 2
"""Episodes decoded at a time; each takes a few times the size of its record."""


@dataclasses.dataclass(frozen=True)
class OpenedEpisode:
    """An episode without its images.

    Attributes:
      episode: the episode; its steps have no images, and its payload is empty.
      violations: all rules that it breaks.
      rejected: the rule that rejects it; None if it is accepted.
      frames: the images of each camera.
    """

    episode: Episode
    violations: tuple[Violation, ...]
    rejected: str | None
    frames: Mapping[str, CameraFrames]

    def __len__(self) -> int:
        return max([len(self.episode), *map(len, self.frames.values())], default=0)


class EpisodeCache:
    """Reads and checks the episodes of a dataset; holds the most recent ones. Thread-safe; reads each once."""

    def __init__(self, source: Source, check: CheckOptions | None, most: int = HELD_BYTES):
        self._source, self._check = source, check
        self._paths: dict[str, tuple[str, ...]] = {}
        self._episodes: Cache[OpenedEpisode] = Cache(most)
        self._lock, self._reading = threading.Lock(), threading.Semaphore(_AT_ONCE)
        self._locks: dict[Hashable, threading.Lock] = {}

    def open(self, key: EpisodeKey) -> OpenedEpisode:
        """The episode at a key. Raises UsageError if there is none."""
        name = (key, self._stamp(key))
        with self._lock:
            own = self._locks.setdefault(name, threading.Lock())
        try:
            with own:
                opened = self._episodes.get(name)
                if opened is None:
                    with self._reading:
                        opened, size = self._open(key)
                    self._episodes.put(name, opened, size)
                return opened
        finally:
            with self._lock:
                self._locks.pop(name, None)

    def image(self, key: EpisodeKey, camera: str, step: int) -> bytes:
        """An image, as stored.

        Raises:
          LookupError: there is no such camera or step.
          UsageError: there is no such episode.
        """
        frames = self.open(key).frames
        if not 0 <= step < len(frames[camera]):
            raise IndexError(step)
        return frames[camera].image(step)

    def stamp(self, key: EpisodeKey) -> str:
        """Identifies the content of an episode's files."""
        return str(self._stamp(key))

    def _stamp(self, key: EpisodeKey) -> Hashable:
        shard = find_shard(self._source, key)
        if storage.scheme(shard.path) is not None:
            return None
        paths = self._paths.setdefault(shard.path, ()) or (shard.path, *self._source.companions(shard))
        self._paths[shard.path] = paths
        return tuple(map(storage.stamp, paths))

    def _open(self, key: EpisodeKey) -> tuple[OpenedEpisode, int]:
        episode = read_episode(self._source, key)
        violations: tuple[Violation, ...] = episode.faults
        rejected = violations[0].rule if violations else None
        if self._check is not None:
            verdict = validate_episode(episode, self._check, IgnoredValues.of(self._source.last_action))
            violations = verdict.violations
            rejected = None if verdict.rejected is None else verdict.rejected.rule
        cameras = {field.path: field for field in find_cameras(self._source.schema)}
        frames = {
            path: CameraFrames(_own(episode.steps[path]), field)
            for path, field in cameras.items()
            if path in episode.steps
        }
        steps = {path: _own(column) for path, column in episode.steps.items() if path not in cameras}
        metadata = {
            path: value.copy() if isinstance(value, np.ndarray) else value for path, value in episode.metadata.items()
        }
        held = Episode(key, steps, metadata, faults=episode.faults)
        columns = (*steps.values(), *(camera.column for camera in frames.values()))
        size = sum(map(_size, columns)) + 2000
        return OpenedEpisode(held, violations, rejected, frames), size


def _own(column: Column) -> Column:
    """A column that does not refer to the record that it was read from."""
    if isinstance(column, EncodedImages):
        return EncodedImages(column.data, column.shape, column.dtype, column.encoding)
    return column.copy()


def _size(column: Column) -> int:
    """The size of a column in memory, in bytes."""
    if isinstance(column, EncodedImages) or is_text(column):
        data = column.data if isinstance(column, EncodedImages) else column
        return sum(len(item) + 50 if isinstance(item, (bytes, str)) else 200 for item in data)
    if column.dtype == object:
        return sum(np.asarray(value).nbytes + 100 for value in column)
    return int(column.nbytes)
