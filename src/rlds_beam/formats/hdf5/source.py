"""Robots' HDF5 files as a source: `--from=hdf5`. A profile says which dataset is which field."""

from __future__ import annotations

import dataclasses
import fnmatch
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from rlds_beam import naming, storage
from rlds_beam.errors import UsageError
from rlds_beam.formats.arrays.array_files import make_shard, no_features
from rlds_beam.formats.arrays.hdf5_reader import UNREADABLE, Hdf5Group, is_dataset, open_hdf5
from rlds_beam.formats.format_options import Hdf5Options
from rlds_beam.formats.hdf5.files import Hdf5Episode, Hdf5Format, find_groups, natural, read_masks
from rlds_beam.formats.profiles.binding import fits
from rlds_beam.formats.profiles.catalog import find_profile, propose, shipped_profiles
from rlds_beam.formats.profiles.episodes import Layout, bind_layout, choose_profile
from rlds_beam.formats.profiles.files import ProfileSource
from rlds_beam.formats.profiles.model import Profile
from rlds_beam.options import Options
from rlds_beam.reading.base import Split
from rlds_beam.reading.directory_listing import first_file
from rlds_beam.reading.plan import parse_slice, selected_splits, slice_split

_ENDINGS = (".hdf5", ".h5")
_FOLDERS = ("train", "val", "valid", "validation", "test")
_DEPTH = 8  # directories below the input
_TRIED = 20  # files tried for the first episode


@dataclasses.dataclass(frozen=True)
class Hdf5Source(ProfileSource):
    """HDF5 files with a profile. Attributes: see `Source`."""

    reads_several = True
    options_class: ClassVar[type[Options]] = Hdf5Options

    @classmethod
    def reads_together(cls, why: str, other: str) -> bool:
        return why.partition(":")[0] == other.partition(":")[0]  # files of the same profile, also in subdirectories

    @classmethod
    def recognize(cls, path: str) -> str | None:
        try:
            file = first_file(path, _ENDINGS)
            if file is None:
                return None
            found = _fitting(file)
        except Exception:  # whatever the path holds; `open` says what is wrong
            return None
        return "; ".join(f"profile {name}: {why}" for name, why in found.items()) or None

    @classmethod
    def open(
        cls,
        input: str | Sequence[str],
        *,
        split: str | None = None,
        features: str | None = None,
        options: Hdf5Options | None = None,
    ) -> Hdf5Source:
        no_features("hdf5", features)
        options = options or Hdf5Options()
        where = input if isinstance(input, str) else ",".join(input)
        sizes = find_hdf5(input, where)
        paths = list(sizes)
        profile = find_profile(options.profile) if options.profile else _recognize(paths, where)
        named = [path for path in paths if fnmatch.fnmatch(storage.split(path)[1], profile.files or "*")]
        if not named:
            raise UsageError(f"{where}: no file is named {profile.files}, which profile {profile.name} reads")
        layout, split_masks = _first_layout(profile, named, options.raw_images)
        root = input if isinstance(input, str) and storage.isdir(input) else ""
        files = Hdf5Format(layout, root, split_masks)
        name = storage.split(where.rstrip("/"))[1] if root else storage.split(named[0])[1].rpartition(".")[0]
        name = naming.to_name(name)
        return cls.of(name, files, _splits(files, {path: sizes[path] for path in named}, split, name))


def find_hdf5(input: str | Sequence[str], where: str) -> dict[str, int]:
    """The HDF5 files of an input and their sizes, sorted by the numbers in their names.

    Raises:
      UsageError: there are none.
    """
    sizes: dict[str, int] = {}
    if isinstance(input, str) and storage.isdir(input):
        sizes = _below(input)
    else:
        for place in storage.paths_in(input):
            sizes |= storage.list_sizes(place)
    if not sizes:
        raise UsageError(f"{where} has no {' or '.join(_ENDINGS)} file, which --from=hdf5 reads")
    return {path: sizes[path] for path in sorted(sizes, key=natural)}


def _below(directory: str) -> dict[str, int]:
    """The HDF5 files below a directory and their sizes."""
    if storage.scheme(directory) is None:
        return {path: storage.size(path) for path in _walk(directory)}
    found = storage.list_sizes("**", directory)
    return {path: size for path, size in found.items() if path.endswith(_ENDINGS)}


def _walk(path: str) -> Iterator[str]:
    """The HDF5 files below a local directory."""
    for directory, below, names in os.walk(path):
        below.sort(key=natural)
        if directory[len(path) :].count(os.sep) >= _DEPTH:
            below.clear()
        for name in sorted(names, key=natural):
            if name.endswith(_ENDINGS) and not name.startswith("."):
                yield os.path.join(directory, name)


def _fitting(path: str) -> dict[str, str]:
    """The shipped profiles that fit a file, each with what it recognizes. Raises OSError for an unreadable file."""
    found = {}
    with open_hdf5(path) as root:
        for name, profile in shipped_profiles().items():
            episode = _first_episode(path, root, profile)
            if episode is not None and (why := fits(profile, episode)) is not None:
                found[name] = why
    return found


