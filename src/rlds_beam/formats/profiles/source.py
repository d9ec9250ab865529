"""HDF5 and `.npz` files as a source: a profile says which array is which field, and where episodes are."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from rlds_beam import naming, storage
from rlds_beam.encoding.base import Damage
from rlds_beam.episodes.columns import find_changed
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.errors import MissingExtraError, UsageError
from rlds_beam.formats.arrays.array_episodes import MAX_BYTES, UNREADABLE, ArrayFormat, Arrays
from rlds_beam.formats.arrays.array_files import SourceOfFiles, make_shard, no_features
from rlds_beam.formats.format_options import ProfileOptions
from rlds_beam.formats.profiles.binding import fits, text_files
from rlds_beam.formats.profiles.catalog import find_profile, propose, shipped_profiles
from rlds_beam.formats.profiles.containers import (
    HDF5,
    NPZ,
    Container,
    FileRows,
    Hdf5Container,
    natural,
    open_container,
)
from rlds_beam.formats.profiles.episodes import Layout, ProfileDecoder, bind_layout, read_episode
from rlds_beam.formats.profiles.model import Profile
from rlds_beam.options import Options
from rlds_beam.reading.base import LastAction, Shard, Split
from rlds_beam.reading.directory_listing import first_file
from rlds_beam.reading.plan import parse_slice, selected_splits, slice_split
from rlds_beam.text import join_lines, shorten
from rlds_beam.typing import Array

_SPLITS = ("train", "val", "valid", "validation", "test")
_MAX_DEPTH = 8  # directories below the input
_MAX_TRIED = 20  # files tried for the first episode
_ROWS = 1 << 16  # flags and observations compared at once
_NOISE = 0.5  # if a larger fraction of next observations differ, they do not mark ends
_MAX_PIXELS = 16 * MAX_BYTES
"""Maximum bytes of an episode's frames that become PNGs, which are not held at once."""


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
        return len(self._starts(path)[1]) if self.profile.ends else 1

    def is_splittable(self, path: str) -> bool:
        if not self.profile.per_file:
            return True
        try:
            with open_container(path) as whole:
                return bool(self.profile.ends) and whole.seekable
        except OSError:
            return False

    def groups(self, path: str) -> list[str]:
        """The groups of a file's episodes; an empty name for an episode that is the file."""
        if self.profile.per_file:
            return [] if self.profile.ends else [""]
        return _cached_groups(path, storage.stamp(path), self.profile.episodes, self.split_masks)[0]

    def masks(self, path: str) -> Mapping[str, frozenset[str]]:
        """The filter keys of a file."""
        return _cached_groups(path, storage.stamp(path), self.profile.episodes, self.split_masks)[1]

    def file_name(self, path: str) -> str:
        """The name of a file, relative to the directory of the dataset."""
        within = self.root and path.startswith(self.root)
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
        name = self.file_name(path)
        with open_container(path) as whole:
            for i in range(start, stop):
                place = name
                try:
                    episode, listed = self._episode(whole, i)
                    place = f"{name}: {episode.group}".rstrip(": ")
                    _check_size(episode, self.layout)
                    arrays = read_episode(self.layout, episode, name, listed)
                except (*UNREADABLE, UsageError) as error:
                    yield Damage(i, i + 1, f"{place} cannot be read: {' '.join(str(error).split())}", b"")
                    continue
                yield arrays
                del arrays

    def _episode(self, whole: Container, i: int) -> tuple[Container, Mapping[str, bool]]:
        """An episode of a file, and whether each filter key lists it."""
        if not self.profile.per_file:
            group = self.groups(whole.path)[i]
            listed = {mask: group.rpartition("/")[2] in names for mask, names in self.masks(whole.path).items()}
            return whole.within(group), listed
        if not self.profile.ends:
            return whole, {}
        starts, ended = self._starts(whole.path)
        return FileRows(whole, int(starts[i]), int(starts[i + 1]), int(starts[-1]), bool(ended[i])), {}

    def _starts(self, path: str) -> tuple[Array, Array]:
        finals = tuple(self.profile.final.items())
        return _cached_starts(path, storage.stamp(path), self.profile.ends, finals)


