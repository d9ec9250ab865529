"""Zarr stores with episodes, read with the `zarr` library (2.18 or 3): a directory or a zip file, also in a bucket.

    data/img              (steps, 96, 96, 3)
    data/action           (steps, 2)
    meta/episode_ends     (episodes,)       the step after the last of each episode

Arrays are opened by key. Consolidated metadata, which may contradict the arrays' own, is never read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import weakref
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import numpy as np

from rlds_beam import naming, storage
from rlds_beam.encoding.base import Damage
from rlds_beam.errors import BucketError, UsageError, needs
from rlds_beam.formats.arrays.array_episodes import MAX_BYTES, UNREADABLE, ArrayFormat, Arrays
from rlds_beam.formats.arrays.parts import encode_frames
from rlds_beam.text import printable, shorten
from rlds_beam.typing import Array

METADATA = (".zarray", "zarr.json")
"""The metadata file of an array, in version 2 and 3 of the format."""

OWN = "rlds_beam"
"""The attribute of a store's root in which `--to=zarr` keeps the fields."""

ENDS = "meta/episode_ends"
"""The array with the end of each episode."""

_MAX_CHUNK_BYTES = 1 << 30
_MAX_DEPTH = 8  # of nested groups

_CODECS = {
    *("adler32", "blosc", "bytes", "bz2", "crc32", "crc32c", "delta", "endian", "gzip", "lz4", "lzma", "shuffle"),
    *("sharding_indexed", "transpose", "vlen-bytes", "vlen-utf8", "zlib", "zstd"),
    *("imagecodecs_jpeg2k", "imagecodecs_jpegxl", "imagecodecs_png"),
}
"""Codecs and filters that decode bytes and do nothing else. `pickle` would run the store's code."""


