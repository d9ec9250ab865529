"""HDF5, `.npz`, and zarr files as a source: a profile says which array is which field, and where episodes are."""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import functools
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import msgspec
import numpy as np

from rlds_beam import naming, storage
from rlds_beam.encoding.base import Damage
from rlds_beam.encoding.metadata import yaml_text
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.errors import MissingExtraError, UsageError
from rlds_beam.formats.arrays.array_episodes import (
    UNREADABLE,
    ArrayFormat,
    Arrays,
    SourceOfFiles,
    make_shard,
    no_features,
)
from rlds_beam.formats.format_options import ProfileOptions
from rlds_beam.formats.profiles.containers import (
    HDF5,
    NPZ,
    Container,
    FileRows,
    Hdf5Container,
    Leaf,
    matches,
    natural,
    open_hdf5,
    open_npz,
)
from rlds_beam.formats.profiles.episodes import Layout, ProfileDecoder, bind_layout, read_episode, read_flags
from rlds_beam.formats.profiles.facts import text_files
from rlds_beam.formats.profiles.model import Profile, find_profile, shipped_profiles
from rlds_beam.formats.profiles.zarr_store import ENDS, METADATA, ZarrContainer, open_store, shard_path
from rlds_beam.options import Options
from rlds_beam.output.directory import is_output
from rlds_beam.output.manifest import read_manifest
from rlds_beam.reading.base import LastAction, Shard, Split
from rlds_beam.reading.directory_listing import first_file, names_below
from rlds_beam.reading.plan import parse_slice, selected_splits, slice_split
from rlds_beam.text import printable, shorten
from rlds_beam.typing import Array

ZARR = (".zarr", ".zarr.zip")
_SPLITS = ("train", "val", "valid", "validation", "test")
_MAX_TRIED = 20  # files tried for the first episode
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


@dataclasses.dataclass(frozen=True)
class ProfileSource(SourceOfFiles):
    """Files with a profile. Attributes: see `Source`."""

    files: ProfileFormat

    reads_several = True
    options_class: ClassVar[type[Options]] = ProfileOptions
    format_name: ClassVar[str]
    endings: ClassVar[tuple[str, ...]]
    profile: ClassVar[str] = ""

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
        sizes, split_names, name = cls.find(input)
        if not sizes:
            raise UsageError(f"{where} has no {' or '.join(cls.endings)} file, which --from={cls.format_name} reads")
        named_profile = options.profile or cls.profile
        profile = find_profile(named_profile) if named_profile else _recognize(list(sizes), where)
        named = {path: size for path, size in sizes.items() if _is_named(path, profile)}
        if not named:
            raise UsageError(f"{where}: no file is named {profile.files}, which profile {profile.name} reads")
        layout, split_masks = _first_layout(profile, list(named), options.raw_images)
        root = input if isinstance(input, str) and storage.isdir(input) else ""
        files = ProfileFormat(layout, root, split_masks, cls.format_name)
        name = naming.to_name((layout.dataset or name).replace("/", "-"))
        splits = _find_splits(files, named, split_names, split, name)
        decoder = ProfileDecoder(layout.schema, layout)
        return cls(f"{name}/1.0.0", layout.schema, decoder, splits, files, (), layout.fps, layout.robot)

    @classmethod
    def find(cls, input: str | Sequence[str]) -> tuple[dict[str, int], Mapping[str, str], str]:
        """The files of an input and their sizes, their splits if they are known, and a name for the dataset."""
        sizes = _find_files(input, cls.endings)
        is_directory = isinstance(input, str) and storage.isdir(input)
        name = storage.split(str(input).rstrip("/") if is_directory else next(iter(sizes), ""))[1]
        return sizes, {}, name if is_directory else name.rpartition(".")[0]

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
        return "\n".join([super().describe(), *self.notes])

    @property
    def notes(self) -> tuple[str, ...]:  # type: ignore[override]
        return (f"profile {self.layout.profile.name}", *self.layout.notes)

    def plan(self) -> dict[str, Any]:
        return {"profile": msgspec.to_builtins(self.layout.profile)}

    def episode_names(self) -> Iterator[tuple[EpisodeKey, tuple[str, ...]]]:
        return self.files.names(self.splits, self.dataset)

    def companions(self, shard: Shard) -> list[str]:
        return text_files(self.layout.profile, shard.path)


