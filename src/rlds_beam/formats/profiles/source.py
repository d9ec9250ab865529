"""HDF5, `.npz`, and zarr files as a source: a profile says which array is which field, and where episodes are."""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import msgspec
import numpy as np

from rlds_beam import naming, storage
from rlds_beam.encoding.metadata import yaml_text
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.errors import MissingExtraError, UsageError
from rlds_beam.formats.arrays.array_episodes import (
    UNREADABLE,
    SourceOfFiles,
    make_shard,
    no_features,
)
from rlds_beam.formats.arrays.windows import window_edges
from rlds_beam.formats.directory_listing import first_file, names_below
from rlds_beam.formats.format_options import ProfileOptions
from rlds_beam.formats.profiles.binding import Layout, bind_layout, text_files
from rlds_beam.formats.profiles.containers import HDF5, NPZ, Container, natural
from rlds_beam.formats.profiles.episodes import (
    ProfileDecoder,
    ProfileFormat,
    index_episodes,
    open_container,
    read_times,
)
from rlds_beam.formats.profiles.model import Profile, find_profile, shipped_profiles
from rlds_beam.formats.profiles.zarr_store import ENDS, METADATA, open_store, shard_path
from rlds_beam.formats.splits import selected_splits, slice_split
from rlds_beam.options import Options
from rlds_beam.output.commits import read_manifest
from rlds_beam.output.directory import is_output
from rlds_beam.reading.base import Shard, Split
from rlds_beam.text import printable, shorten

ZARR = (".zarr", ".zarr.zip")
_SPLITS = ("train", "val", "valid", "validation", "test")
_MAX_TRIED = 20  # files tried for the first episode


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
        profile = find_profile(named_profile) if named_profile else None
        layout, split_masks = _bind_first(list(sizes), where, profile, options.raw_images)
        named = {path: size for path, size in sizes.items() if _is_named(path, layout.profile)}
        root = input if isinstance(input, str) and storage.isdir(input) else ""
        files = ProfileFormat(layout, root, split_masks, cls.format_name)
        name = naming.to_name((layout.dataset or name).replace("/", "-"))
        splits = _find_splits(files, named, split_names, split, name)
        decoder = ProfileDecoder(layout.schema, layout)
        return cls(f"{name}/1.0.0", layout.schema, decoder, splits, files, (), layout.meaning)

    @classmethod
    def find(cls, input: str | Sequence[str]) -> tuple[dict[str, int], Mapping[str, str], str]:
        """The files of an input and their sizes, their splits if they are known, and a name for the dataset."""
        sizes = _find_files(input, cls.endings)
        is_directory = isinstance(input, str) and storage.isdir(input)
        name = storage.split(str(input).rstrip("/") if is_directory else next(iter(sizes), ""))[1]
        return sizes, {}, name if is_directory else name.rpartition(".")[0]

    @classmethod
    def recognize(cls, path: str) -> str | None:
        file = first_file(path, cls.endings)
        if file is None or not storage.exists(file):
            return None
        try:
            with open_container(file) as whole:
                found = _find_profiles(whole)
        except MissingExtraError:
            raise
        except OSError:
            if file == path:
                raise
            return None
        except Exception:  # whatever the file holds; `open` says what is wrong
            return None
        return "; ".join(f"profile {name}: {why}" for name, why in found.items()) or None

    @property
    def layout(self) -> Layout:
        """The profile and the fields."""
        return self.files.layout

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


class NpzSource(ProfileSource):
    """NumPy's `.npz` files with a profile."""

    format_name, endings = "npz", NPZ


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
        for path in (shard_path(root.rstrip("/")) for root in roots):
            is_zip = path.endswith(".zip")
            sizes[path] = storage.size(path) if is_zip else sum(open_store(path).sizes.values())
        return sizes, splits, name

    @classmethod
    def recognize(cls, path: str) -> str | None:
        if path.endswith(".zip"):
            return "a .zarr.zip file" if path.endswith(cls.endings) and storage.exists(path) else None
        return ENDS if {*METADATA} & {*names_below(path, *ENDS.split("/"))} else None

    def companions(self, shard: Shard) -> list[str]:
        if shard.path.endswith(".zip"):
            return []
        store = open_store(shard.path)
        paths = [storage.join(store.root, *key.split("/")) for key in store.sizes]
        return [path for path in paths if path != shard.path]


