"""Files with profiles as a record format: an episode is a file, or some rows of one."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

import numpy as np

from rlds_beam import storage
from rlds_beam.encoding.base import Damage
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.errors import UsageError
from rlds_beam.formats.arrays.array_episodes import ArrayFormat, Arrays
from rlds_beam.formats.arrays.array_files import SourceOfFiles
from rlds_beam.formats.arrays.hdf5_reader import MAX_BYTES, UNREADABLE
from rlds_beam.formats.profiles.binding import Container, Leaf, text_files
from rlds_beam.formats.profiles.episodes import Layout, ProfileDecoder, read_episode
from rlds_beam.reading.base import LastAction, Shard, Split
from rlds_beam.text import join_lines
from rlds_beam.typing import Array

_ROWS = 1 << 20  # flags read at once
_MAX_PIXELS = 16 * MAX_BYTES
"""Maximum bytes of an episode's frames that become PNGs, which are not held at once."""


class FileRows:
    """Some rows of a file that holds episodes end to end (`binding.Container`).

    Args:
      whole: the file.
      first, last: the rows of the episode.
      rows: the rows of the file.
      ended: whether an array says that the episode ends.
    """

    def __init__(self, whole: Container, first: int, last: int, rows: int, ended: bool):
        self.path, self.group, self.ended = whole.path, f"rows {first} to {last}", ended
        self._whole, self._first, self._last, self._rows = whole, first, last, rows

    @functools.cached_property
    def leaves(self) -> Mapping[str, Leaf]:
        """The arrays with a row for each step."""
        count = self._last - self._first
        return {
            name: leaf._replace(shape=(count, *leaf.shape[1:]))
            for name, leaf in self._whole.leaves.items()
            if leaf.shape[:1] == (self._rows,)
        }

    def read(self, name: str, rows: slice | None = None) -> Array:
        """The rows of an array; an array without a row for each step as a whole."""
        if name not in self.leaves:
            return self._whole.read(name, rows)
        start, stop, _ = (rows or slice(None)).indices(self._last - self._first)
        return self._whole.read(name, slice(self._first + start, self._first + max(start, stop)))

    def attribute(self, place: str) -> Any:
        """An attribute of the file."""
        return self._whole.attribute(place)

    def has(self, name: str) -> bool:
        """Whether the file has an array, group, or attribute."""
        return self._whole.has(name)


@dataclasses.dataclass(frozen=True)
class ProfileFormat(ArrayFormat):
    """Files with a profile.

    Attributes:
      layout: the fields.
      root: the directory of the dataset, to which the names of files are relative.
    """

    layout: Layout
    root: str = ""

    @staticmethod
    @abc.abstractmethod
    def whole(path: str) -> contextlib.AbstractContextManager[Container]:
        """Opens a file. Raises OSError if it is damaged."""

    def count(self, path: str) -> int:
        return len(self._starts(path)[1]) if self.layout.profile.ends else 1

    def is_splittable(self, path: str) -> bool:
        return bool(self.layout.profile.ends)

    def episode(self, whole: Container, i: int) -> tuple[Container, Mapping[str, bool]]:
        """An episode of a file, and whether each filter key lists it."""
        if not self.layout.profile.ends:
            return whole, {}
        starts, ended = self._starts(whole.path)
        return FileRows(whole, int(starts[i]), int(starts[i + 1]), int(starts[-1]), bool(ended[i])), {}

    def file_name(self, path: str) -> str:
        """The name of a file, relative to the directory of the dataset."""
        within = self.root and path.startswith(self.root)
        return path[len(self.root) :].lstrip("/") if within else storage.split(path)[1]

    def groups(self, path: str) -> list[str]:
        """The groups of a file's episodes, in order; an empty name for an episode that is the file."""
        return [] if self.layout.profile.ends else [""]

    def names(self, splits: Iterable[Split], dataset: str) -> Iterator[tuple[EpisodeKey, tuple[str, ...]]]:
        """See `Source.episode_names`."""
        for split in splits:
            whole = [(shard, 0, shard.records or 0) for shard in split.shards]
            for shard, low, high in split.taken if split.sliced else whole:
                file, groups = self.file_name(shard.path), self.groups(shard.path)
                for i in range(low, min(high, len(groups))):
                    short = groups[i].rpartition("/")[2]
                    of_group = (f"{short} of {file}", short, groups[i])
                    names = of_group if short else (file, storage.split(file)[1])
                    yield EpisodeKey(dataset, split.name, shard.index, i), names

    def episodes(self, path: str, start: int, stop: int) -> Iterator[Arrays | Damage]:
        name = self.file_name(path)
        with self.whole(path) as whole:
            for i in range(start, stop):
                place = name
                try:
                    episode, listed = self.episode(whole, i)
                    place = f"{name}: {episode.group}".rstrip(": ")
                    _check_size(episode, self.layout)
                    arrays = read_episode(self.layout, episode, name, listed)
                except (*UNREADABLE, UsageError) as error:
                    yield Damage(i, i + 1, f"{place} cannot be read: {' '.join(str(error).split())}", b"")
                    continue
                yield arrays
                del arrays

    def _starts(self, path: str) -> tuple[Array, Array]:
        return _cached_starts(type(self), path, storage.stamp(path), self.layout.profile.ends)