class Hdf5Source(ProfileSource):
    """HDF5 files with a profile."""

    format_name, endings = "hdf5", HDF5

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

    format_name, endings = "npz", NPZ

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


class ZarrSource(ProfileSource):
    """Zarr stores with a profile: replay buffers of diffusion policy and UMI, and what `--to=zarr` wrote."""

    format_name, endings, profile = "zarr", ZARR, "replay_buffer"

    @classmethod
    def find(cls, input: str | Sequence[str]) -> tuple[dict[str, int], Mapping[str, str], str]:
        paths = storage.paths_in(input)
        splits: dict[str, str] = {}
        if len(paths) == 1 and storage.isdir(paths[0]) and cls.recognize(paths[0].rstrip("/")) is None:
            shards = read_manifest(paths[0])["shards"] if is_output(paths[0]) else []
            splits = {storage.join(paths[0], shard["file"]): shard["split"] for shard in shards}
            names = [] if splits else [name for name in storage.listdir(paths[0]) if name.endswith(cls.endings)]
            roots = [*splits, *(storage.join(paths[0], name) for name in names)]
            name = read_manifest(paths[0])["name"] if splits else storage.split(paths[0].rstrip("/"))[1]
        else:
            roots = [root for path in paths for root in ([path] if storage.isdir(path) else storage.glob(path))]
            if not roots:
                raise UsageError(f"{','.join(paths)}: no such file or directory")
            name = storage.split(roots[0].rstrip("/"))[1].removesuffix(".zip").removesuffix(".zarr")
        sizes = {}
        for root in roots:
            path = shard_path(root.rstrip("/"))
            if path.endswith(".zip"):
                sizes[path] = storage.size(path)
            else:
                with open_store(path) as store:
                    sizes[path] = sum(store.sizes.values())
        return sizes, splits, name

    @classmethod
    def recognize(cls, path: str) -> str | None:
        if path.endswith(".zip"):
            return "a .zarr.zip file" if path.endswith(cls.endings) and storage.exists(path) else None
        return ENDS if {*METADATA} & {*names_below(path, *ENDS.split("/"))} else None

    def companions(self, shard: Shard) -> list[str]:
        if shard.path.endswith(".zip"):
            return []
        with open_store(shard.path) as store:
            paths = [storage.join(store.root, *key.split("/")) for key in store.sizes]
        return [path for path in paths if path != shard.path]


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
        for directory, _, names in os.walk(input):
            paths = [os.path.join(directory, name) for name in names if name.endswith(endings) and name[0] != "."]
            sizes |= {path: storage.size(path) for path in paths}
    else:
        sizes = {path: size for path, size in storage.list_sizes("**", input).items() if path.endswith(endings)}
    return {path: sizes[path] for path in sorted(sizes, key=natural)}


def _is_named(path: str, profile: Profile) -> bool:
    return fnmatch.fnmatch(storage.split(path)[1], profile.files or "*")


def _find_profiles(path: str) -> dict[str, str]:
    """The shipped profiles that fit a file, each with what it recognizes. Raises OSError for an unreadable file."""
    found = {}
    with open_container(path) as whole:
        for name, profile in shipped_profiles().items():
            episode = _first_episode(whole, profile)
            if _is_named(path, profile) and episode is not None and (why := _fits(profile, episode)):
                found[name] = why
    return found


