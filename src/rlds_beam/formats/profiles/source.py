"""HDF5, `.npz`, and zarr files as a source: a profile says which array is which field, and where episodes are."""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import msgspec

from rlds_beam import naming, storage
from rlds_beam.encoding.metadata import yaml_text
from rlds_beam.errors import UsageError
from rlds_beam.formats.arrays.array_episodes import (
    UNREADABLE,
    SourceOfFiles,
    make_shard,
    no_features,
    select_splits,
)
from rlds_beam.formats.format_options import ProfileOptions
from rlds_beam.formats.profiles.binding import Layout, bind_layout, text_files
from rlds_beam.formats.profiles.containers import HDF5, NPZ, Container, natural
from rlds_beam.formats.profiles.episodes import ProfileDecoder, ProfileFormat, index_episodes, open_container
from rlds_beam.formats.profiles.model import Profile, find_profile, shipped_profiles
from rlds_beam.formats.profiles.zarr_store import ENDS, METADATA, open_store, store_root
from rlds_beam.options import Options
from rlds_beam.reading.base import Details, Shard
from rlds_beam.text import shorten

_SPLITS = ("train", "val", "valid", "validation", "test")
_MAX_TRIED = 20  # files tried for the first episode


@dataclasses.dataclass(frozen=True)
class ProfileSource(SourceOfFiles):
    """Files with a profile. Attributes: see `Source`."""

    files: ProfileFormat

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
        profile = find_profile(options.profile) if options.profile else None
        layout = _bind_first(list(sizes), where, profile, options.raw_images)
        root = input if isinstance(input, str) and storage.isdir(input) else ""
        files = ProfileFormat(layout, root, cls.format_name)
        name = storage.split(root.rstrip("/"))[1].removesuffix(".zarr") if root else _stem(next(iter(sizes)))
        dataset = naming.to_name((layout.dataset or name).replace("/", "-"))
        by_split: dict[str, list[str]] = {}
        for path in sizes:
            if _is_named(path, layout.profile):
                by_split.setdefault(_split_name(path, layout.profile), []).append(path)
        shards = {
            name: tuple(make_shard(files, i, path, sizes[path]) for i, path in enumerate(paths))
            for name, paths in by_split.items()
        }
        splits = select_splits(shards, split, dataset)
        decoder = ProfileDecoder(layout.schema, layout)
        details = Details(notes=(f"profile {layout.profile.name}", *layout.notes))
        return cls(f"{dataset}/1.0.0", layout.schema, decoder, splits, files, layout.meaning, details)

    def plan(self) -> dict[str, Any]:
        return {"profile": msgspec.to_builtins(self.files.profile)}

    def companions(self, shard: Shard) -> list[str]:
        return text_files(self.files.profile, shard.path)


class Hdf5Source(ProfileSource):
    """HDF5 files with a profile."""

    format_name, endings = "hdf5", HDF5


class NpzSource(ProfileSource):
    """NumPy's `.npz` files with a profile."""

    format_name, endings = "npz", NPZ


class ZarrSource(ProfileSource):
    """Zarr stores with a profile: replay buffers of diffusion policy and UMI, and what `--to=zarr` wrote."""

    format_name, endings = "zarr", (".zarr.zip", *(f"/{ENDS}/{name}" for name in METADATA))

    def companions(self, shard: Shard) -> list[str]:
        if shard.path.endswith(".zip"):
            return []
        store = open_store(shard.path)
        paths = [storage.join(store.root, *key.split("/")) for key in store.sizes]
        return [path for path in paths if path != shard.path]


def _find_files(input: str | Sequence[str], endings: tuple[str, ...]) -> dict[str, int]:
    """The files of an input and their sizes, sorted by the numbers in their names.

    The metadata of `meta/episode_ends` stands for the zarr store that it is in.
    """
    sizes: dict[str, int] = {}
    for place in [input] if isinstance(input, str) and storage.isdir(input) else storage.paths_in(input):
        if not storage.isdir(place):
            found = storage.glob(place)
            if not found:
                raise UsageError(f"{place}: no such file or directory")
            sizes |= found
            continue
        below = {storage.join(place, name): size for name, size in storage.sizes(place, below=True).items()}
        stores: dict[str, str] = {}
        for path in below:
            if path.endswith(endings) and path.endswith(METADATA):
                stores.setdefault(store_root(path), path)
            elif path.endswith(endings) and storage.split(path)[1][0] != ".":
                sizes[path] = below[path]
        for root, path in stores.items():
            sizes[path] = sum(size for file, size in below.items() if file.startswith(f"{root}/"))
    return {path: sizes[path] for path in sorted(sizes, key=natural)}