@functools.lru_cache(maxsize=64)
def _cached_groups(
    path: str, stamp: Any, pattern: str, split_masks: tuple[str, ...]
) -> tuple[list[str], Mapping[str, frozenset[str]]]:
    del stamp
    with open_container(path) as whole:
        groups, masks = whole.groups(pattern), whole.masks()
    order = {group: i for i, split in enumerate(split_masks) for group in masks.get(split, ())}
    return sorted(groups, key=lambda group: order.get(group.rpartition("/")[2], len(split_masks))), masks


@functools.lru_cache(maxsize=64)
def _cached_starts(
    path: str, stamp: Any, ends: tuple[str, ...], finals: tuple[tuple[str, str], ...]
) -> tuple[Array, Array]:
    """The first row of each episode, then the number of rows; and whether each episode has an end."""
    del stamp
    with open_container(path) as whole:
        return find_starts(whole, ends, dict(finals))


def find_starts(whole: Container, ends: tuple[str, ...], final: Mapping[str, str]) -> tuple[Array, Array]:
    """The first steps of the episodes of a flat file. Raises OSError if the arrays of ends are missing or wrong."""
    names = [name for name in ends if name in whole.leaves]
    if not names:
        raise OSError(f"it has no {ends[0]}, which marks the ends of episodes")
    rows = (*whole.leaves[names[0]].shape, 0)[0]
    is_end = np.zeros(rows, bool)
    for name in names:
        is_end |= _flags(whole, name, rows)
    for name, later in final.items():
        is_end |= _jumps(whole, name, later, rows)
    starts = np.unique(np.concatenate([[0], np.flatnonzero(is_end) + 1, [rows]]))
    return starts, is_end[starts[1:] - 1]


def _flags(whole: Container, name: str, rows: int) -> Array:
    """Whether each row of an array is other than 0. Raises OSError for other rows or values."""
    leaf = whole.leaves[name]
    if leaf.shape[:1] != (rows,) or leaf.dtype.kind not in "biuf" or int(np.prod(leaf.shape[1:])) != 1:
        raise OSError(f"{name} has the shape {list(leaf.shape)} ({leaf.dtype}), expected a flag for {rows} rows")
    values: Array = whole.read(name).reshape(-1)
    wrong = np.flatnonzero(find_changed(values, values.astype(bool)))
    if len(wrong):
        raise OSError(f"{name} is {values[wrong[0]]} at row {wrong[0]}, expected 0 or 1")
    return values.astype(bool)


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


def _check_size(episode: Container, layout: Layout) -> None:
    arrays = pixels = 0
    for binding in layout.bound:
        if (leaf := episode.leaves.get(binding.name)) is not None:
            size = math.prod(leaf.shape) * leaf.dtype.itemsize
            arrays, pixels = (arrays, pixels + size) if binding.has_pixels(leaf) else (arrays + size, pixels)
    for size, most in ((arrays, MAX_BYTES), (pixels, _MAX_PIXELS)):
        if size > most:
            raise OSError(f"its arrays have {size:,} bytes, more than {most:,}")


@dataclasses.dataclass(frozen=True)
class ProfileSource(SourceOfFiles):
    """Files with a profile. Attributes: see `Source`."""

    files: ProfileFormat

    reads_several = True
    told_by_files = True
    options_class: ClassVar[type[Options]] = ProfileOptions
    format_name: ClassVar[str]
    endings: ClassVar[tuple[str, ...]]

    @classmethod
    def open(
        cls,
        input: str | Sequence[str],
        *,
        split: str | None = None,
        features: str | None = None,
        options: ProfileOptions | None = None,
    ) -> Self:
        no_features(cls.format_name, features)
        options = options or ProfileOptions()
        where = input if isinstance(input, str) else ",".join(input)
        sizes = _find_files(input, cls.endings)
        if not sizes:
            raise UsageError(f"{where} has no {' or '.join(cls.endings)} file, which --from={cls.format_name} reads")
        profile = find_profile(options.profile) if options.profile else _recognize(list(sizes), where)
        named = [path for path in sizes if fnmatch.fnmatch(storage.split(path)[1], profile.files or "*")]
        if not named:
            raise UsageError(f"{where}: no file is named {profile.files}, which profile {profile.name} reads")
        layout, split_masks = _first_layout(profile, named, options.raw_images)
        root = input if isinstance(input, str) and storage.isdir(input) else ""
        files = ProfileFormat(layout, root, split_masks, cls.format_name)
        name = storage.split(where.rstrip("/"))[1] if root else storage.split(named[0])[1].rpartition(".")[0]
        name = naming.to_name((layout.dataset or name).replace("/", "-"))
        splits = _find_splits(files, {path: sizes[path] for path in named}, split, name)
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