def _first_episode(path: str, root: Hdf5Group, profile: Profile) -> Hdf5Episode | None:
    if profile.per_file:
        return Hdf5Episode(path, root)
    try:
        groups = find_groups(root, profile.episodes)
        return Hdf5Episode(path, root, groups[0]) if groups else None
    except (KeyError, OSError):
        return None


def _recognize(paths: Sequence[str], where: str) -> Profile:
    """The shipped profile that fits the files. Raises UsageError if none does, with a proposal."""
    error = ""
    for path in paths[:_TRIED]:
        try:
            found = _fitting(path)
        except OSError as unreadable:
            error = error or str(unreadable)
            continue
        if found:
            return shipped_profiles()[choose_profile(found, where)]
        raise UsageError(
            f"{path}: no shipped profile fits ({', '.join(shipped_profiles())}). Here is a proposal: edit it, save it "
            "as profile.yaml, and pass --profile=profile.yaml",
            "",
            *proposal(path),
        )
    raise UsageError(f"{where} cannot be read: {error}")


def proposal(path: str) -> list[str]:
    """A profile for an unknown file, as YAML. Raises OSError for an unreadable file."""
    with open_hdf5(path) as root:
        pattern = _episode_groups(root)
        episode = Hdf5Episode(path, root, find_groups(root, pattern)[0] if pattern else "")
        return propose(naming.to_name(storage.split(path)[1].rpartition(".")[0]), pattern or "file", episode.leaves)


def _episode_groups(root: Hdf5Group, parent: str = "") -> str:
    """The pattern of numbered groups, at the root or one level below; empty if there are none."""
    names = list(root[parent] if parent else root)
    stems = {name.rstrip("0123456789") for name in names}
    numbered = [name for name in names if name[-1:].isdecimal() and not is_dataset(root[f"{parent}/{name}"])]
    if numbered and len(stems) == 1:
        return f"{parent}/{stems.pop()}*".strip("/")
    if parent:
        return ""
    below = (_episode_groups(root, name) for name in names if not is_dataset(root[name]))
    return next(filter(None, below), "")


def _first_layout(profile: Profile, paths: Sequence[str], raw_images: str) -> tuple[Layout, tuple[str, ...]]:
    """The layout of the first episode that can be read, and the filter keys that are splits."""
    error = ""
    for path in paths[:_TRIED]:
        try:
            with open_hdf5(path) as root:
                episode = _first_episode(path, root, profile)
                if episode is None:
                    error = error or f"{path} has no {profile.episodes}, where profile {profile.name} finds episodes"
                    continue
                masks = read_masks(root) if profile.splits == "mask" else {}
                names = [group.rpartition("/")[2] for group in find_groups(root, profile.episodes)] if masks else []
                layout = bind_layout(profile, episode, raw_images, tuple(sorted(masks)))
        except UNREADABLE as unreadable:
            error = error or f"{path} cannot be read: {unreadable}"
            continue
        splits = tuple(name for name in _FOLDERS if masks.get(name))
        listed = [mask for split in splits for mask in masks[split] if mask in names]
        whole = len(paths) == 1 and len(splits) > 1 and sorted(listed) == sorted(names)
        return layout, splits if whole else ()
    raise UsageError(error)


def _splits(files: Hdf5Format, sizes: Mapping[str, int], split: str | None, dataset: str) -> tuple[Split, ...]:
    if files.split_masks:
        [(path, size)] = sizes.items()
        return _mask_splits(files, path, size, split, dataset)
    found: dict[str, list[str]] = {}
    for path in sizes:
        folders = storage.split(path)[0].split("/") if files.layout.profile.splits == "folders" else []
        found.setdefault(next((folder for folder in reversed(folders) if folder in _FOLDERS), "train"), []).append(path)
    splits = []
    for name, start, stop in selected_splits(split, found, dataset):
        shards = tuple(make_shard(files, i, path, sizes[path]) for i, path in enumerate(found[name]))
        splits.append(slice_split(Split(name, shards), start, stop))
    return tuple(splits)


def _mask_splits(files: Hdf5Format, path: str, size: int, split: str | None, dataset: str) -> tuple[Split, ...]:
    """The filter keys of a file as splits: its episodes are in their order."""
    shard, splits, first = make_shard(files, 0, path, size), {}, 0
    for name in files.split_masks:
        total = sum(group.rpartition("/")[2] in files._groups(path)[1][name] for group in files._groups(path)[0])
        splits[name] = first, first + total
        first += total
    chosen = []
    for name, start, stop in selected_splits(split, splits, dataset):
        low, high = splits[name]
        begin, end = parse_slice(name, high - low, start, stop)
        chosen.append(Split(name, (shard,), low + begin, low + end))
    return tuple(chosen)
