"""Zarr stores with episodes, read with the `zarr` library (2.18 or 3): a directory or a zip file, also in a bucket.

    data/img              (steps, 96, 96, 3)
    data/action           (steps, 2)
    meta/episode_ends     (episodes,)       the step after the last of each episode

The path of a store is that of its zip file, or of the metadata of `meta/episode_ends`. Arrays are opened by key.
Consolidated metadata, which may contradict the arrays' own, is never read.
"""

from __future__ import annotations

import functools
import json
import math
import zipfile
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from rlds_beam import naming, storage
from rlds_beam.errors import BucketError, needs
from rlds_beam.formats.profiles.containers import Container, Leaf, plain_dtype, plain_values
from rlds_beam.text import printable, shorten
from rlds_beam.typing import Array

METADATA = (".zarray", "zarr.json")
"""The metadata file of an array, in version 2 and 3 of the format."""

OWN = "rlds_beam"
"""The attribute of a store's root in which `--to=zarr` keeps the fields."""

ENDS = "meta/episode_ends"
"""The array with the end of each episode."""

_CODECS = {
    *("adler32", "blosc", "bytes", "bz2", "crc32", "crc32c", "delta", "endian", "gzip", "lz4", "lzma", "shuffle"),
    *("sharding_indexed", "transpose", "vlen-bytes", "vlen-utf8", "zlib", "zstd"),
    *("imagecodecs_jpeg2k", "imagecodecs_jpegxl", "imagecodecs_png"),
}
"""Codecs and filters that decode bytes and do nothing else. `pickle` would run the store's code."""


