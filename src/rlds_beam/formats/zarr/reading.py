"""Read rows of zarr arrays: only the chunks that hold them, each once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from rlds_beam.formats.zarr.codecs import CodecError, decode_chunk, most_encoded
from rlds_beam.formats.zarr.metadata import ZarrArray
from rlds_beam.formats.zarr.stores import ZarrStore
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