class ZarrStore(MutableMapping[str, Any]):
    """The files of a store by key (`data/img/0.0.0.0`), which zarr reads as a store."""

    def __init__(self, root: str, archive: zipfile.ZipFile | None):
        self.root = root
        self._archive = archive
        self._last: tuple[str, bytes] = "", b""
        self._blosc: set[str] = set()

    def read(self, key: str) -> bytes | None:
        """A file's content; None if there is none. Raises OSError if it cannot be read."""
        try:
            if self._archive is not None:
                return self._archive.read(key)
            with storage.open_read(storage.join(self.root, *key.split("/"))) as file:
                return file.read()
        except (FileNotFoundError, KeyError):
            return None
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
            raise OSError(f"{key} cannot be read: {printable(error)}") from error

    def __contains__(self, key: object) -> bool:
        content = self.read(str(key))
        if content is not None:
            self._last = str(key), content  # zarr asks before it reads
        return content is not None

    def __getitem__(self, key: str) -> Any:
        content = self._last[1] if self._last[0] == key else self.read(key)
        self._last = "", b""
        if content is None:
            raise KeyError(key)
        is_metadata = key.endswith((*METADATA, ".zattrs"))  # zarr 3 reads attributes as well
        is_chunk = any(key.startswith(f"{array}/") for array in self._blosc) and not is_metadata
        if is_chunk and (len(content) < 16 or int.from_bytes(content[12:16], "little") != len(content)):
            raise OSError(f"{key} is cut short")  # Blosc would read past its end
        return _as_buffer(content)

    def __setitem__(self, key: str, value: Any) -> None:
        raise TypeError("the store is read-only")

    def __delitem__(self, key: str) -> None:
        raise TypeError("the store is read-only")

    def __iter__(self) -> Iterator[str]:
        return iter(self.sizes())

    def __len__(self) -> int:
        return len(self.sizes())

    def sizes(self) -> dict[str, int]:
        """The stored size of each file below `data` and `meta`."""
        if self._archive is not None:
            return {info.filename: info.compress_size for info in self._archive.infolist() if not info.is_dir()}
        found = {}
        for group in ("data", "meta"):
            for path, size in _files(storage.join(self.root, group), 2 * _MAX_DEPTH):
                found[path[len(self.root) :].lstrip("/")] = size
        return found

    def arrays(self, group: str) -> list[str]:
        """The keys of the arrays below a group, sorted."""
        if self._archive is not None:
            found = [name.rpartition("/")[0] for name in self._archive.namelist() if name.endswith(METADATA)]
            nested = {key for key in found if key.startswith(f"{group}/") and naming.is_file_path(key)}
            return sorted(key for key in nested if self._is_array(key))
        return sorted(self._arrays_below(group, _MAX_DEPTH))

    def _arrays_below(self, key: str, depth: int) -> Iterator[str]:
        path = storage.join(self.root, *key.split("/"))
        if not depth or not storage.isdir(path):
            return
        names = storage.listdir(path)
        if any(name in METADATA for name in names) and self._is_array(key):
            yield key
            return
        for name in names:
            if naming.is_file_name(name) and not name.startswith("."):
                yield from self._arrays_below(f"{key}/{name}", depth - 1)

    def _is_array(self, key: str) -> bool:
        return self.read(f"{key}/.zarray") is not None or b'"array"' in (self.read(f"{key}/zarr.json") or b"")[:65536]

    def attributes(self) -> dict[str, Any]:
        """The attributes of the root. Raises OSError if they are damaged."""
        for name in (".zattrs", "zarr.json"):
            if (content := self.read(name)) is not None:
                found = _parse(content, name)
                return dict(found if name == ".zattrs" else found.get("attributes") or {})
        return {}

    def open(self, key: str) -> Any:
        """The array at a key (zarr's). Raises OSError if there is none, or it is not supported."""
        name = next((name for name in METADATA if self.read(f"{key}/{name}") is not None), None)
        if name is None:
            raise OSError(f"there is no {key}")
        zarr = _zarr()
        about = _parse(self.read(f"{key}/{name}") or b"", f"{key}/{name}")
        if name == "zarr.json" and zarr.__version__.startswith("2."):
            raise OSError(
                f"{key} has version 3 of the format, which zarr {zarr.__version__} cannot read: install zarr 3"
            )
        try:
            codecs = [*_codec_names(about)]
            if unknown := sorted(set(codecs) - _CODECS):
                raise ValueError(f"it is stored with the codec {printable(unknown[0])}, which is not supported")
            if codecs[-1:] == ["blosc"]:
                self._blosc.add(key)
            store = self if zarr.__version__.startswith("2.") else zarr.storage.MemoryStore(self, read_only=True)
            array = zarr.open_array(store=store, path=key, mode="r")
            if not array.shape or array.dtype.kind not in "biufOSUT":
                raise ValueError(f"it holds {array.dtype}{list(array.shape)}, expected rows of numbers or text")
            if math.prod((array.chunks[0], *array.shape[1:])) * array.dtype.itemsize > _MAX_CHUNK_BYTES:
                raise ValueError(f"its chunks are larger than {_MAX_CHUNK_BYTES >> 20:,} MB")
        except Exception as error:  # zarr raises what its parts raise
            raise OSError(f"{key}: {shorten(error)}") from error
        return array


@functools.cache
def _zarr() -> Any:
    """The `zarr` library, which then knows UMI's codecs of images."""
    with needs("zarr", "reading zarr stores needs zarr"):
        import zarr
        from imagecodecs.numcodecs import register_codecs

    register_codecs([codec for codec in _CODECS if codec.startswith("imagecodecs")], verbose=False)
    return zarr


def _as_buffer(content: bytes) -> Any:
    if _zarr().__version__.startswith("2."):
        return content
    from zarr.core.buffer import default_buffer_prototype

    return default_buffer_prototype().buffer.from_bytes(content)


def _parse(content: bytes, where: str) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except ValueError as error:
        raise OSError(f"{where} is not valid JSON: {shorten(error)}") from None
    if not isinstance(found, dict):
        raise OSError(f"{where} is not a JSON object")
    return found


