"""What the first bytes of an image say: what it is (the schema does not: TFDS keeps the file that it was given) and its
size; and whether it is whole, as far as that shows without decoding.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

_PNG_CHUNK = struct.Struct(">I4s")  # size of the content, kind
MOST_PIXELS = 1 << 24
"""Pixels of an image that is decoded (4096x4096, 50 MB of RGB), unless `--max_image_pixels` says otherwise. A few kB of
a PNG, JPEG, or video may hold any number of them."""

JPEG_END = b"\xff\xd9"
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # the SOF markers


class UndecodableImageError(ValueError):
    """The bytes are not an image that TFDS would decode."""


class ImageHeader(NamedTuple):
    """What the first bytes of an image say: its size in pixels."""

    height: int
    width: int


class _KnownJpeg(NamedTuple):
    """A JPEG that was looked at: all before the first pixels, and the size. Those of a camera begin alike."""

    start: bytes
    header: ImageHeader


_known = _KnownJpeg(b"none", ImageHeader(0, 0))


def jpeg_start(data: bytes) -> bytes:
    """All segments up to the first pixels, tables and all; nothing where they are not well formed."""
    at, end = 2, len(data)
    while at + 4 <= end and data[at] == 0xFF and 0xC0 <= data[at + 1] <= 0xFE and not 0xD0 <= data[at + 1] <= 0xD9:
        kind, at = data[at + 1], at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if kind == 0xDA:
            return data[:at] if at < end else b""
    return b""


def alike(header: ImageHeader) -> bytes:
    """How all JPEGs begin that are as the one that `header` was just read of; nothing where that is not known."""
    return _known.start if header is _known.header else b""


def read_image_header(data: bytes) -> ImageHeader:
    """The size of an image; raises UndecodableImageError where TensorFlow would not decode it."""
    global _known
    if data.startswith(_known.start) and data.endswith(JPEG_END):
        return _known.header
    if data.startswith(b"\xff\xd8\xff"):
        header, start = _jpeg_header(data), jpeg_start(data)
        if start:
            _known = _KnownJpeg(start, header)
        return header
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return _png_header(data)
    try:
        if data.startswith(b"BM"):
            width, height = struct.unpack_from("<ii", data, 18)
            return ImageHeader(abs(height), abs(width))
    except struct.error:
        raise UndecodableImageError(f"the image ends after {len(data)} bytes") from None
    raise UndecodableImageError(f"no PNG, JPEG or BMP ({len(data)} bytes beginning {data[:8]!r})")


def _png_header(data: bytes) -> ImageHeader:
    """Walks the chunks to the end: their checksums tell damage at a fraction of a decoding."""
    png_chunks(data)
    width, height = struct.unpack_from(">II", data, 16)
    return ImageHeader(height, width)


def png_chunks(data: bytes) -> list[tuple[bytes, int, int]]:
    """The chunks to the end: kind, where its content begins and ends; raises UndecodableImageError."""
    if data[12:16] != b"IHDR" or len(data) < 33:
        raise UndecodableImageError("the PNG has no header")
    import imagecodecs

    chunks = []
    at, kind, length = 8, b"", len(data)
    while kind != b"IEND":
        if at + 12 > length:
            raise UndecodableImageError("the PNG is cut short")
        size, kind = _PNG_CHUNK.unpack_from(data, at)
        start, end = at + 8, at + 8 + size
        at = end + 4
        if at > length:
            raise UndecodableImageError("the PNG is cut short")
        # Damage in an ancillary chunk (small first letter) does not keep libpng from decoding.
        if not kind[0] & 0x20:
            # libdeflate's is the faster by far, but a call of it costs more.
            crc32 = zlib.crc32 if size < 4096 else imagecodecs.deflate_crc32
            if crc32(data[start - 4 : end]) != int.from_bytes(data[end:at], "big"):
                raise UndecodableImageError(f"the PNG's {kind!r} is damaged")
        chunks.append((kind, start, end))
    return chunks


def _jpeg_header(data: bytes) -> ImageHeader:
    """What the decoder itself will take for the size: of a JPEG that is not well formed it may be another one."""
    import simplejpeg

    try:
        height, width, *_ = simplejpeg.decode_jpeg_header(data, strict=False)
    except (ValueError, KeyError):  # also for chroma subsampled in a way that it has no name for
        height, width = struct.unpack_from(">HH", data, _jpeg_frame(data, strictly=True) + 5)
    if not data.endswith(JPEG_END) and data.rfind(JPEG_END, _jpeg_frame(data)) < 0:
        raise UndecodableImageError("the JPEG is cut short")
    return ImageHeader(int(height), int(width))


def _jpeg_frame(data: bytes, *, strictly: bool = False) -> int:
    """Where the frame header (SOF) begins; `strictly`: only where every decoder agrees, segment after segment."""
    at, end = 2, len(data)
    while at + 9 <= end:
        marker = data[at + 1] if data[at] == 0xFF else 0
        size = int.from_bytes(data[at + 2 : at + 4], "big")
        if marker in _JPEG_FRAMES:
            return at
        if marker == 0xFF:  # a fill byte
            at += 1
        elif marker > 0x01 and not 0xD0 <= marker <= 0xD9 and size >= 2:
            at += 2 + size
        elif strictly:
            break
        else:
            at += 1  # libjpeg skips bytes between markers
    raise UndecodableImageError("the JPEG has no header, or is cut short")