class Hdf5Source(ProfileSource):
    """HDF5 files with a profile."""

    format_name, endings = "hdf5", HDF5

    @classmethod
    def reads_together(cls, why: str, other: str) -> bool:
        return why.partition(":")[0] == other.partition(":")[0]  # files of the same profile, also in subdirectories

    @classmethod
    def recognize(cls, path: str) -> str | None:
        file = first_file(path, cls.endings)
        try:
            found = _find_profiles(file) if file and storage.exists(file) else {}
        except MissingExtraError:
            raise
        except OSError:
            if file == path:
                raise
            return None
        except Exception:  # whatever the file holds; `open` says what is wrong
            return None
        return "; ".join(f"profile {name}: {why}" for name, why in found.items()) or None


class NpzSource(ProfileSource):
    """NumPy's `.npz` files with a profile."""

    format_name, endings = "npz", (NPZ,)

    @classmethod
    def recognize(cls, path: str) -> str | None:
        try:
            file = first_file(path, cls.endings)
            if not file:
                return None
            with open_container(file) as whole:
                names = ", ".join([*whole.leaves][:4])
            found = _find_profiles(file)
        except Exception:  # whatever the path holds; `open` says what is wrong
            return None
        return f".npz with {names}" + "".join(f" (profile {name})" for name in found)


def _find_files(input: str | Sequence[str], endings: tuple[str, ...]) -> dict[str, int]:
    """The files of an input and their sizes, sorted by the numbers in their names."""
    sizes: dict[str, int] = {}
    if not isinstance(input, str) or not storage.isdir(input):
        for place in storage.paths_in(input):
            found = storage.list_sizes(place)
            if not found:
                raise UsageError(f"{place}: no such file or directory")
            sizes |= found
    elif storage.scheme(input) is None:
        sizes = {path: storage.size(path) for path in _files_below(input, endings)}
    else:
        sizes = {path: size for path, size in storage.list_sizes("**", input).items() if path.endswith(endings)}
    return {path: sizes[path] for path in sorted(sizes, key=natural)}


def _files_below(path: str, endings: tuple[str, ...]) -> Iterator[str]:
    """The files below a local directory."""
    for directory, below, names in os.walk(path):
        if directory[len(path) :].count(os.sep) >= _MAX_DEPTH:
            below.clear()
        yield from (os.path.join(directory, name) for name in names if name.endswith(endings) and name[0] != ".")


def _find_profiles(path: str) -> dict[str, str]:
    """The shipped profiles that fit a file, each with what it recognizes. Raises OSError for an unreadable file."""
    found = {}
    with open_container(path) as whole:
        for name, profile in shipped_profiles().items():
            episode = _first_episode(whole, profile)
            is_named = fnmatch.fnmatch(storage.split(path)[1], profile.files or "*")
            if is_named and episode is not None and (why := fits(profile, episode)) is not None:
                found[name] = why
    return found


def _first_episode(whole: Container, profile: Profile) -> Container | None:
    if profile.per_file:
        return whole
    try:
        groups = whole.groups(profile.episodes)
        return whole.within(groups[0]) if groups else None
    except (KeyError, OSError):
        return None