@dataclasses.dataclass(frozen=True)
class ProfileSource(SourceOfFiles):
    """Files with a profile. Attributes: see `Source`."""

    files: ProfileFormat

    told_by_files = True

    @classmethod
    def of(cls, name: str, files: ProfileFormat, splits: tuple[Split, ...]) -> Self:
        """The dataset of this name."""
        layout = files.layout
        decoder = ProfileDecoder(layout.schema, layout)
        return cls(f"{name}/1.0.0", layout.schema, decoder, splits, files, (), layout.fps, layout.robot)

    @property
    def assumes_robot(self) -> bool:  # type: ignore[override]
        return self.layout.robot == self.layout.profile.robot

    @property
    def layout(self) -> Layout:
        """The profile and the fields."""
        return self.files.layout

    @property
    def last_action(self) -> LastAction:  # type: ignore[override]
        return self.layout.last_action

    def describe(self) -> str:
        return join_lines([super().describe(), *self.notes])

    @property
    def notes(self) -> tuple[str, ...]:  # type: ignore[override]
        return (f"profile {self.layout.profile.name}", *self.layout.notes)

    def plan(self) -> dict[str, Any]:
        return {"profile": dataclasses.asdict(self.layout.profile)}

    def episode_names(self) -> Iterator[tuple[EpisodeKey, tuple[str, ...]]]:
        return self.files.names(self.splits, self.dataset)

    def companions(self, shard: Shard) -> list[str]:
        return text_files(self.layout.profile, shard.path)


@functools.lru_cache(maxsize=64)
def _cached_starts(files: type[ProfileFormat], path: str, stamp: Any, ends: tuple[str, ...]) -> tuple[Array, Array]:
    """The first row of each episode, then the number of rows; and whether each episode has an end."""
    del stamp
    with files.whole(path) as whole:
        return find_starts(whole, ends)


def find_starts(whole: Container, ends: tuple[str, ...]) -> tuple[Array, Array]:
    """The first steps of the episodes of a flat file. Raises OSError if the arrays of ends are missing or wrong."""
    names = [name for name in ends if name in whole.leaves]
    if not names:
        raise OSError(f"it has no {ends[0]}, which marks the ends of episodes")
    rows = (*whole.leaves[names[0]].shape, 0)[0]
    is_end = np.zeros(rows, bool)
    for name in names:
        is_end |= _flags(whole, name, rows)
    starts = np.unique(np.concatenate([[0], np.flatnonzero(is_end) + 1, [rows]]))
    return starts, is_end[starts[1:] - 1]


def _flags(whole: Container, name: str, rows: int) -> Array:
    """Whether each row of an array is other than 0. Raises OSError for other rows or values."""
    leaf = whole.leaves[name]
    if leaf.shape[:1] != (rows,) or leaf.dtype.kind not in "biuf" or int(np.prod(leaf.shape[1:])) != 1:
        raise OSError(f"{name} has the shape {list(leaf.shape)} ({leaf.dtype}), expected a flag for {rows} rows")
    parts = [whole.read(name, slice(i, min(i + _ROWS, rows))).reshape(-1) for i in range(0, rows, _ROWS)]
    values: Array = np.concatenate(parts) if parts else np.zeros(0)
    wrong = np.flatnonzero((values != 0) & (values != 1))
    if len(wrong):
        raise OSError(f"{name} is {values[wrong[0]]} at row {wrong[0]}, expected 0 or 1")
    return values.astype(bool)


def _check_size(episode: Container, layout: Layout) -> None:
    arrays = pixels = 0
    for binding in layout.bound:
        if (leaf := episode.leaves.get(binding.name)) is not None:
            size = math.prod(leaf.shape) * leaf.dtype.itemsize
            arrays, pixels = (arrays, pixels + size) if binding.has_pixels(leaf) else (arrays + size, pixels)
    for size, most in ((arrays, MAX_BYTES), (pixels, _MAX_PIXELS)):
        if size > most:
            raise OSError(f"its arrays have {size:,} bytes, more than {most:,}")
