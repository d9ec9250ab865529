"""Reads format and size from an image's header, and detects damage that shows without decoding.

The schema does not give the format: TFDS stores image files unchanged.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

_PNG_CHUNK = struct.Struct(">I4s")  # size of the content, kind
MAX_PIXELS = 1 << 24
"""Default maximum pixels of an image to decode (4096x4096, 50 MB of RGB); `--max_image_pixels` changes it. A few kB of
PNG, JPEG, or video can decode to any number of pixels."""

_allowed = MAX_PIXELS  # the maximum of this process, see allow_pixels

IMAGE_FILES = ("png", "jpeg")
"""The encodings of fields whose values are image files."""

JPEG_END = b"\xff\xd9"
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # the SOF markers


class UndecodableImageError(ValueError):
    """The bytes are not an image that TFDS would decode."""


class ImageTooLargeError(UndecodableImageError):
    """The image has more pixels than may be decoded."""


class ImageHeader(NamedTuple):
    """The size of an image in pixels."""

    height: int
    width: int


_known = (b"none", ImageHeader(0, 0))
"""The bytes before the last JPEG's first pixels, and its size. Images from one camera start with the same bytes."""


def jpeg_start(data: bytes) -> bytes:
    """All segments before the first pixels, including tables; empty if they are not well formed."""
    at, end = 2, len(data)
    while at + 4 <= end and data[at] == 0xFF and 0xC0 <= data[at + 1] <= 0xFE and not 0xD0 <= data[at + 1] <= 0xD9:
        kind, at = data[at + 1], at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if kind == 0xDA:
            return data[:at] if at < end else b""
    return b""


def allow_pixels(count: int) -> None:
    """Lets this process decode images of up to `count` pixels, because its user said so (`--max_image_pixels`)."""
    global _allowed
    _allowed = max(_allowed, count)


def check_decodable(data: bytes, declared: int = 0) -> None:
    """Checks that decoding an image does not take too much memory, from its header. Everything that decodes an image
    calls it first, also for images that break a rule.

    Args:
      data: the image.
      declared: the number of pixels that the schema declares, or that memory was allocated for; always allowed.

    Raises:
      ImageTooLargeError: it has more pixels than allowed.
      UndecodableImageError: it has no header.
    """
    if data.startswith(_known[0]):
        height, width = _known[1]
    elif data.startswith(b"\xff\xd8\xff"):
        height, width = _jpeg_size(data)
    elif data.startswith(b"\x89PNG\r\n\x1a\n"):
        if len(data) < 33:
            raise UndecodableImageError("the PNG is cut short")
        width, height = struct.unpack_from(">II", data, 16)
    else:
        height, width = read_image_header(data)
    if height * width > max(_allowed, declared):
        raise ImageTooLargeError(f"{height}x{width} pixels, but at most {max(_allowed, declared)} are allowed")


def alike(header: ImageHeader) -> bytes:
    """The start of JPEGs like the one that `header` was just read from; empty if unknown."""
    return _known[0] if header is _known[1] else b""


def read_image_header(data: bytes) -> ImageHeader:
    """Reads the size of an image; raises UndecodableImageError if TensorFlow would not decode it."""
    global _known
    if data.startswith(_known[0]) and data.endswith(JPEG_END):
        return _known[1]
    if data.startswith(b"\xff\xd8\xff"):
        header, start = _jpeg_size(data), jpeg_start(data)
        if not data.endswith(JPEG_END) and data.rfind(JPEG_END, _jpeg_frame(data)) < 0:
            raise UndecodableImageError("the JPEG is cut short")
        if start:
            _known = start, header
        return header
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        png_chunks(data)  # checks their checksums, which costs a fraction of decoding
        width, height = struct.unpack_from(">II", data, 16)
        return ImageHeader(height, width)
    raise UndecodableImageError(f"not a PNG or JPEG image ({len(data)} bytes, starting with {data[:8]!r})")


class PixelFormat(NamedTuple):
    """The dtype of a pixel (`uint8` or `uint16`) and its number of channels (1, 3, or 4) as stored."""

    dtype: str
    channels: int


def read_pixel_format(data: bytes) -> PixelFormat:
    """Reads the pixel format of a PNG or JPEG whose header `read_image_header` has accepted."""
    if data.startswith(b"\x89PNG"):
        bits, color = data[24], data[25]
        channels = {0: 1, 2: 3, 3: 3, 4: 4, 6: 4}.get(color, 3)
        return PixelFormat("uint16" if bits == 16 else "uint8", channels)
    if data.startswith(b"\xff\xd8\xff"):
        frame = _jpeg_frame(data)
        return PixelFormat("uint8", 1 if data[frame + 9 : frame + 10] == b"\x01" else 3)
    return PixelFormat("uint8", 3)


def png_chunks(data: bytes) -> list[tuple[bytes, int, int]]:
    """All chunks as (kind, start, end) of their contents; raises UndecodableImageError."""
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
        # libpng ignores damage in an ancillary chunk (lowercase first letter).
        if not kind[0] & 0x20:
            # libdeflate's is much faster, but has more overhead per call.
            crc32 = zlib.crc32 if size < 4096 else imagecodecs.deflate_crc32
            if crc32(data[start - 4 : end]) != int.from_bytes(data[end:at], "big"):
                raise UndecodableImageError(f"the PNG's {kind!r} is damaged")
        chunks.append((kind, start, end))
    return chunks


def _jpeg_size(data: bytes) -> ImageHeader:
    """Reads the size as the decoder does, which can differ for a malformed JPEG."""
    import simplejpeg

    try:
        height, width, *_ = simplejpeg.decode_jpeg_header(data, strict=False)
    except (ValueError, KeyError):  # also for chroma subsampling without a name
        height, width = struct.unpack_from(">HH", data, _jpeg_frame(data, strictly=True) + 5)
    return ImageHeader(int(height), int(width))


def _jpeg_frame(data: bytes, *, strictly: bool = False) -> int:
    """The offset of the frame header (SOF); `strictly` accepts only well-formed segments, where all decoders agree."""
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
    raise UndecodableImageError("the JPEG has no header or is cut short")
