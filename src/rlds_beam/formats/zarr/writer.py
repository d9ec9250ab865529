"""Write zarr arrays (version 2 of the format) into a zip file, as bytes in order."""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np

from rlds_beam.typing import Array

Member: TypeAlias = "tuple[str, bytes]"

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

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_EXTRA = struct.Struct("<2H3Q")
_END64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR = struct.Struct("<4sIQI")
_END = struct.Struct("<4s4H2IH")
_DATE = 0x21  # 1 January 1980, the format's earliest date
_FULL = 0xFFFFFFFF
_FILE = 0o100644 << 16


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


def zip_pieces(members: Iterable[Member]) -> Iterator[bytes]:
    """A zip file of these members, uncompressed. Its directory, about 100 bytes for each member, is in memory."""
    central, count, at = bytearray(), 0, 0
    for name, data in members:
        label, crc, size = name.encode(), zlib.crc32(data), len(data)
        header = _LOCAL.pack(b"PK\3\4", 20, 0x800, 0, 0, _DATE, crc, size, size, len(label), 0)
        large = at >= _FULL
        extra = _EXTRA.pack(1, 24, size, size, at) if large else b""
        sizes = (_FULL, _FULL) if large else (size, size)
        central += _CENTRAL.pack(
            b"PK\1\2",
            (3 << 8) + 45,
            45 if large else 20,
            0x800,
            0,
            0,
            _DATE,
            crc,
            *sizes,
            len(label),
            len(extra),
            0,
            0,
            0,
            _FILE,
            _FULL if large else at,
        )
        central += label + extra
        count += 1
        at += len(header) + len(label) + size
        yield header + label
        yield data
    yield bytes(central)
    size, end = len(central), at + len(central)
    if count >= 0xFFFF or end >= _FULL:
        yield _END64.pack(b"PK\6\6", _END64.size - 12, (3 << 8) + 45, 45, 0, 0, count, count, size, at)
        yield _LOCATOR.pack(b"PK\6\7", 0, end, 1)
    few = min(count, 0xFFFF)
    yield _END.pack(b"PK\5\6", 0, 0, few, few, min(size, _FULL), min(at, _FULL), 0)