def _codec_names(about: Any) -> Iterator[str]:
    """The names of all codecs and filters in an array's metadata, also of those within shards."""
    for entry in [*(about.get("filters") or ()), about.get("compressor"), *(about.get("codecs") or ())]:
        if entry is not None:
            yield str(entry.get("id") or entry.get("name")).removeprefix("numcodecs.")
            inner = entry.get("configuration") or {}
            yield from _codec_names({"codecs": [*inner.get("codecs", ()), *inner.get("index_codecs", ())]})


def _files(path: str, depth: int) -> Iterator[tuple[str, int]]:
    """The files below a directory and their sizes, without those that begin with a dot, sorted."""
    if not storage.isdir(path):
        return
    sizes = storage.sizes(path)
    yield from ((storage.join(path, name), size) for name, size in sizes.items() if not name.startswith("."))
    for name in storage.listdir(path) if depth else ():
        if name not in sizes:
            yield from _files(storage.join(path, name), depth - 1)


@contextlib.contextmanager
def open_store(root: str) -> Iterator[ZarrStore]:
    """Opens a store. Raises OSError if it cannot be read."""
    if not is_zip(root):
        yield ZarrStore(root, None)
        return
    version = read_version(root)
    yield ZarrStore(root, _open_cached(root, version) if version else _zip_file(root))


def is_zip(path: str) -> bool:
    """Whether a store is a zip file, by its name."""
    return path.endswith(".zip")


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


def is_text(array: Any) -> bool:
    """Whether an array holds text."""
    return array.dtype.kind in "OSUT"


