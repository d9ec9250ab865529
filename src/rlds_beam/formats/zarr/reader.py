"""Read rows of zarr arrays: only the chunks that hold them, each once."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from rlds_beam.encoding.base import Damage
from rlds_beam.errors import BucketError
from rlds_beam.formats.arrays.array_episodes import ArrayFormat, Arrays
from rlds_beam.formats.arrays.hdf5_reader import UNREADABLE
from rlds_beam.formats.arrays.parts import encode_frames
from rlds_beam.formats.zarr.arrays import CodecError, ZarrArray, decode_chunk, most_encoded, read_array
from rlds_beam.formats.zarr.stores import ENDS, ZarrStore, is_zip, open_store, read_version, store_root
from rlds_beam.text import shorten
from rlds_beam.typing import Array


class RowReader:
    """Reads rows of an array. Keeps the last chunks: the next episode may begin in them."""

    def __init__(self, store: ZarrStore, array: ZarrArray):
        self._store, self.array = store, array
        self._kept: tuple[int, Array] | None = None

    def pieces(self, start: int, stop: int) -> Iterator[Array]:
        """The rows, a chunk at a time, in the machine's byte order. Text is an object array of bytes.

        Raises:
          OSError: a chunk is damaged, or there are fewer rows; the message names the array or the chunk.
        """
        rows, length = self.array.shape[0], self.array.chunks[0]
        if not 0 <= start <= stop <= rows:
            raise OSError(f"{self.array.key} has {rows:,} rows")
        for i in range(start // length, -(-stop // length)):
            first = i * length
            yield self._rows(i)[max(start - first, 0) : stop - first]

    def read(self, start: int, stop: int) -> Array:
        """The rows. See `pieces`."""
        pieces = list(self.pieces(start, stop))
        if not pieces:
            dtype: np.dtype[Any] = np.dtype(object) if self.array.is_text else self.array.dtype.newbyteorder("=")
            return np.zeros((0, *self.array.shape[1:]), dtype)
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _rows(self, i: int) -> Array:
        """The rows of the chunks with this first index."""
        if self._kept is None or self._kept[0] != i:
            self._kept = None  # frees it before the next one is read
            self._kept = i, _plain(self._read(i))
        return self._kept[1]

    def _read(self, i: int) -> Array:
        array = self.array
        length, sizes = array.chunks[0], array.shape[1:]
        if array.chunks[1:] == sizes:
            values = self._chunk((i, *([0] * len(sizes))))
            return np.full((length, *sizes), array.fill, array.dtype) if values is None else values
        rows = np.full((length, *sizes), array.fill, array.dtype)
        grid = [range(-(-size // chunk)) for size, chunk in zip(sizes, array.chunks[1:], strict=True)]
        for place in itertools.product(*grid):
            values = self._chunk((i, *place))
            if values is not None:
                starts = [index * chunk for index, chunk in zip(place, array.chunks[1:], strict=True)]
                into = rows[(slice(None), *(slice(at, at + c) for at, c in zip(starts, array.chunks[1:], strict=True)))]
                into[...] = values[tuple(slice(size) for size in into.shape)]
        return rows

    def _chunk(self, place: tuple[int, ...]) -> Array | None:
        array = self.array
        key = array.chunk_key(place)
        data = self._store.read(key, most_encoded(array.chunks, array.dtype))
        if data is None:
            return None
        try:
            return decode_chunk(data, array.codecs, array.chunks, array.dtype, array.axes)
        except CodecError as error:
            raise OSError(f"the chunk {key} cannot be decoded: {error}") from None


def _plain(values: Array) -> Array:
    """Numbers in the machine's byte order, or text as an object array of bytes."""
    if values.dtype.kind == "S":
        return values.astype(object)
    if values.dtype.kind == "U":
        flat = [_utf8(value) for value in values.reshape(-1)]
        return np.fromiter(flat, object, len(flat)).reshape(values.shape)
    if values.dtype == object:
        return values
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def _utf8(value: Any) -> bytes:
    try:
        return str(value).encode()
    except ValueError as error:  # half of a surrogate pair
        raise OSError(f"a text cannot be read: {error}") from None


_MAX_ENDS = 1 << 25
"""Maximum number of episodes of a store."""

_MAX_EPISODE_BYTES = 4 << 30
"""Maximum bytes of an episode: those of a record."""


def read_array_metadata(store: ZarrStore, key: str) -> ZarrArray:
    """The metadata of an array. Raises OSError if there is none."""
    array = read_array(store, key)
    if array is None:
        raise OSError(f"there is no {key}")
    return array


def read_ends(store: ZarrStore) -> Array:
    """The end of each episode, int64, ascending. Raises OSError if they are not ascending numbers from 0."""
    array = read_array_metadata(store, ENDS)
    if array.dtype.kind not in "iu" or len(array.shape) != 1:
        raise OSError(f"{ENDS} holds {array.dtype}{list(array.shape)}, expected a whole number for each episode")
    if array.shape[0] > _MAX_ENDS:
        raise OSError(f"{ENDS} claims {array.shape[0]:,} episodes; at most {_MAX_ENDS:,} are supported")
    ends = RowReader(store, array).read(0, array.shape[0])
    if len(ends) and int(ends.max()) >= 1 << 62:
        raise OSError(f"{ENDS} holds {ends.max()}, which cannot be a number of steps")
    ends = ends.astype(np.int64)
    wrong = np.flatnonzero(ends < np.concatenate([[0], ends[:-1]]))
    if len(wrong):
        i = int(wrong[0])
        before = int(ends[i - 1]) if i else 0
        raise OSError(f"{ENDS} is not ascending: episode {i:,} ends at {ends[i]:,}, after {before:,}")
    return ends


@dataclasses.dataclass(frozen=True)
class ZarrFormat(ArrayFormat):
    """Zarr stores with episodes. A store's path is that of `stores.shard_path`.

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
                    readers[key] = RowReader(store, read_array_metadata(store, key))
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
                if reader.array.row_bytes * (rows[1] - rows[0]) > _MAX_EPISODE_BYTES:
                    raise OSError(
                        f"its {rows[1] - rows[0]:,} rows of {key} are larger than {_MAX_EPISODE_BYTES >> 30} GB"
                    )
                if key in self.images:
                    arrays[key] = encode_frames(reader.pieces(*rows), "jpeg" if key in self.jpegs else "png")
                else:
                    arrays[key] = reader.read(*rows)
        except UNREADABLE as error:
            return Damage(i, i + 1, f"rows {first:,} to {end:,} cannot be read: {shorten(error)}", b"")
        return arrays


@functools.lru_cache(maxsize=64)
def _count(path: str, steps: tuple[str, ...], version: object) -> int:
    del version
    try:
        with open_store(store_root(path)) as store:
            ends = read_ends(store)
            arrays = [read_array(store, key) for key in steps]
    except (BucketError, *UNREADABLE) as error:
        raise error if isinstance(error, (OSError, BucketError)) else OSError(str(error)) from error
    last = int(ends[-1]) if len(ends) else 0
    return len(ends) + any(array is not None and array.shape[0] > last for array in arrays)
