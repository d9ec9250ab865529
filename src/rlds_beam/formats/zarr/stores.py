"""Read zarr stores: a directory or a zip file, on a local disk or in a bucket.

Only values are read, by key (`data/img/0.0.0.0`); nothing is extracted, and consolidated metadata, which may contradict
the arrays' own, is never read.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import weakref
import zipfile
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rlds_beam import naming, storage
from rlds_beam.errors import UsageError
from rlds_beam.text import printable

MAX_BYTES = 1 << 30
"""The largest chunk that is read."""

MAX_METADATA_BYTES = 16 << 20
"""The largest metadata that is read."""

METADATA = (".zarray", "zarr.json")
"""The metadata file of an array, in version 2 and 3 of the format."""

_NO_CHUNKS = ("/", *METADATA, ".zattrs", ".zgroup")
"""The ends of the names of other members of a zip file: of directories, which `zip -r` adds, and metadata."""

OWN = "rlds_beam"
"""The attribute of a store's root in which `--to=zarr` keeps the fields."""

ENDS = "meta/episode_ends"
"""The array with the end of each episode."""

_DEPTH = 8
"""Maximum depth of nested groups."""


class Usage(NamedTuple):
    """The stored chunks of an array, or of several."""

    chunks: int
    size: int


class ZarrStore(abc.ABC):
    """A store that is open for reading."""

    def __init__(self, root: str):
        self.root = root

    @abc.abstractmethod
    def read(self, key: str, most: int = MAX_METADATA_BYTES) -> bytes | None:
        """A value; None if there is none. Raises OSError if it cannot be read, or is larger than `most` bytes."""

    @abc.abstractmethod
    def arrays(self, group: str) -> list[str]:
        """The keys of the arrays below a group, sorted."""

    @abc.abstractmethod
    def usage(self, array: str) -> Usage:
        """The chunks stored for an array."""


class DirectoryStore(ZarrStore):
    """A directory; each value is a file."""

    def read(self, key: str, most: int = MAX_METADATA_BYTES) -> bytes | None:
        path = self._path(key)
        try:
            with storage.open_read(path) as file:
                value = file.read(most + 1)
        except FileNotFoundError:
            return None
        if len(value) > most:
            raise _too_large(key, most)
        return value

    def arrays(self, group: str) -> list[str]:
        return sorted(self._arrays(group, _DEPTH))

    def _arrays(self, group: str, depth: int) -> Iterator[str]:
        path = self._path(group)
        if not depth or not storage.isdir(path):
            return
        names = storage.listdir(path)
        if is_array(self, group, names):
            yield group
            return
        for name in names:
            if naming.is_file_name(name) and not name.startswith("."):
                yield from self._arrays(f"{group}/{name}", depth - 1)

    def usage(self, array: str) -> Usage:
        sizes = [storage.size(path) for path in self.files(array)]
        return Usage(len(sizes), sum(sizes))

    def files(self, key: str) -> list[str]:
        """The paths of the files below a key, except metadata."""
        return [path for path in _files(self._path(key), 2 * _DEPTH) if storage.split(path)[1] not in METADATA]

    def _path(self, key: str) -> str:
        return storage.join(self.root, *key.split("/"))


def _files(path: str, depth: int) -> Iterator[str]:
    """The files below a directory, without those that begin with a dot, sorted."""
    sizes = storage.sizes(path)
    yield from (storage.join(path, name) for name in sizes if not name.startswith("."))
    if depth:
        for name in storage.listdir(path):
            if name not in sizes and storage.isdir(below := storage.join(path, name)):
                yield from _files(below, depth - 1)


class ZipStore(ZarrStore):
    """A zip file; each value is a member. If a name is there twice, the last one counts, as in zarr."""

    def __init__(self, root: str, file: zipfile.ZipFile):
        super().__init__(root)
        self._file = file

    def read(self, key: str, most: int = MAX_METADATA_BYTES) -> bytes | None:
        try:
            about = self._file.getinfo(key)
        except KeyError:
            return None
        if about.file_size > most:
            raise _too_large(key, most)
        try:
            with self._file.open(about) as member:
                value = member.read(about.file_size + 1)
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
            raise OSError(f"{key} cannot be read: {printable(error)}") from error  # it may quote bytes of the file
        if len(value) != about.file_size:
            raise OSError(f"{key} has {len(value):,} bytes, but the zip file says {about.file_size:,}")
        return value

    def arrays(self, group: str) -> list[str]:
        found = {name.rpartition("/")[0] for name in self._file.namelist() if name.endswith(METADATA)}
        nested = [key for key in found if key.startswith(f"{group}/") and naming.is_file_path(key)]
        return sorted(key for key in nested if is_array(self, key, METADATA))

    def usage(self, array: str) -> Usage:
        sizes = [
            about.compress_size
            for about in self._file.infolist()
            if about.filename.startswith(f"{array}/") and not about.filename.endswith(_NO_CHUNKS)
        ]
        return Usage(len(sizes), sum(sizes))


def _too_large(key: str, most: int) -> OSError:
    return OSError(f"{key} is larger than {most:,} bytes, the most that it can need")


def is_array(store: ZarrStore, key: str, names: Sequence[str]) -> bool:
    """Whether an array, not a group, has these files."""
    if ".zarray" in names and store.read(f"{key}/.zarray") is not None:
        return True
    return "zarr.json" in names and b'"array"' in (store.read(f"{key}/zarr.json") or b"")[:65536]


def is_zip(path: str) -> bool:
    """Whether a store is a zip file, by its name."""
    return path.endswith(".zip")


@contextlib.contextmanager
def open_store(root: str) -> Iterator[ZarrStore]:
    """Opens a store. Raises OSError if it cannot be read."""
    if not is_zip(root):
        yield DirectoryStore(root)
        return
    version = read_version(root)
    yield ZipStore(root, _open_cached(root, version) if version else _zip_file(root))


def read_version(path: str) -> object:
    """Changes if a zip file does; empty if its store has no checksums."""
    return storage.stamp(path) if storage.scheme(path) is None else storage.checksum(path)


def _zip_file(path: str) -> zipfile.ZipFile:
    file = storage.open_read(path)
    try:
        opened = zipfile.ZipFile(file)
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        file.close()
        raise OSError(f"{path} is not a complete zip file: {printable(error)}") from error
    weakref.finalize(opened, file.close)
    return opened


@functools.lru_cache(maxsize=1)
def _open_cached(path: str, version: object) -> zipfile.ZipFile:
    """The zip file that was opened last: reading the names of a million members takes seconds."""
    del version
    return _zip_file(path)


def shard_path(root: str) -> str:
    """The file that represents a store: the zip file, or the metadata of `meta/episode_ends`.

    Raises:
      UsageError: the path is not a store with episodes.
    """
    if is_zip(root):
        if not storage.exists(root):
            raise UsageError(f"{root}: no such file")
        return root
    for name in METADATA:
        path = storage.join(root, *ENDS.split("/"), name)
        if storage.exists(path):
            return path
    raise UsageError(f"{root} is not a zarr store with episodes: it has no {ENDS}")


def store_root(path: str) -> str:
    """The inverse of `shard_path`."""
    if is_zip(path):
        return path
    for _ in range(1 + ENDS.count("/") + 1):
        path = storage.split(path)[0]
    return path