class RowReader:
    """Reads rows of an array. Keeps the last chunks, in which the next episode may begin; zarr keeps none."""

    def __init__(self, key: str, array: Any):
        self.key, self.array = key, array
        self.row_bytes = math.prod(array.shape[1:]) * array.dtype.itemsize
        self._kept: tuple[int, Array] | None = None

    def pieces(self, start: int, stop: int) -> Iterator[Array]:
        """The rows, a chunk at a time, in the machine's byte order. Text is an object array of bytes.

        Raises:
          OSError: a chunk is damaged, or there are fewer rows.
        """
        rows, length = self.array.shape[0], self.array.chunks[0]
        if not 0 <= start <= stop <= rows:
            raise OSError(f"{self.key} has {rows:,} rows")
        for i in range(start // length, -(-stop // length)):
            if self._kept is None or self._kept[0] != i:
                self._kept = None  # frees it before the next one is read
                self._kept = i, self._read(i * length, min((i + 1) * length, rows))
            yield self._kept[1][max(start - i * length, 0) : stop - i * length]

    def read(self, start: int, stop: int) -> Array:
        """The rows. See `pieces`."""
        pieces = list(self.pieces(start, stop))
        if not pieces:
            dtype = np.dtype(object) if is_text(self.array) else self.array.dtype.newbyteorder("=")
            return np.zeros((0, *self.array.shape[1:]), dtype)
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _read(self, start: int, stop: int) -> Array:
        try:
            values = np.asarray(self.array[start:stop])
            if values.dtype.kind in "OSUT":
                flat = [value if isinstance(value, bytes) else str(value).encode() for value in values.reshape(-1)]
                return np.fromiter(flat, object, len(flat)).reshape(values.shape)
            return values.astype(values.dtype.newbyteorder("="), copy=False)
        except (BucketError, MemoryError):
            raise
        except Exception as error:  # any codec's
            raise OSError(f"rows {start:,} to {stop:,} of {self.key} cannot be decoded: {shorten(error)}") from error


def read_ends(store: ZarrStore) -> Array:
    """The end of each episode, int64, ascending. Raises OSError if they are not ascending numbers from 0."""
    array = store.open(ENDS)
    if array.dtype.kind not in "iu" or len(array.shape) != 1:
        raise OSError(f"{ENDS} holds {array.dtype}{list(array.shape)}, expected a whole number for each episode")
    ends = RowReader(ENDS, array).read(0, array.shape[0]).astype(np.int64)
    wrong = np.flatnonzero(np.diff(ends, prepend=0) < 0)
    if len(wrong):
        i = int(wrong[0])
        before = int(ends[i - 1]) if i else 0
        raise OSError(f"{ENDS} is not ascending: episode {i:,} ends at {ends[i]:,}, after {before:,}")
    return ends


@dataclasses.dataclass(frozen=True)
class ZarrFormat(ArrayFormat):
    """Zarr stores with episodes. A store's path is that of `shard_path`.

    Attributes:
      steps: the keys of the arrays with a row for each step.
      of_episode: the keys of the arrays with a row for each episode.
      images: those of `steps` that hold an image in each row, which are read as PNGs, or JPEGs if they are in `jpegs`.
    """

    steps: tuple[str, ...]
    of_episode: tuple[str, ...] = ()
    images: frozenset[str] = frozenset()
    jpegs: frozenset[str] = frozenset()
    name = "zarr"

    def count(self, path: str) -> int:
        version = read_version(path) if is_zip(path) else None
        return _count(path, self.steps, version) if version else _count.__wrapped__(path, self.steps, None)

    def episodes(self, path: str, start: int, stop: int) -> Iterator[Arrays | Damage]:
        with open_store(store_root(path)) as store:
            ends = read_ends(store)
            readers: dict[str, RowReader | OSError] = {}
            for key in (*self.steps, *self.of_episode):
                try:
                    readers[key] = RowReader(key, store.open(key))
                except OSError as error:
                    readers[key] = error
            for i in range(start, stop):
                yield self._episode(i, ends, readers)

    def _episode(self, i: int, ends: Array, readers: Mapping[str, RowReader | OSError]) -> Arrays | Damage:
        last = int(ends[-1]) if len(ends) else 0
        if i >= len(ends):
            return Damage(i, i + 1, f"there are rows after {last:,}, where the last episode ends", b"")
        first, end = int(ends[i - 1]) if i else 0, int(ends[i])
        try:
            arrays = {}
            for key, reader in readers.items():
                if isinstance(reader, OSError):
                    raise reader
                rows = (first, end) if key in self.steps else (i, i + 1)
                if reader.row_bytes * (rows[1] - rows[0]) > MAX_BYTES:
                    raise OSError(f"{rows[1] - rows[0]:,} rows of {key} are larger than {MAX_BYTES >> 30} GB")
                if key in self.images:
                    arrays[key] = encode_frames(reader.pieces(*rows), "jpeg" if key in self.jpegs else "png")
                else:
                    arrays[key] = reader.read(*rows)
        except UNREADABLE as error:
            return Damage(i, i + 1, f"rows {first:,} to {end:,} cannot be read: {shorten(error)}", b"")
        return arrays


@functools.lru_cache(maxsize=64)
def _count(path: str, steps: tuple[str, ...], version: object) -> int:
    """The number of episodes, and one more if rows follow the last."""
    del version
    with open_store(store_root(path)) as store:
        ends, keys = read_ends(store), {*store.arrays("data")}
        last = int(ends[-1]) if len(ends) else 0
        return len(ends) + any(store.open(key).shape[0] > last for key in steps if key in keys)


def missing_chunks(store: ZarrStore, arrays: Mapping[str, Any]) -> Iterator[tuple[str, int, int]]:
    """The key, missing chunks, and all chunks of each array that lacks some, which read as its fill value."""
    stored: Counter[str] = Counter()
    for name in store:
        key = next((key for key in arrays if name.startswith(f"{key}/")), None)
        if key is not None and not name.rpartition("/")[2].startswith((".z", "zarr.json")):
            stored[key] += 1
    for key, array in arrays.items():
        total = math.prod(-(-size // chunk) for size, chunk in zip(array.shape, array.chunks, strict=True))
        if total > stored[key]:
            yield key, total - stored[key], total