class ZarrStore(Mapping[str, Any]):
    """The files of a store by key (`data/img/0.0.0.0`), which zarr reads as a store.

    Attributes:
      blosc: the keys of arrays whose chunks Blosc compressed.
    """

    def __init__(self, root: str, archive: zipfile.ZipFile | None):
        self.root = root
        self.blosc: set[str] = set()
        self._archive = archive

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

    def read_json(self, key: str) -> dict[str, Any]:
        """A JSON object. Raises OSError if there is none."""
        try:
            return dict(json.loads(self.read(key) or b""))
        except (TypeError, ValueError) as error:
            raise OSError(f"{key} is not a JSON object: {shorten(error)}") from None

    def __getitem__(self, key: str) -> Any:
        if (content := self.read(key)) is None:
            raise KeyError(key)
        is_chunk = not key.endswith((*METADATA, ".zattrs")) and any(key.startswith(f"{name}/") for name in self.blosc)
        if is_chunk and (len(content) < 16 or int.from_bytes(content[12:16], "little") != len(content)):
            raise OSError(f"{key} is cut short")  # Blosc would read past its end
        if is_version_2():
            return content
        from zarr.core.buffer import default_buffer_prototype

        return default_buffer_prototype().buffer.from_bytes(content)

    def __iter__(self) -> Iterator[str]:
        return iter(self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    @functools.cached_property
    def sizes(self) -> dict[str, int]:
        """The stored size of each file."""
        if self._archive is None:
            return storage.sizes(self.root, below=True)
        return {info.filename: info.compress_size for info in self._archive.infolist() if not info.is_dir()}


@functools.cache
def is_version_2() -> bool:
    """Whether the `zarr` library has version 2, not 3. It then knows UMI's codecs of images."""
    with needs("zarr", "reading zarr stores needs zarr"):
        import zarr
        from imagecodecs.numcodecs import register_codecs

    register_codecs([codec for codec in _CODECS if codec.startswith("imagecodecs")], verbose=False)
    return bool(zarr.__version__.startswith("2."))


def _codec_names(about: Any) -> Iterator[str]:
    """The names of all codecs and filters in an array's metadata, also of those within shards."""
    for entry in [*(about.get("filters") or ()), about.get("compressor"), *(about.get("codecs") or ())]:
        if entry is not None:
            yield str(entry.get("id") or entry.get("name")).removeprefix("numcodecs.")
            inner = entry.get("configuration") or {}
            yield from _codec_names({"codecs": [*inner.get("codecs", ()), *inner.get("index_codecs", ())]})


def store_root(path: str) -> str:
    """The directory of the store whose `meta/episode_ends` has its metadata at a path; another path as it is."""
    return path[: path.rindex(f"/{ENDS}/")] if path.endswith(METADATA) else path


def open_store(path: str) -> ZarrStore:
    """Opens a zip file, or the store of a `store_root`. Raises OSError if it cannot be read."""
    is_version_2()
    if path.endswith(METADATA):
        return ZarrStore(store_root(path), None)
    return ZarrStore(path, _open_zip(path, file_version(path)))


def file_version(path: str) -> object:
    """A value that changes with a file's content; empty if unknown, as for a store of several files."""
    if path.endswith(METADATA):
        return None
    return storage.stamp(path) if storage.scheme(path) is None else storage.checksum(path)


@functools.lru_cache(maxsize=1)
def _open_zip(path: str, version: object) -> zipfile.ZipFile:
    """The zip file that was opened last: reading the names of a million members takes seconds."""
    del version
    try:
        return zipfile.ZipFile(path if storage.scheme(path) is None else storage.open_read(path))
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise OSError(f"{path} is not a complete zip file: {printable(error)}") from error


class ZarrContainer(Container):
    """An open zarr store. Keeps the last chunk of each array, in which the next episode may begin; zarr keeps none."""

    def __init__(self, store: ZarrStore):
        super().__init__(store.root)
        self._store = store
        self._arrays: dict[str, Any] = {}
        self._kept: dict[str, tuple[int, Array]] = {}

    @functools.cached_property
    def leaves(self) -> Mapping[str, Leaf]:  # type: ignore[override]
        found = {}
        for file in self._store.sizes:
            key, _, name = file.rpartition("/")
            if name not in METADATA or not key.startswith(("data/", "meta/")) or not naming.is_file_path(key):
                continue
            if name == "zarr.json" and self._store.read_json(file).get("node_type") != "array":
                continue
            try:
                array = self._open(key, name)
            except OSError:
                if key.startswith("meta/") and key != ENDS:  # nothing that an episode needs
                    continue
                raise
            found[key] = Leaf(tuple(array.shape), plain_dtype(array.dtype), "", array.chunks[0])
        return dict(sorted(found.items()))

    @property
    def notes(self) -> Collection[str]:  # type: ignore[override]
        """The arrays that lack chunks, which read as their fill values."""
        found = []
        for name, array in self._arrays.items():
            # zarr 3 counts those of an array whose name begins with this one's.
            sizes = zip(array.shape, getattr(array, "shards", None) or array.chunks, strict=True)
            expected = math.prod(-(-total // length) for total, length in sizes)
            files = (key for key in self._store.sizes if key.startswith(f"{name}/"))
            missing = expected - sum(not key.endswith((*METADATA, ".zattrs")) for key in files)
            if array.shape[0] and missing > 0:
                found.append(f"{name} lacks {missing:,} of {expected:,} chunks (read as {array.fill_value})")
        return found

    def _open(self, key: str, metadata: str) -> Any:
        """The array at a key (zarr's). Raises OSError if it is damaged or not supported."""
        import zarr

        if metadata == "zarr.json" and is_version_2():
            raise OSError(f"{key} has version 3 of the format; zarr {zarr.__version__} cannot read it: install zarr 3")
        codecs = [*_codec_names(self._store.read_json(f"{key}/{metadata}"))]
        if unknown := sorted(set(codecs) - _CODECS):
            raise OSError(f"{key} is stored with the codec {printable(unknown[0])}, which is not supported")
        if codecs[-1:] == ["blosc"]:
            self._store.blosc.add(key)
        try:
            stores = zarr.storage
            store = stores.KVStore(self._store) if is_version_2() else stores.MemoryStore(self._store, read_only=True)
            array = zarr.open_array(store=store, path=key, mode="r")
        except Exception as error:  # zarr raises what its parts raise
            raise OSError(f"{key}: {shorten(error)}") from error
        if not array.shape or array.dtype.kind not in "biufOSUT":
            raise OSError(f"{key} holds {array.dtype}{list(array.shape)}, expected rows of numbers or text")
        self._arrays[key] = array
        return array

    @functools.cached_property
    def _attributes(self) -> dict[str, Any]:
        return self._store.read_json(".zattrs") if ".zattrs" in self._store.sizes else {}

    def attribute(self, place: str) -> Any:
        value = self._attributes[place.removeprefix("/@")]
        return value.encode() if isinstance(value, str) else value

    def has(self, name: str) -> bool:
        return name in self.leaves or name.removeprefix("/@") in self._attributes

    def read(self, name: str, rows: slice = slice(None)) -> Array:
        leaf = self.leaves[name]
        total, length = leaf.shape[0], leaf.chunk
        start, stop = rows.indices(total)[:2]
        pieces = []
        for i in range(start // length, -(-stop // length)):
            kept = self._kept.pop(name, None)  # frees it before the next one is read
            if kept is None or kept[0] != i:
                kept = i, self._decode(name, i * length, min((i + 1) * length, total))
            self._kept[name] = kept
            pieces.append(kept[1][max(start - i * length, 0) : stop - i * length])
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces) if pieces else np.zeros((0, *leaf.shape[1:]), leaf.dtype)

    def _decode(self, name: str, start: int, stop: int) -> Array:
        try:
            return plain_values(np.asarray(self._arrays[name][start:stop]))
        except (BucketError, MemoryError):
            raise
        except Exception as error:  # any codec's
            raise OSError(f"rows {start:,} to {stop:,} of {name} cannot be decoded: {shorten(error)}") from error
