"""The episodes of HDF5, `.npz`, and zarr files: groups, whole files, or rows between ends."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from rlds_beam import storage
from rlds_beam.encoding.base import Damage
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.errors import UsageError
from rlds_beam.formats.arrays.array_episodes import (
    UNREADABLE,
    ArrayFormat,
    Arrays,
)
from rlds_beam.formats.profiles.containers import (
    HDF5,
    NPZ,
    Container,
    FileRows,
    Hdf5Container,
    Leaf,
    matches,
    open_hdf5,
    open_npz,
)
from rlds_beam.formats.profiles.episodes import Layout, read_episode, read_flags
from rlds_beam.formats.profiles.model import Profile
from rlds_beam.formats.profiles.zarr_store import METADATA, ZarrContainer, open_store
from rlds_beam.reading.base import Split
from rlds_beam.typing import Array

_ROWS = 1 << 16  # observations compared at once
_NOISE = 0.5  # if a larger fraction of next observations differ, they do not mark ends


@contextlib.contextmanager
def open_container(path: str) -> Iterator[Container]:
    """Opens a file. Raises OSError if it is damaged, or cannot be read."""
    if path.endswith(NPZ):
        with open_npz(path) as container:
            yield container
    elif path.endswith(HDF5):
        with open_hdf5(path) as root:
            yield Hdf5Container(path, root)
    else:
        with open_store(path) as store:
            yield ZarrContainer(store)


@dataclasses.dataclass(frozen=True)
class ProfileFormat(ArrayFormat):
    """Files with a profile.

    Attributes:
      layout: the fields.
      root: the directory of the dataset, to which the names of files are relative.
      split_masks: the filter keys that are splits; the episodes of a file are in the order of these.
      name: the name of the format.
    """

    layout: Layout
    root: str = ""
    split_masks: tuple[str, ...] = ()
    name: str = "hdf5"

    @property
    def profile(self) -> Profile:
        return self.layout.profile

    def count(self, path: str) -> int:
        if not self.profile.per_file:
            return len(self.groups(path))
        return len(find_starts(path, self.profile)[1]) if has_several(self.profile) else 1

    def is_splittable(self, path: str) -> bool:
        if not self.profile.per_file:
            return True
        try:
            with open_container(path) as whole:
                return has_several(self.profile) and whole.seekable
        except OSError:
            return False

    def groups(self, path: str) -> list[str]:
        """The groups of a file's episodes; an empty name for an episode that is the file."""
        if self.profile.per_file:
            return [] if has_several(self.profile) else [""]
        return _cached_groups(path, storage.stamp(path), self.profile.episodes, self.split_masks)[0]

    def masks(self, path: str) -> Mapping[str, frozenset[str]]:
        """The filter keys of a file."""
        return _cached_groups(path, storage.stamp(path), self.profile.episodes, self.split_masks)[1]

    def file_name(self, path: str) -> str:
        """The name of a file, relative to the directory of the dataset."""
        within = self.root and path.startswith(self.root) and path != self.root
        return path[len(self.root) :].lstrip("/") if within else storage.split(path)[1]

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
        with open_container(path) as whole:
            name = self.file_name(whole.path)
            starts = find_starts(path, self.profile) if has_several(self.profile) else None
            for i in range(start, stop):
                place = name
                try:
                    episode, listed = self._episode(whole, path, i, starts)
                    place = f"{name}: {episode.group}".rstrip(": ")
                    arrays = read_episode(self.layout, episode, name, listed)
                except (*UNREADABLE, UsageError) as error:
                    yield Damage(i, i + 1, f"{place} cannot be read: {' '.join(str(error).split())}", b"")
                    continue
                yield arrays
                del arrays

    def _episode(
        self, whole: Container, path: str, i: int, starts: tuple[Array, Array] | None
    ) -> tuple[Container, Mapping[str, bool]]:
        """An episode of a file, and whether each filter key lists it."""
        if not self.profile.per_file:
            group = self.groups(path)[i]
            listed = {mask: group.rpartition("/")[2] in names for mask, names in self.masks(path).items()}
            return whole.within(group), listed
        return (whole if starts is None else episode_rows(whole, self.profile, i, *starts)), {}


def has_several(profile: Profile) -> bool:
    """Whether a file holds several episodes, end to end."""
    return profile.per_file and bool(profile.ends or profile.episode_ends)


@functools.lru_cache(maxsize=64)
def _cached_groups(
    path: str, stamp: Any, pattern: str, split_masks: tuple[str, ...]
) -> tuple[list[str], Mapping[str, frozenset[str]]]:
    del stamp
    with open_container(path) as whole:
        groups, masks = whole.groups(pattern), whole.masks()
    order = {group: i for i, split in enumerate(split_masks) for group in masks.get(split, ())}
    return sorted(groups, key=lambda group: order.get(group.rpartition("/")[2], len(split_masks))), masks


def episode_rows(whole: Container, profile: Profile, i: int, starts: Array, ended: Array) -> Container:
    """An episode of a file that holds several (see `find_starts`). Raises OSError for rows that no episode has."""
    if profile.episode_ends and i < len(ended) and not ended[i]:
        raise OSError(f"there are rows after {starts[i]:,}, where the last episode ends")
    per_episode, per_step = _kinds_of_rows(whole, profile, int(starts[-1]))
    first, last, has_end = (int(starts[i]), int(starts[i + 1]), bool(ended[i])) if len(ended) else (0, 0, True)
    return FileRows(whole, i, first, last, has_end, per_step, per_episode)


