"""Decoded episodes of a dataset, cached, and the images of their cameras as stored bytes."""

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
from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.errors import Violation
from rlds_beam.images.codecs import encode_png, encode_zeros
from rlds_beam.images.encoded_images import ZERO_IMAGE, EncodedImages
from rlds_beam.reading.base import Source
from rlds_beam.reading.reader import find_shard, read_episode

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
            verdict = validate_episode(episode, self._check, IgnoredValues.from_last_action(self._source.last_action))
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


_MIN_SIDE_PIXELS = 8
"""The least height and width of raw pixels; smaller arrays are numbers."""


@dataclasses.dataclass(frozen=True)
class CameraFrames:
    """The images of a camera: encoded, or raw pixels [T, H, W, C]."""

    column: Column
    field: Field

    def __len__(self) -> int:
        return len(self.column)

    def image(self, step: int) -> bytes:
        """The image of a step: stored bytes, or a PNG of raw pixels."""
        if isinstance(self.column, EncodedImages):
            data = self.column.image(step)
            if data != ZERO_IMAGE:
                return data
            sides, channels = self.field.shape[:-1], self.field.shape[-1] or 3
            shape = (*(side or _MIN_SIDE_PIXELS for side in sides), channels)
            return encode_zeros(shape, self.field.dtype, "png")
        pixels = np.asarray(self.column[step])
        return encode_png(pixels.reshape(1, *pixels.shape[:2], -1))[0]

    def size(self, step: int) -> int:
        """The bytes of a stored image, or of raw pixels."""
        column = self.column
        return len(column.image(step)) if isinstance(column, EncodedImages) else int(np.asarray(column[step]).nbytes)


def is_camera(field: Field) -> bool:
    """Whether each value of a field is an image: encoded, or raw pixels."""
    if field.holds_image_files:
        return True
    sides, channels = field.shape[:2], field.shape[2:] or (1,)
    return (
        field.dtype in ("uint8", "uint16")
        and len(sides) == 2
        and channels in ((1,), (3,), (4,))
        and all(size is None or size >= _MIN_SIDE_PIXELS for size in sides)
    )


def find_cameras(schema: Schema) -> list[Field]:
    """The step fields that are images."""
    return [field for field in schema.steps.values() if is_camera(field)]


def media_type(image: bytes) -> str | None:
    """The media type of an encoded image; None if browsers cannot show it."""
    for start, name in ((b"\xff\xd8\xff", "image/jpeg"), (b"\x89PNG\r\n\x1a\n", "image/png")):
        if image.startswith(start):
            return name
    return None
