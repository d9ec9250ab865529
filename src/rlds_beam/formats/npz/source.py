"""NumPy's `.npz` files as a source: `--from=npz`. A profile says which array is which field, and where episodes end."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from rlds_beam import naming, storage
from rlds_beam.errors import UsageError
from rlds_beam.formats.arrays.array_files import (
    FoundFiles,
    find_files,
    no_features,
    splits_of_files,
)
from rlds_beam.formats.format_options import NpzOptions
from rlds_beam.formats.npz.members import UNREADABLE_NPZ, Member, damage, open_npz
from rlds_beam.formats.profiles.binding import Container, Leaf, fits
from rlds_beam.formats.profiles.catalog import find_profile, propose, shipped_profiles
from rlds_beam.formats.profiles.episodes import Layout, bind_layout, choose_profile
from rlds_beam.formats.profiles.files import ProfileFormat, ProfileSource, find_starts
from rlds_beam.options import Options
from rlds_beam.reading.directory_listing import names_in
from rlds_beam.typing import Array

_TRIED = 20  # files tried for the first episode
_VALIDATION = ("-val", "-test")


class NpzFile:
    """An open file (`profiles.containers.Container`)."""

    group = ""
    ended = True

    def __init__(self, path: str, members: Mapping[str, Member]):
        self.path, self._members = path, members

    @functools.cached_property
    def leaves(self) -> Mapping[str, Leaf]:
        """The arrays by name."""
        return {name: Leaf(member.shape, _dtype(member), bool(member.shape)) for name, member in self._members.items()}

    @property
    def stored(self) -> bool:
        """Whether the arrays can be read from the middle."""
        return all(member.stored for member in self._members.values())

    def read(self, name: str, rows: slice | None = None) -> Array:
        """Rows of an array; text as an object array of bytes. Raises KeyError if there is none."""
        member = self._members[name]
        if not member.shape:
            return member.rows(0, 1).reshape(())
        start, stop, _ = (rows or slice(None)).indices(member.shape[0])
        return member.rows(start, max(start, stop))

    def attribute(self, place: str) -> Any:
        """Raises KeyError: `.npz` files have no attributes."""
        raise KeyError(f"there is no {place}")

    def has(self, name: str) -> bool:
        """Whether there is an array of this name."""
        return name in self._members


def _dtype(member: Member) -> np.dtype[Any]:
    return np.dtype(object) if member.dtype.kind in "SU" else member.dtype.newbyteorder("=")


@contextlib.contextmanager
def _open(path: str) -> Iterator[NpzFile]:
    with open_npz(path) as members:
        yield NpzFile(path, members)


@dataclasses.dataclass(frozen=True)
class NpzFormat(ProfileFormat):
    """`.npz` files. A file with compressed arrays, which can only be read from the start, is not cut into ranges."""

    name = "npz"

    @staticmethod
    def whole(path: str) -> contextlib.AbstractContextManager[Container]:
        return _open(path)

    def is_splittable(self, path: str) -> bool:
        try:
            with _open(path) as whole:
                return super().is_splittable(path) and whole.stored
        except UNREADABLE_NPZ:
            return False


@dataclasses.dataclass(frozen=True)
class NpzSource(ProfileSource):
    """`.npz` files. Attributes: see `Source`."""

    options_class: ClassVar[type[Options]] = NpzOptions

    @classmethod
    def recognize(cls, path: str) -> str | None:
        try:
            inside = next((name for name in names_in(path) if name.endswith(".npz")), None)
            if inside is None and not path.endswith(".npz"):
                return None
            with _open(path if inside is None else storage.join(path, inside)) as whole:
                found, names = _fitting(whole), ", ".join([*whole.leaves][:4])
        except Exception:  # whatever the path holds; `open` says what is wrong
            return None
        return f".npz with {names}" + "".join(f" (profile {name})" for name in found)

    @classmethod
    def open(
        cls,
        input: str | Sequence[str],
        *,
        split: str | None = None,
        features: str | None = None,
        options: NpzOptions | None = None,
    ) -> NpzSource:
        no_features("npz", features)
        found = find_files(input, (".npz",), "npz")
        layout = _first_layout(found.splits["train"], found.where, options or NpzOptions())
        if layout.profile.splits == "names":
            found = _by_names(found)
        files = NpzFormat(layout, input if isinstance(input, str) and storage.isdir(input) else "")
        return cls.of(found.name, files, splits_of_files(files, found, split))


def _by_names(found: FoundFiles) -> FoundFiles:
    """The files with those named like `maze-val.npz` in their own split."""
    splits: dict[str, tuple[str, ...]] = {}
    for path in found.splits["train"]:
        stem = path.removesuffix(".npz")
        name = next((ending[1:] for ending in _VALIDATION if stem.endswith(ending)), "train")
        splits[name] = (*splits.get(name, ()), path)
    return dataclasses.replace(found, splits=splits)


def _fitting(whole: NpzFile) -> dict[str, str]:
    """The profiles of the package that fit a file, each with what it recognizes."""
    found = {name: fits(profile, whole) for name, profile in shipped_profiles(npz=True).items()}
    return {name: why for name, why in found.items() if why is not None}


def _first_layout(paths: Sequence[str], where: str, options: NpzOptions) -> Layout:
    """The layout of the first file that can be read. Raises UsageError if none can."""
    error = ""
    for path in paths[:_TRIED]:
        try:
            with _open(path) as whole:
                if options.profile:
                    profile = find_profile(options.profile, npz=True)
                elif found := _fitting(whole):
                    profile = shipped_profiles(npz=True)[choose_profile(found, where)]
                else:
                    raise UsageError(
                        f"{path} has {', '.join(whole.leaves) or 'no arrays'}, which no profile fits. Here is a "
                        "proposal: edit it, save it as profile.yaml, and pass --profile=profile.yaml",
                        "",
                        *propose(naming.to_name(storage.split(path)[1].rpartition(".")[0]), "file", whole.leaves),
                    )
                if not profile.per_file:
                    raise UsageError(f"profile {profile.name}: .npz files have no groups: write episodes: file")
                if profile.ends:
                    find_starts(whole, profile.ends)
                return bind_layout(profile, whole, options.raw_images)
        except UNREADABLE_NPZ as unreadable:
            if isinstance(unreadable, UsageError):
                raise
            error = error or f"{path} cannot be read: {damage(unreadable)}"
    raise UsageError(error or f"{where} has no files")