def _kinds_of_rows(whole: Container, profile: Profile, rows: int) -> tuple[list[str], dict[str, Leaf]]:
    """The arrays with a row for each episode, and for each step."""
    leaves = whole.leaves
    if not profile.episode_ends:
        return [], {name: leaf for name, leaf in leaves.items() if leaf.shape[:1] == (rows,)}
    episodes = leaves[profile.episode_ends].shape
    named = {name for place in profile.metadata.values() for name, _ in matches(place, leaves)}
    named.discard(profile.episode_ends)
    per_episode = sorted(name for name in named if leaves[name].shape[:1] == episodes)
    per_step = {name: leaf for name, leaf in leaves.items() if name not in named and name != profile.episode_ends}
    return per_episode, per_step


def find_starts(path: str, profile: Profile) -> tuple[Array, Array]:
    """The first row of each episode, then the number of rows; and whether each episode has an end.

    Raises:
      OSError: the arrays of ends are missing or wrong.
    """
    key = (profile.episode_ends, profile.ends, tuple(profile.final.items()))
    if path.endswith(METADATA):  # other files of the store may change
        return _read_starts(path, *key)
    in_bucket = path.endswith(".zip") and storage.scheme(path) is not None
    return _cached_starts(path, storage.checksum(path) if in_bucket else storage.stamp(path), *key)


@functools.lru_cache(maxsize=64)
def _cached_starts(path: str, stamp: Any, *key: Any) -> tuple[Array, Array]:
    del stamp
    return _read_starts(path, *key)


def _read_starts(
    path: str, episode_ends: str, ends: tuple[str, ...], final: Iterable[tuple[str, str]]
) -> tuple[Array, Array]:
    with open_container(path) as whole:
        if episode_ends:
            return _starts_of_numbers(whole, episode_ends)
        names = [name for name in ends if name in whole.leaves]
        if not names:
            raise OSError(f"it has no {ends[0]}, which marks the ends of episodes")
        rows = (*whole.leaves[names[0]].shape, 0)[0]
        is_end = np.zeros(rows, bool)
        for name in names:
            is_end |= _flags(whole, name, rows)
        for name, later in final:
            is_end |= _jumps(whole, name, later, rows)
    starts = np.unique(np.concatenate([[0], np.flatnonzero(is_end) + 1, [rows]]))
    return starts, is_end[starts[1:] - 1]


def _starts_of_numbers(whole: Container, name: str) -> tuple[Array, Array]:
    """The starts of episodes from their ends; rows after the last one are an episode without an end."""
    leaf = whole.leaves.get(name)
    if leaf is None or leaf.dtype.kind not in "iu" or len(leaf.shape) != 1:
        kind = "there is no" if leaf is None else f"{leaf.dtype}{list(leaf.shape)} is in"
        raise OSError(f"{kind} {name}, expected a whole number for each episode")
    ends = whole.read(name).astype(np.int64)
    wrong = np.flatnonzero(np.diff(ends, prepend=0) < 0)
    if len(wrong):
        i = int(wrong[0])
        before = int(ends[i - 1]) if i else 0
        raise OSError(f"{name} is not ascending: episode {i:,} ends at {ends[i]:,}, after {before:,}")
    last = int(ends[-1]) if len(ends) else 0
    data = name.replace("meta/", "data/").partition("/")[0]
    rows = max((other.shape[0] for key, other in whole.leaves.items() if key.startswith(f"{data}/")), default=0)
    more = [rows] if rows > last else []
    return np.array([0, *ends, *more]), np.arange(len(ends) + len(more)) < len(ends)


def _flags(whole: Container, name: str, rows: int) -> Array:
    """Whether each row of an array is other than 0. Raises OSError for other rows or values."""
    leaf = whole.leaves[name]
    if leaf.shape[:1] != (rows,) or leaf.dtype.kind not in "biuf" or math.prod(leaf.shape[1:]) != 1:
        raise OSError(f"{name} has the shape {list(leaf.shape)} ({leaf.dtype}), expected a flag for {rows} rows")
    try:
        return read_flags(whole, name)
    except ValueError as error:
        raise OSError(str(error)) from None


def _jumps(whole: Container, name: str, later: str, rows: int) -> Array:
    """bool [rows]: whether the next observation differs from the next row's observation, as where a flag is missing."""
    jumps = np.zeros(rows, bool)
    leaves = whole.leaves
    if not {name, later} <= leaves.keys() or leaves[name].shape != leaves[later].shape or leaves[name].shape[0] != rows:
        return jumps
    for start in range(0, rows - 1, _ROWS):
        stop = min(start + _ROWS, rows - 1)
        after, following = whole.read(later, slice(start, stop)), whole.read(name, slice(start + 1, stop + 1))
        jumps[start:stop] = (after != following).reshape(stop - start, -1).any(axis=1)
    return jumps if jumps.mean() <= _NOISE else np.zeros(rows, bool)