def _fits(profile: Profile, container: Container) -> str:
    """The names by which a profile recognizes an episode; empty if it does not."""
    told = profile.recognize
    found = [name for name in told.any if container.has(name)][:1]
    fits = all(map(container.has, told.has)) and not any(map(container.has, told.lacks))
    return ", ".join((*told.has, *found)) if fits and (found or not told.any) else ""


def _first_episode(whole: Container, profile: Profile) -> Container | None:
    """The first episode of a file; the file, if it holds several end to end."""
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
            *propose(path),
        )
    raise UsageError(f"{where} cannot be read: {error}")


_ACTIONS = ("action", "actions", "act", "acts")
_REWARDS = ("reward", "rewards")
_FLAGS = ("timeouts", "truncated", "is_last")
_ENDS = ("dones", "done", "terminals", "terminal", "terminated", "is_terminal")
_NOTHING = ("step", "timestamp", "timestamps", "index")


def propose(path: str) -> list[str]:
    """The lines of a profile in YAML, for an unknown file. Raises OSError for an unreadable file."""
    with open_container(path) as whole:
        pattern = whole.numbered_groups() if isinstance(whole, Hdf5Container) else ""
        leaves = whole.within(whole.groups(pattern)[0]).leaves if pattern else whole.leaves
    last = {path: path.rpartition("/")[2].lower() for path in leaves}
    actions = [path for path, name in last.items() if name in _ACTIONS] or [
        path for path in leaves if "action" in path.lower() and leaves[path].shape
    ]
    rows = leaves[actions[0]].shape[:1] if actions else ()
    name = naming.to_name(storage.split(path)[1].rpartition(".")[0])
    lines = [f"name: {name}", f"episodes: {yaml_text(pattern or 'file')}", "fields:"]
    for path in actions:
        name = yaml_text(f"action{'' if len(actions) == 1 else '/' + path.replace('/', '_')}")
        lines.append(f"  {name}: {yaml_text(path)}")
    if not actions:
        lines.append("  action: NAME_OF_A_DATASET")
    other = []
    for path, leaf in leaves.items():
        if path in actions or last[path] in (*_REWARDS, *_ENDS, *_FLAGS, *_NOTHING):
            continue
        if rows and leaf.shape[:1] == rows and not leaf.trouble:
            short = path
            for prefix in ("observations/", "observation/", "obs/"):
                short = short.removeprefix(prefix)
            lines.append(f"  {yaml_text(f'observation/{short}')}: {yaml_text(path)}  # {leaf.dtype}{list(leaf.shape)}")
        else:
            other.append(f"# not read: {printable(path)} {leaf.dtype}{list(leaf.shape)}")
    for key, names in (("reward", _REWARDS), ("terminal", _ENDS)):
        lines += [f"{key}: {yaml_text(path)}" for path in leaves if last[path] in names][:1]
    ends = [yaml_text(path) for path in leaves if last[path] in (*_ENDS, *_FLAGS)]
    if ends and not pattern:
        lines.append(f"# ends: [{', '.join(ends)}]  # if the file holds several episodes, end to end")
    return lines + other


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
                starts = find_starts(path, profile) if has_several(profile) else None
                if starts is not None and profile.episode_ends:
                    episode = episode_rows(whole, profile, 0, *starts)
                masks = whole.masks() if profile.splits == "mask" else {}
                names = [group.rpartition("/")[2] for group in whole.groups(profile.episodes)] if masks else []
                layout = bind_layout(profile, episode, raw_images, tuple(sorted(masks)))
                layout = dataclasses.replace(layout, notes=(*layout.notes, *whole.notes()))
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


def _find_splits(
    files: ProfileFormat, sizes: Mapping[str, int], names: Mapping[str, str], split: str | None, dataset: str
) -> tuple[Split, ...]:
    if files.split_masks:
        [(path, size)] = sizes.items()
        return _splits_by_mask(files, path, size, split, dataset)
    found: dict[str, list[str]] = {}
    for path in sizes:
        found.setdefault(names.get(path) or _split_of(path, files.profile.splits), []).append(path)
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