def _find_files(input: str | Sequence[str], endings: tuple[str, ...]) -> dict[str, int]:
    """The files of an input and their sizes, sorted by the numbers in their names."""
    sizes: dict[str, int] = {}
    if not isinstance(input, str) or not storage.isdir(input):
        for place in storage.paths_in(input):
            found = storage.glob(place)
            if not found:
                raise UsageError(f"{place}: no such file or directory")
            sizes |= found
    else:
        for name, size in storage.sizes(input, below=True).items():
            if name.endswith(endings) and storage.split(name)[1][0] != ".":
                sizes[storage.join(input, name)] = size
    return {path: sizes[path] for path in sorted(sizes, key=natural)}


def _is_named(path: str, profile: Profile) -> bool:
    return fnmatch.fnmatch(storage.split(path)[1], profile.files or "*")


def _find_profiles(whole: Container) -> dict[str, str]:
    """The shipped profiles that fit a file, each with what it recognizes."""
    found = {}
    for name, profile in shipped_profiles().items():
        episode = _first_episode(whole, profile) if _is_named(whole.path, profile) else None
        told = profile.recognize
        if episode is None or not all(map(episode.has, told.has)) or any(map(episode.has, told.lacks)):
            continue
        alternative = [name for name in told.any if episode.has(name)][:1]
        if alternative or not told.any:
            found[name] = ", ".join((*told.has, *alternative))
    return found


def _first_episode(whole: Container, profile: Profile) -> Container | None:
    """The first episode of a file; the file, if it holds several end to end."""
    if profile.per_file:
        return whole
    try:
        groups = whole.groups(profile.episodes)
        return whole.within(groups[0]) if groups else None
    except (KeyError, OSError):
        return None


def _bind_first(
    paths: Sequence[str], where: str, profile: Profile | None, raw_images: str
) -> tuple[Layout, tuple[str, ...]]:
    """The layout of the first episode that can be read, and the filter keys that are splits.

    Args:
      profile: the profile; None for the shipped one that fits.

    Raises:
      UsageError: no file can be read, or no profile fits, or several do.
    """
    named = [path for path in paths if profile is None or _is_named(path, profile)]
    error = f"{where}: no file is named {profile.files}, which profile {profile.name} reads" if profile else ""
    for path in named[:_MAX_TRIED]:
        try:
            with open_container(path) as whole:
                chosen = profile or _choose_profile(whole)
                episode = _first_episode(whole, chosen)
                if episode is None:
                    raise OSError(f"it has no {chosen.episodes}, where profile {chosen.name} finds episodes")
                index = index_episodes(path, chosen)
                if chosen.episode_ends:
                    episode = index.open(whole, chosen, 0)
                masks = index.masks if chosen.splits == "mask" else {}
                layout = bind_layout(chosen, episode, raw_images, tuple(sorted(masks)))
                layout = dataclasses.replace(layout, notes=(*layout.notes, *whole.notes()))
        except UNREADABLE as unreadable:
            if isinstance(unreadable, UsageError):
                raise
            error = error if path != named[0] else f"{path} cannot be read: {shorten(unreadable)}"
            continue
        splits = tuple(name for name in _SPLITS if masks.get(name))
        names = [group.rpartition("/")[2] for group in index.groups]
        listed = [name for split in splits for name in masks[split] if name in names]
        whole_file = len(named) == 1 and len(splits) > 1 and sorted(listed) == sorted(names)
        return layout, splits if whole_file else ()
    raise UsageError(error)


def _choose_profile(whole: Container) -> Profile:
    """The shipped profile that fits a file. Raises UsageError if several do, or with a proposal if none does."""
    found = _find_profiles(whole)
    if len(found) == 1:
        return shipped_profiles()[next(iter(found))]
    if found:
        fitting = "; ".join(f"{name} ({why})" for name, why in found.items())
        raise UsageError(f"{whole.path}: several profiles fit: {fitting}. Choose one with --profile=NAME")
    raise UsageError(
        f"{whole.path}: no shipped profile fits ({', '.join(shipped_profiles())}). Here is a proposal: edit it, save "
        "it as profile.yaml, and pass --profile=profile.yaml",
        "",
        *_propose(whole),
    )


_REWARDS = ("reward", "rewards")
_TERMINALS = ("dones", "done", "terminals", "terminal", "terminated", "is_terminal")


