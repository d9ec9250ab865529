"""Write zarr arrays (version 2 of the format) into a zip file, as bytes in order."""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Iterable, Iterator
from typing import IO, Any, TypeAlias, cast

import numpy as np

from rlds_beam.typing import Array

Member: TypeAlias = "tuple[str, bytes]"

OWN = "rlds_beam"
"""The attribute of a store's root that holds the fields, by which `--from=zarr` reads them back."""

ENDS = "meta/episode_ends"
"""The array with the end of each episode."""

CHUNK_BYTES = 2_000_000
"""Target size of a chunk, that of diffusion policy's `get_optimal_chunks`."""

BLOSC: dict[str, dict[str, Any]] = {
    "lz4": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 0, "blocksize": 0},
    "zstd": {"id": "blosc", "cname": "zstd", "clevel": 5, "shuffle": 2, "blocksize": 0},
}
"""The compressors that diffusion policy calls `default` and `disk`."""

JPEGXL: dict[str, Any] = {
    "id": "imagecodecs_jpegxl",
    "level": None,
    "effort": 3,
    "distance": None,
    "lossless": True,
    "decodingspeed": None,
    "photometric": None,
    "planar": None,
    "usecontainer": None,
    "index": None,
    "keeporientation": None,
    "numthreads": 1,
}
"""Lossless JPEG XL, with the options that UMI's `JpegXl` and imagecodecs' `Jpegxl` share."""


def compress(values: Array, compressor: dict[str, Any]) -> bytes:
    """A chunk as bytes. Deterministic."""
    import imagecodecs

    if compressor["id"] == "blosc":
        data: bytes = imagecodecs.blosc_encode(
            values.tobytes(),
            level=compressor["clevel"],
            compressor=compressor["cname"],
            shuffle=compressor["shuffle"],
            typesize=values.dtype.itemsize,
            numthreads=1,
        )
        return data
    image = values[0, ..., 0] if values.shape[-1] == 1 else values[0]
    image_bytes: bytes = imagecodecs.jpegxl_encode(image, effort=compressor["effort"], lossless=True, numthreads=1)
    return image_bytes


def metadata(
    key: str, shape: tuple[int, ...], rows: int, dtype: np.dtype[Any], compressor: dict[str, Any] | None
) -> Member:
    """The `.zarray` of an array whose chunks have `rows` rows."""
    content = {
        "chunks": [max(1, rows), *(max(1, size) for size in shape[1:])],
        "compressor": compressor,
        "dtype": dtype.str,
        "fill_value": 0 if dtype.kind in "biuf" else None,
        "filters": None,
        "order": "C",
        "shape": list(shape),
        "zarr_format": 2,
    }
    return f"{key}/.zarray", _json(content)


def group(key: str, attributes: dict[str, Any] | None = None) -> Iterator[Member]:
    """The metadata of a group; the root's key is empty."""
    prefix = f"{key}/" if key else ""
    yield f"{prefix}.zgroup", _json({"zarr_format": 2})
    if attributes is not None:
        yield f"{prefix}.zattrs", _json(attributes)


def _json(content: Any) -> bytes:
    return json.dumps(content, indent=4, sort_keys=True).encode()


def chunk_key(key: str, i: int, dimensions: int) -> str:
    """The key of the chunk with the first index i."""
    return f"{key}/{'.'.join([str(i), *['0'] * (dimensions - 1)])}"


def array_members(
    key: str,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    pieces: Iterable[bytes],
    compressor: dict[str, Any] | None,
    rows: int | None = None,
) -> Iterator[Member]:
    """An array, from its values in C order, in pieces of any size; a chunk is in memory.

    Args:
      key, shape, dtype: of the array.
      pieces: the bytes of all rows.
      compressor: the compressor; None stores the values as they are.
      rows: the rows of a chunk; by default those of about `CHUNK_BYTES`.
    """
    row_bytes = math.prod(shape[1:]) * dtype.itemsize
    if rows is None:
        rows = max(1, min(shape[0], -(-CHUNK_BYTES // max(row_bytes, 1))))
    yield metadata(key, shape, rows, dtype, compressor)
    if not row_bytes:
        return
    held, size, i = bytearray(), rows * row_bytes, 0
    for piece in pieces:
        held += piece
        while len(held) >= size:
            yield _chunk(key, i, shape, dtype, bytes(held[:size]), compressor)
            del held[:size]
            i += 1
    if held:
        yield _chunk(key, i, shape, dtype, bytes(held).ljust(size, b"\0"), compressor)


def _chunk(
    key: str, i: int, shape: tuple[int, ...], dtype: np.dtype[Any], data: bytes, compressor: dict[str, Any] | None
) -> Member:
    values = np.frombuffer(data, dtype)
    return chunk_key(key, i, len(shape)), data if compressor is None else compress(values, compressor)


class _Pieces(io.RawIOBase):
    """Keeps what is written until it is taken."""

    def __init__(self) -> None:
        self._held: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._held.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        data = b"".join(self._held)
        self._held.clear()
        return data


def zip_pieces(members: Iterable[Member]) -> Iterator[bytes]:
    """A zip file of these members, uncompressed. Its directory is in memory."""
    pieces = _Pieces()
    with zipfile.ZipFile(cast("IO[bytes]", pieces), "w") as archive:
        for name, data in members:
            info = zipfile.ZipInfo(name)  # of 1 January 1980, so that equal members are equal bytes
            info.external_attr = 0o100644 << 16
            archive.writestr(info, data)
            yield pieces.take()
    yield pieces.take()
