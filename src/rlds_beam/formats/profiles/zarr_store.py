"""Zarr stores with episodes, read with the `zarr` library (2.18 or 3): a directory or a zip file, also in a bucket.

    data/img              (steps, 96, 96, 3)
    data/action           (steps, 2)
    meta/episode_ends     (episodes,)       the step after the last of each episode

The path of a store is that of its zip file, or of the metadata of `meta/episode_ends`. Arrays are opened by key.
Consolidated metadata, which may contradict the arrays' own, is never read.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import weakref
import zipfile
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import numpy as np

from rlds_beam import naming, storage
from rlds_beam.errors import BucketError, UsageError, needs
from rlds_beam.formats.profiles.containers import Container, Leaf, as_bytes
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


class ZarrStore(MutableMapping[str, Any]):
    """The files of a store by key (`data/img/0.0.0.0`), which zarr reads as a store."""

    def __init__(self, root: str, archive: zipfile.ZipFile | None):
        self.root = root
        self._archive = archive
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

    def __getitem__(self, key: str) -> Any:
        if (content := self.read(key)) is None:
            raise KeyError(key)
        is_chunk = not key.endswith((*METADATA, ".zattrs")) and any(key.startswith(f"{one}/") for one in self._blosc)
        if is_chunk and (len(content) < 16 or int.from_bytes(content[12:16], "little") != len(content)):
            raise OSError(f"{key} is cut short")  # Blosc would read past its end
        if is_version_2():
            return content
        from zarr.core.buffer import default_buffer_prototype

        return default_buffer_prototype().buffer.from_bytes(content)

    def __setitem__(self, key: str, value: Any) -> None:
        raise TypeError("the store is read-only")

    def __delitem__(self, key: str) -> None:
        raise TypeError("the store is read-only")

    def __iter__(self) -> Iterator[str]:
        return iter(self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    @functools.cached_property
    def sizes(self) -> dict[str, int]:
        """The stored size of each file."""
        if self._archive is not None:
            return {info.filename: info.compress_size for info in self._archive.infolist() if not info.is_dir()}
        if storage.scheme(self.root) is not None:
            found = storage.list_sizes("**", self.root)
        else:
            found = {}
            for directory, _, names in os.walk(self.root):
                found |= {path: os.path.getsize(path) for path in (os.path.join(directory, name) for name in names)}
        return {path[len(self.root) :].lstrip("/"): size for path, size in sorted(found.items())}

    def attributes(self) -> dict[str, Any]:
        """The attributes of the root. Raises OSError if they are damaged."""
        if (content := self.read(".zattrs")) is not None:
            return _parse(content, ".zattrs")
        return dict(_parse(self.read("zarr.json") or b"{}", "zarr.json").get("attributes") or {})

    def keys_of_arrays(self) -> list[str]:
        """The keys of the arrays below `data` and `meta`, sorted."""
        described = (key.rpartition("/")[::2] for key in self.sizes)
        found = {key: name for key, name in described if name in METADATA and naming.is_file_path(key)}
        return sorted(
            key
            for key, name in found.items()
            if key.startswith(("data/", "meta/"))
            and (name == ".zarray" or _parse(self.read(f"{key}/{name}") or b"", key).get("node_type") == "array")
        )

    def open(self, key: str) -> Any:
        """The array at a key (zarr's). Raises OSError if it is damaged or not supported."""
        import zarr

        name = next((name for name in METADATA if self.read(f"{key}/{name}") is not None), METADATA[0])
        about = _parse(self.read(f"{key}/{name}") or b"", f"{key}/{name}")
        if name == "zarr.json" and is_version_2():
            raise OSError(
                f"{key} has version 3 of the format, which zarr {zarr.__version__} cannot read: install zarr 3"
            )
        codecs = [*_codec_names(about)]
        if unknown := sorted(set(codecs) - _CODECS):
            raise OSError(f"{key} is stored with the codec {printable(unknown[0])}, which is not supported")
        if codecs[-1:] == ["blosc"]:
            self._blosc.add(key)
        try:
            store = self if is_version_2() else zarr.storage.MemoryStore(self, read_only=True)
            array = zarr.open_array(store=store, path=key, mode="r")
        except Exception as error:  # zarr raises what its parts raise
            raise OSError(f"{key}: {shorten(error)}") from error
        if not array.shape or array.dtype.kind not in "biufOSUT":
            raise OSError(f"{key} holds {array.dtype}{list(array.shape)}, expected rows of numbers or text")
        return array


@functools.cache
def is_version_2() -> bool:
    """Whether the `zarr` library has version 2, not 3. It then knows UMI's codecs of images."""
    with needs("zarr", "reading zarr stores needs zarr"):
        import zarr
        from imagecodecs.numcodecs import register_codecs

    register_codecs([codec for codec in _CODECS if codec.startswith("imagecodecs")], verbose=False)
    return bool(zarr.__version__.startswith("2."))


def _parse(content: bytes, where: str) -> dict[str, Any]:
    try:
        return dict(json.loads(content))
    except (TypeError, ValueError) as error:
        raise OSError(f"{where} is not a JSON object: {shorten(error)}") from None


def _codec_names(about: Any) -> Iterator[str]:
    """The names of all codecs and filters in an array's metadata, also of those within shards."""
    for entry in [*(about.get("filters") or ()), about.get("compressor"), *(about.get("codecs") or ())]:
        if entry is not None:
            yield str(entry.get("id") or entry.get("name")).removeprefix("numcodecs.")
            inner = entry.get("configuration") or {}
            yield from _codec_names({"codecs": [*inner.get("codecs", ()), *inner.get("index_codecs", ())]})


@contextlib.contextmanager
def open_store(path: str) -> Iterator[ZarrStore]:
    """Opens the store of a `shard_path`. Raises OSError if it cannot be read."""
    is_version_2()
    if not path.endswith(".zip"):
        yield ZarrStore(path[: -len(f"/{ENDS}/") - len(storage.split(path)[1])], None)
        return
    version = storage.stamp(path) if storage.scheme(path) is None else storage.checksum(path)  # empty if unknown
    yield ZarrStore(path, _open_cached(path, version) if version else _zip_file(path))


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
    places = [root] if root.endswith(".zip") else [storage.join(root, *ENDS.split("/"), name) for name in METADATA]
    for path in places:
        if storage.exists(path):
            return path
    if root.endswith(".zip"):
        raise UsageError(f"{root}: no such file")
    raise UsageError(f"{root} is not a zarr store with episodes: it has no {ENDS}")


class ZarrContainer(Container):
    """An open zarr store. Keeps the last chunk of each array, in which the next episode may begin; zarr keeps none."""

    def __init__(self, store: ZarrStore):
        super().__init__(store.root)
        self.store = store
        self._arrays: dict[str, Any] = {}
        self._kept: dict[str, tuple[int, Array]] = {}

    def open(self, name: str) -> Any:
        """The array at a key (zarr's). Raises OSError if it is damaged or not supported."""
        if name not in self._arrays:
            self._arrays[name] = self.store.open(name)
        return self._arrays[name]

    @functools.cached_property
    def leaves(self) -> Mapping[str, Leaf]:
        found = {}
        for key in self.store.keys_of_arrays():
            try:
                array = self.open(key)
            except OSError:
                if key.startswith("meta/") and key != ENDS:  # nothing that an episode needs
                    continue
                raise
            dtype = np.dtype(object) if array.dtype.kind in "OSUT" else array.dtype.newbyteorder("=")
            found[key] = Leaf(tuple(array.shape), dtype, "", array.chunks[0])
        return found

    def attribute(self, place: str) -> Any:
        if place != f"/@{OWN}":
            raise KeyError(f"there is no {place}")
        return self.store.attributes()[OWN]

    def has(self, name: str) -> bool:
        return name in self.leaves or (name == f"/@{OWN}" and OWN in self.store.attributes())

    def read(self, name: str, rows: slice | None = None) -> Array:
        array = self.open(name)
        total, length = array.shape[0], array.chunks[0]
        start, stop = (rows or slice(None)).indices(total)[:2]
        pieces = []
        for i in range(start // length, -(-stop // length)):
            kept = self._kept.pop(name, None)  # frees it before the next one is read
            if kept is None or kept[0] != i:
                kept = i, self._decode(name, array, i * length, min((i + 1) * length, total))
            self._kept[name] = kept
            pieces.append(kept[1][max(start - i * length, 0) : stop - i * length])
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces) if pieces else np.zeros((0, *array.shape[1:]), self.leaves[name].dtype)

    def _decode(self, name: str, array: Any, start: int, stop: int) -> Array:
        try:
            values = np.asarray(array[start:stop])
            is_text = values.dtype.kind in "OSUT"
            return as_bytes(values) if is_text else values.astype(values.dtype.newbyteorder("="), copy=False)
        except (BucketError, MemoryError):
            raise
        except Exception as error:  # any codec's
            raise OSError(f"rows {start:,} to {stop:,} of {name} cannot be decoded: {shorten(error)}") from error

    def notes(self) -> Iterator[str]:
        """The arrays that lack chunks, which read as their fill values."""
        for name, leaf in self.leaves.items():
            array = self.open(name)
            # zarr 3 counts those of an array whose name begins with this one's.
            sizes = zip(array.shape, getattr(array, "shards", None) or array.chunks, strict=True)
            expected = math.prod(-(-total // length) for total, length in sizes)
            files = (key for key in self.store.sizes if key.startswith(f"{name}/"))
            missing = expected - sum(not key.endswith((*METADATA, ".zattrs")) for key in files)
            if leaf.shape[0] and missing > 0:
                yield f"{name} lacks {missing:,} of {expected:,} chunks (read as {array.fill_value})"