def _propose(whole: Container) -> list[str]:
    """The lines of a profile in YAML, for an unknown file: its arrays with as many rows as the action."""
    groups = {re.sub(r"^((?:[^/]+/)?[^/]*?)\d+/.*", r"\1*", name) for name in whole.leaves if _is_action(name)}
    pattern = "".join(groups) if len(groups) == 1 and "*" in "".join(groups) else ""
    episode = whole.within(whole.groups(pattern)[0]) if pattern else whole
    leaves = episode.leaves
    actions = [name for name, leaf in leaves.items() if _is_action(name) and leaf.shape]
    rows = leaves[actions[0]].shape[:1] if actions else ()
    lines = [f"name: {naming.to_name(storage.split(whole.path)[1].rpartition('.')[0])}"]
    lines += [f"episodes: {yaml_text(pattern or 'file')}", "fields:"]
    lines += [] if actions else ["  action: NAME_OF_A_DATASET"]
    terminals = [name for name in leaves if name.rpartition("/")[2].lower() in _TERMINALS]
    rewards = [name for name in leaves if name.rpartition("/")[2].lower() in _REWARDS]
    numbers = {name: leaf for name, leaf in leaves.items() if leaf.dtype.kind in "iuf"}
    times = {name: leaf for name, leaf in numbers.items() if re.search("time|stamp", name) and len(leaf.shape) == 1}
    clock = next((name for name, leaf in times.items() if leaf.shape == rows > (1,)), "")
    unit, windows = _guess_unit(episode, clock) if clock else "s", 0
    for name, leaf in leaves.items():
        own = [time for time in times if time.rpartition("/")[0] == name.rpartition("/")[0] and time != name]
        stream = next((time for time in own if times[time].shape == leaf.shape[:1] != rows), "")
        size = _measure_window(episode, clock, stream, unit) if clock and stream and name in numbers else 0
        field = f"observation/{re.sub('^(observations?|obs)/', '', name)}"
        if name in actions:
            field = "action" if len(actions) == 1 else f"action/{name.replace('/', '_')}"
        elif name in rewards[:1]:
            field = "reward"
        elif name in terminals:
            continue
        if name in actions or (leaf.shape[:1] == rows and rows and not leaf.trouble):
            lines.append(f"  {yaml_text(field)}: {yaml_text(name)}  # {leaf.dtype}{list(leaf.shape)}")
        elif size:
            windows += 1
            entry = f"{{from: {yaml_text(name)}, times: {yaml_text(stream)}, window: {size}}}"
            lines.append(f"  {yaml_text(field)}: {entry}  # all samples since the step before")
        else:
            lines.append(f"  # not read: {printable(name)} {leaf.dtype}{list(leaf.shape)}")
    lines += [f"times: {yaml_text(clock)}", f"time_unit: {unit}"] if windows else []
    lines += [f"terminal: {yaml_text(name)}" for name in terminals[:1]]
    return [*lines, "# if a file holds several episodes end to end: ends: [DATASET_OF_FLAGS]"]


def _guess_unit(episode: Container, clock: str) -> str:
    """The unit of the times of the steps, by which there are 1 to 1,000 steps a second."""
    interval = float(np.median(np.diff(episode.read(clock)))) or 1.0
    return next((unit for unit, most in (("s", 1), ("ms", 1e3), ("us", 1e6)) if interval <= most), "ns")


def _measure_window(episode: Container, clock: str, stream: str, unit: str) -> int:
    """The most samples of a step; 0 if the times are not ascending."""
    try:
        samples, steps = (read_times(episode.read(time), unit, time) for time in (stream, clock))
    except ValueError:
        return 0
    return int(np.diff(window_edges(samples, steps)).max())


def _is_action(name: str) -> bool:
    return re.search("act(ion)?s?$|command", name.lower()) is not None


def _find_splits(
    files: ProfileFormat, sizes: Mapping[str, int], names: Mapping[str, str], split: str | None, dataset: str
) -> tuple[Split, ...]:
    splits: dict[str, Split] = {}
    if files.split_masks:  # the episodes of the file are in their order
        [(path, size)] = sizes.items()
        index, shard, first = files.index(path), make_shard(files, 0, path, size), 0
        for name in files.split_masks:
            last = first + sum(group.rpartition("/")[2] in index.masks[name] for group in index.groups)
            splits[name] = Split(name, (shard,), first, last)
            first = last
    else:
        found: dict[str, list[str]] = {}
        for path in sizes:
            directory, name = storage.split(path)
            named = [name.rpartition(".")[0].rpartition("-")[2]] if files.profile.splits == "names" else []
            folders = directory.split("/")[::-1] if files.profile.splits == "folders" else []
            by_path = next((part for part in (*named, *folders) if part in _SPLITS), "train")
            found.setdefault(names.get(path) or by_path, []).append(path)
        for name, paths in found.items():
            splits[name] = Split(name, tuple(make_shard(files, i, path, sizes[path]) for i, path in enumerate(paths)))
    chosen = selected_splits(split, splits, dataset)
    return tuple(slice_split(splits[name], start, stop) for name, start, stop in chosen)