def _stem(path: str) -> str:
    """The name of a file or a zarr store, without its ending."""
    name = storage.split(store_root(path))[1]
    return (name.rpartition(".")[0] or name).removesuffix(".zarr")


def _is_named(path: str, profile: Profile) -> bool:
    return fnmatch.fnmatch(storage.split(path)[1], profile.files or "*")


def _first_episode(whole: Container, profile: Profile) -> Container | None:
    """The first episode of a file; the file, if it holds several end to end."""
    if profile.per_file:
        return whole
    try:
        groups = whole.groups(profile.episodes)
        return whole.within(groups[0]) if groups else None
    except (KeyError, OSError):
        return None


def _bind_first(paths: Sequence[str], where: str, profile: Profile | None, raw_images: str) -> Layout:
    """The layout of the first episode that can be read, with a profile, or the shipped one that fits.

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
                layout = bind_layout(chosen, episode, raw_images)
                return dataclasses.replace(layout, notes=(*layout.notes, *whole.notes))
        except UNREADABLE as unreadable:
            if isinstance(unreadable, UsageError):
                raise
            error = error if path != named[0] else f"{path} cannot be read: {shorten(unreadable)}"
    raise UsageError(error)


def _choose_profile(whole: Container) -> Profile:
    """The shipped profile that fits a file. Raises UsageError if several do, or with a proposal if none does."""
    found = []
    for name, profile in shipped_profiles().items():
        episode = _first_episode(whole, profile) if _is_named(whole.path, profile) else None
        told = profile.recognize
        if episode is None or not all(map(episode.has, told.has)) or any(map(episode.has, told.lacks)):
            continue
        if not told.any or any(map(episode.has, told.any)):
            found.append(name)
    if len(found) == 1:
        return shipped_profiles()[found[0]]
    if found:
        raise UsageError(f"{whole.path}: several profiles fit: {', '.join(found)}. Choose one with --profile=NAME")
    raise UsageError(
        f"{whole.path}: no shipped profile fits ({', '.join(shipped_profiles())}). Here is a proposal: edit it, save "
        "it as profile.yaml, and pass --profile=profile.yaml",
        "",
        *_propose(whole),
    )


def _propose(whole: Container) -> list[str]:
    """The lines of a profile in YAML, for an unknown file: its arrays with as many rows as the action."""
    groups = {re.sub(r"^((?:[^/]+/)?[^/]*?)\d+/.*", r"\1*", name) for name in whole.leaves if _is_action(name)}
    pattern = "".join(groups) if len(groups) == 1 and "*" in "".join(groups) else ""
    leaves = (whole.within(whole.groups(pattern)[0]) if pattern else whole).leaves
    actions = [name for name, leaf in leaves.items() if _is_action(name) and leaf.shape]
    rows = {leaves[name].shape[0] for name in actions[:1]}
    lines = [f"name: {naming.to_name(storage.split(whole.path)[1].rpartition('.')[0])}"]
    lines += [f"episodes: {yaml_text(pattern or 'file')}", "fields:"]
    lines += [] if actions else ["  action: NAME_OF_A_DATASET"]
    for name, leaf in leaves.items():
        field = f"observation/{re.sub('^(observations?|obs)/', '', name)}"
        if name in actions:
            field = "action" if len(actions) == 1 else f"action/{name.replace('/', '_')}"
        is_read = name in actions or (rows.intersection(leaf.shape[:1]) and not leaf.trouble)
        entry = f"{yaml_text(field)}: {yaml_text(name)}  # {leaf.dtype}{list(leaf.shape)}"
        lines.append(f"  {entry}" if is_read else f"  # {entry}")
    hints = "# rewards: name the field reward", "# the flag of a terminal state: terminal: DATASET"
    return [*lines, *hints, "# if a file holds several episodes end to end: ends: [DATASET_OF_FLAGS]"]


def _is_action(name: str) -> bool:
    return re.search("act(ion)?s?$|command", name.lower()) is not None


def _split_name(path: str, profile: Profile) -> str:
    if profile.splits == "files":
        return naming.to_name(_stem(path))
    names = [_stem(path).rpartition("-")[2]] if profile.splits == "names" else []
    folders = storage.split(path)[0].split("/")[::-1] if profile.splits == "folders" else []
    return next((name for name in (*names, *folders) if name in _SPLITS), "train")