def _recognize(paths: Sequence[str], where: str) -> Profile:
    """The shipped profile that fits the files. Raises UsageError if none does, with a proposal."""
    error = ""
    for path in paths[:_MAX_TRIED]:
        try:
            found = _find_profiles(path)
        except OSError as unreadable:
            error = error or str(unreadable)
            continue
        if len(found) > 1:
            fitting = "; ".join(f"{name} ({why})" for name, why in found.items())
            raise UsageError(f"{where}: several profiles fit: {fitting}. Choose one with --profile=NAME")
        if found:
            return shipped_profiles()[next(iter(found))]
        raise UsageError(
            f"{path}: no shipped profile fits ({', '.join(shipped_profiles())}). Here is a proposal: edit it, save it "
            "as profile.yaml, and pass --profile=profile.yaml",
            "",
            *proposal(path),
        )
    raise UsageError(f"{where} cannot be read: {error}")


def proposal(path: str) -> list[str]:
    """A profile for an unknown file, as YAML. Raises OSError for an unreadable file."""
    with open_container(path) as whole:
        pattern = whole.numbered_groups() if isinstance(whole, Hdf5Container) else ""
        episode = whole.within(whole.groups(pattern)[0]) if pattern else whole
        return propose(naming.to_name(storage.split(path)[1].rpartition(".")[0]), pattern or "file", episode.leaves)


def _first_layout(profile: Profile, paths: Sequence[str], raw_images: str) -> tuple[Layout, tuple[str, ...]]:
    """The layout of the first episode that can be read, and the filter keys that are splits."""
    error = ""
    for path in paths[:_MAX_TRIED]:
        try:
            with open_container(path) as whole:
                episode = _first_episode(whole, profile)
                if episode is None:
                    error = error or f"{path} has no {profile.episodes}, where profile {profile.name} finds episodes"
                    continue
                if profile.ends and profile.per_file:
                    find_starts(whole, profile.ends, {})
                masks = whole.masks() if profile.splits == "mask" else {}
                names = [group.rpartition("/")[2] for group in whole.groups(profile.episodes)] if masks else []
                layout = bind_layout(profile, episode, raw_images, tuple(sorted(masks)))
        except UNREADABLE as unreadable:
            if isinstance(unreadable, UsageError):
                raise
            error = error or f"{path} cannot be read: {shorten(unreadable)}"
            continue
        splits = tuple(name for name in _SPLITS if masks.get(name))
        listed = [mask for split in splits for mask in masks[split] if mask in names]
        whole_file = len(paths) == 1 and len(splits) > 1 and sorted(listed) == sorted(names)
        return layout, splits if whole_file else ()
    raise UsageError(error)


def _find_splits(files: ProfileFormat, sizes: Mapping[str, int], split: str | None, dataset: str) -> tuple[Split, ...]:
    if files.split_masks:
        [(path, size)] = sizes.items()
        return _splits_by_mask(files, path, size, split, dataset)
    found: dict[str, list[str]] = {}
    for path in sizes:
        found.setdefault(_split_of(path, files.profile.splits), []).append(path)
    splits = []
    for name, start, stop in selected_splits(split, found, dataset):
        shards = tuple(make_shard(files, i, path, sizes[path]) for i, path in enumerate(found[name]))
        splits.append(slice_split(Split(name, shards), start, stop))
    return tuple(splits)


def _split_of(path: str, by: str) -> str:
    """The split of a file, by its folder (`val/`) or its name (`maze-val.npz`)."""
    directory, name = storage.split(path)
    named = [name.rpartition(".")[0].rpartition("-")[2]] if by == "names" else []
    folders = directory.split("/")[::-1] if by == "folders" else []
    return next((part for part in (*named, *folders) if part in _SPLITS), "train")


def _splits_by_mask(files: ProfileFormat, path: str, size: int, split: str | None, dataset: str) -> tuple[Split, ...]:
    """The filter keys of a file as splits: its episodes are in their order."""
    shard, splits, first = make_shard(files, 0, path, size), {}, 0
    groups, masks = files.groups(path), files.masks(path)
    for name in files.split_masks:
        total = sum(group.rpartition("/")[2] in masks[name] for group in groups)
        splits[name] = first, first + total
        first += total
    chosen = []
    for name, start, stop in selected_splits(split, splits, dataset):
        low, high = splits[name]
        begin, end = parse_slice(name, high - low, start, stop)
        chosen.append(Split(name, (shard,), low + begin, low + end))
    return tuple(chosen)
