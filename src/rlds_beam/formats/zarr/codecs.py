"""Decode the chunks of zarr arrays with imagecodecs.

Codecs are named by the array's metadata, which anybody may have written, so only the codecs listed here are used.
numcodecs' `pickle` runs code, and is not one of them.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

import google_crc32c
import numpy as np

from rlds_beam.typing import Array

BYTES_CODECS = ("blosc", "bz2", "crc32c", "gzip", "lz4", "zlib", "zstd")
"""Compress bytes."""

IMAGE_CODECS = ("imagecodecs_jpeg2k", "imagecodecs_jpegxl", "imagecodecs_png")
"""Store a chunk as an image, or as several."""

TEXT_CODECS = ("vlen-bytes", "vlen-utf8")
"""Store values of varying length."""

_MOST_TEXT = 64 << 20
"""Maximum bytes of a chunk of text."""


def most_encoded(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """The most bytes that an encoded chunk needs: random bytes grow a little, images of random pixels by a third."""
    return (1 << 16) + 2 * (_MOST_TEXT if dtype.kind == "O" else math.prod(shape) * dtype.itemsize)


class CodecError(ValueError):
    """A chunk cannot be decoded."""


def decode_bytes(data: bytes, codec: str, size: int) -> bytes:
    """Undoes a codec of `BYTES_CODECS`.

    Args:
      data: the encoded bytes.
      codec: the codec.
      size: the most bytes that the result may have; no more is allocated.

    Raises:
      CodecError: they are damaged, or larger.
    """
    import imagecodecs

    if codec == "crc32c":
        if len(data) < 4 or google_crc32c.value(data[:-4]) != int.from_bytes(data[-4:], "little"):
            raise CodecError("the checksum is wrong")
        return data[:-4]
    if codec == "blosc":  # c-blosc trusts the sizes in the header
        if len(data) < 16 or struct.unpack_from("<I", data, 12)[0] != len(data):
            raise CodecError("it is cut short")
        if struct.unpack_from("<I", data, 4)[0] > size:
            raise CodecError("it is larger than its shape")
    decode: Callable[..., Any] = getattr(imagecodecs, f"{codec}_decode")
    more: dict[str, Any] = {"header": True} if codec == "lz4" else {"numthreads": 1} if codec == "blosc" else {}
    try:
        decoded: bytes = decode(data, out=bytearray(size), **more)
    except (RuntimeError, ValueError, TypeError, OverflowError, MemoryError) as error:
        raise CodecError(str(error)) from None
    return decoded


def decode_image(data: bytes, codec: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Decodes a chunk stored by a codec of `IMAGE_CODECS`. Raises CodecError."""
    import imagecodecs

    out = np.empty(_frames(shape), dtype)
    decode: Callable[..., Any] = getattr(imagecodecs, f"{codec.removeprefix('imagecodecs_')}_decode")
    more = {} if codec.endswith("png") else {"numthreads": 1}
    try:
        decode(data, out=out, **more)
    except (RuntimeError, ValueError, TypeError, OverflowError, MemoryError) as error:
        raise CodecError(str(error)) from None
    return out.reshape(shape)


def _frames(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape as codecs see it: a single image, or several."""
    frames, image = math.prod(shape[:-3]), shape[-3:]
    return image if frames == 1 else (frames, *image)


def decode_text(data: bytes, shape: tuple[int, ...]) -> Array:
    """Decodes values of varying length to an object array of bytes. Raises CodecError."""
    count, at = math.prod(shape), 4
    if len(data) < 4 + 4 * count or struct.unpack_from("<I", data)[0] != count:
        raise CodecError("its number of values does not match the shape of a chunk")
    values: list[bytes] = []
    for _ in range(count):
        length = int.from_bytes(data[at : at + 4], "little")
        value = bytes(data[at + 4 : at + 4 + length])
        if len(value) != length:
            raise CodecError("it is cut short")
        values.append(value)
        at += 4 + length
    return np.fromiter(values, object, count).reshape(shape)


def decode_chunk(
    data: bytes, codecs: tuple[str, ...], shape: tuple[int, ...], dtype: np.dtype[Any], axes: tuple[int, ...]
) -> Array:
    """The values of a chunk.

    Args:
      data: the stored bytes.
      codecs: the codecs, the last one applied first.
      shape: the shape of the chunk.
      dtype: the dtype of the values; object for text.
      axes: the order in which the axes are stored.

    Raises:
      CodecError: they are damaged.
    """
    stored = tuple(shape[axis] for axis in axes)
    size = math.prod(shape) * dtype.itemsize if dtype.kind != "O" else _MOST_TEXT
    values: Array | None = None
    for i, codec in enumerate(codecs):
        if codec in IMAGE_CODECS:
            values = decode_image(data, codec, stored, dtype)
        elif codec in TEXT_CODECS:
            values = decode_text(data, stored)
        else:  # a checksum may still follow the bytes
            data = decode_bytes(data, codec, size + 4 * (len(codecs) - i - 1))
    if values is None:
        if len(data) != size:
            raise CodecError(f"it has {len(data):,} bytes, expected {size:,}")
        values = np.frombuffer(data, dtype).reshape(stored)
    return values.transpose(np.argsort(axes)) if stored != shape or list(axes) != sorted(axes) else values
