"""Images of an episode: encoded until a sink needs pixels.

The first bytes of an image say what it is, not the schema (TFDS keeps the file that it was given).
Pixels are those of `tf.image.decode_image`, which TFDS decodes with, bit for bit. simplejpeg and
imagecodecs give the same ones several times faster where the stored form is the usual one; TensorFlow
decodes the rest (palettes, 16 bits read as 8, alpha dropped, BMP, CMYK), and, where it is
installed, decides about bytes that the fast decoders refuse.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from rlds_beam.episodes.violations import BadEpisode, Violation
from rlds_beam.errors import needs

Array: TypeAlias = "np.ndarray[Any, Any]"

_PNG_CHANNELS = {0: 1, 2: 3, 6: 4}  # colour type -> channels, without palette and gray + alpha
# Chunks that do not affect how the pixels are stored. (libpng, as TensorFlow calls it, corrects no colours.)
_PNG_REMARKS = frozenset(b"IEND bKGD cHRM eXIf gAMA iCCP iTXt pHYs sBIT sRGB tEXt tIME zTXt".split())
_PNG_CHUNK = struct.Struct(">I4s")  # size of the content, kind
_PNG_END = b"\0\0\0\0IEND\xaeB`\x82"
_MOST_INFLATION = 1032  # bytes that deflate makes of one, at most
_STORED_BLOCK = 65535  # bytes in a block that is not compressed, at most
_JPEG_END = b"\xff\xd9"
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # the SOF markers


@dataclasses.dataclass(frozen=True)
class EncodedImages:
    """One image field of all steps, still PNG or JPEG.

    Attributes:
      data: object array [T] of `bytes`.
      shape: (height, width, channels) that the schema declares; None where unknown.
      dtype: numpy name of a pixel, `uint8` or `uint16`.
      encoding: how the schema says that they are stored, `png` or `jpeg`; each image says itself what it is.
    """

    data: Array
    shape: tuple[int | None, ...]
    dtype: str = "uint8"
    encoding: str = "jpeg"

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.data)

    def __getitem__(self, index: Any) -> EncodedImages:
        """Steps by slice, index array or mask: again EncodedImages (never one single image)."""
        return self.with_data(np.atleast_1d(self.data[index]))

    def with_data(self, data: Array) -> EncodedImages:
        """Other images of the same kind."""
        return dataclasses.replace(self, data=data)

    def image(self, step: int) -> bytes:
        """The image of a step."""
        data: bytes = self.data[step]
        return data

    def unlike(self, start: bytes, end: bytes) -> list[int]:
        """The steps whose images do not begin and end like this."""
        return [step for step, data in enumerate(self.data) if not (data.startswith(start) and data.endswith(end))]

    def decode(self, field: str | None = None) -> Array:
        """The pixels: [T, H, W, C] of `dtype`, as TFDS would decode them.

        Args:
          field: the field's path, for the violation.

        Raises:
          BadEpisode: undecodable_image, or image_too_large for one of another size than the
            schema or (where the schema leaves it open) than the first image.
        """
        if not len(self.data):
            return np.empty((0, *(d or 0 for d in self.shape)), self.dtype)
        pixels: Array | None = None
        for step, data in enumerate(self.data):
            try:
                image = _decode(data, self.shape[-1], self.dtype)
            except UndecodableImageError as error:
                raise BadEpisode(Violation("undecodable_image", f"{error} at step {step}", field, step)) from None
            if pixels is None:
                shape = tuple(s or d for s, d in zip(self.shape, image.shape, strict=True))
                pixels = np.empty((len(self.data), *shape), self.dtype)
            if image.shape != pixels.shape[1:]:
                detail = f"shape {image.shape} at step {step}, where {pixels.shape[1:]} is expected"
                raise BadEpisode(Violation("image_too_large", detail, field, step))
            pixels[step] = image
        assert pixels is not None
        return pixels


class UndecodableImageError(ValueError):
    """The bytes are not an image that TFDS would decode."""


class ImageHeader(NamedTuple):
    """What the first bytes of an image say: its size in pixels."""

    height: int
    width: int


def check_images(images: EncodedImages, max_pixels: int, field: str | None = None) -> list[Violation]:
    """What is wrong with a column of images, without decoding one.

    Args:
      images: the column.
      max_pixels: height x width that an image may have at most.
      field: the field's path, for the violations.

    Returns:
      At most one violation of each rule, at its first step: `undecodable_image` (no known image,
      a header cut short, an image without its end, a PNG whose checksums fail) and
      `image_too_large` (more pixels than allowed, or another size than the schema declares).
      Damage inside a JPEG's body shows only in `EncodedImages.decode`.
    """
    found: dict[str, Violation] = {}
    steps: Iterable[int] = range(len(images))
    good = b""  # how the last good JPEG begins
    if len(images):
        good = _check_image(images.image(0), 0, images.shape[:2], max_pixels, field, found)
        steps = images.unlike(good, _JPEG_END) if good else range(1, len(images))
    for step in steps:
        data = images.image(step)
        if not (good and data.startswith(good) and data.endswith(_JPEG_END)):
            good = _check_image(data, step, images.shape[:2], max_pixels, field, found) or good
    return list(found.values())


def _check_image(
    data: bytes,
    step: int,
    declared: tuple[int | None, ...],
    max_pixels: int,
    field: str | None,
    found: dict[str, Violation],
) -> bytes:
    """Adds what is wrong with one image; how all begin that are as good, nothing where that is not known."""
    try:
        header = read_image_header(data)
    except UndecodableImageError as error:
        found.setdefault("undecodable_image", Violation("undecodable_image", f"{error} at step {step}", field, step))
        return b""
    size = (header.height, header.width)
    detail = ""
    if header.height * header.width > max_pixels:
        detail = f"{header.height}x{header.width} pixels at step {step}, where at most {max_pixels} are allowed"
    elif any(want is not None and want != got for want, got in zip(declared, size, strict=True)):
        detail = f"{header.height}x{header.width} at step {step}, where the schema says {_size(declared)}"
    if detail:
        found.setdefault("image_too_large", Violation("image_too_large", detail, field, step))
        return b""
    return _known.start if header is _known.header else b""


def _size(declared: tuple[int | None, ...]) -> str:
    return "x".join("?" if d is None else str(d) for d in declared)


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


def read_image_header(data: bytes) -> ImageHeader:
    """The size of an image; raises UndecodableImageError where TensorFlow would not decode it."""
    global _known
    if data.startswith(_known.start) and data.endswith(_JPEG_END):
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
    _png_chunks(data)
    width, height = struct.unpack_from(">II", data, 16)
    return ImageHeader(height, width)


def _png_chunks(data: bytes) -> list[tuple[bytes, int, int]]:
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
    if not data.endswith(_JPEG_END) and data.rfind(_JPEG_END, _jpeg_frame(data)) < 0:
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


def _decode(data: bytes, channels: int | None, dtype: str) -> Array:
    """[H, W, C]: what `tf.image.decode_image(data, channels, dtype)` gives."""
    image = None
    try:
        if dtype == "uint8" and data.startswith(b"\xff\xd8\xff"):
            image = _fast_jpeg(data, channels)
        elif data.startswith(b"\x89PNG\r\n\x1a\n"):
            image = _fast_png(data, channels, dtype)
        else:
            read_image_header(data)
    except UndecodableImageError:
        if importlib.util.find_spec("tensorflow") is None:
            raise
    return _decode_with_tensorflow(data, channels, dtype) if image is None else image


def _fast_jpeg(data: bytes, channels: int | None) -> Array | None:
    """The pixels; None of a JPEG stored in a form that only TensorFlow reads as it does."""
    import simplejpeg

    try:
        if channels is None:
            channels = 1 if simplejpeg.decode_jpeg_header(data)[2] == "Gray" else 3
        if channels not in (1, 3) or simplejpeg.decode_jpeg_header(data)[2] in ("CMYK", "YCCK"):
            return None
        # The settings of tf.io.decode_jpeg.
        image: Array = simplejpeg.decode_jpeg(
            data, colorspace="RGB" if channels == 3 else "GRAY", fastdct=True, fastupsample=False
        )
    except (ValueError, KeyError) as error:  # KeyError: chroma subsampled in a way that it has no name for
        raise UndecodableImageError(f"the JPEG is damaged ({error})") from None
    return image


def _fast_png(data: bytes, channels: int | None, dtype: str) -> Array | None:
    """The pixels; None of a PNG stored in a form that only TensorFlow reads as it does."""
    if len(data) < 33:
        raise UndecodableImageError("the PNG is cut short")
    width, height, depth, colour, _, _, interlaced = struct.unpack_from(">IIBBBBB", data, 16)
    stored = _PNG_CHANNELS.get(colour)
    if depth != (8 if dtype == "uint8" else 16) or stored is None or channels not in (stored, None):
        return None
    # A header that claims more than so few bytes can hold gets no memory.
    if height * width * stored * (depth // 8) > _MOST_INFLATION * len(data):
        raise UndecodableImageError("the PNG has too few scanlines")
    import imagecodecs

    image: Array
    try:
        stream = _png_stream(data)
        if stream is None:
            return None
        if not stream:
            raise UndecodableImageError("the PNG has no scanlines")
        size = height * (1 + width * stored)
        # zlib looks back no further than its window, which the first byte tells; libdeflate does not mind it.
        if depth == 8 and not interlaced and min(size, 1 << 15) <= 256 << (stream[0] >> 4):
            image = imagecodecs.spng_decode(_inflated_png(data[:33], stream, size))
        else:
            image = imagecodecs.png_decode(data)
    except (RuntimeError, ValueError) as error:  # imagecodecs' own, and where it cannot read libpng's message
        raise UndecodableImageError(f"the PNG is damaged ({error})") from None
    if image.ndim == 2:
        image = image[..., None]
    return image


def _png_stream(data: bytes) -> bytes | None:
    """The compressed scanlines; None of a PNG with other chunks than those and comments."""
    _, *chunks = _png_chunks(data)
    kinds = [kind for kind, _, _ in chunks]
    count = kinds.count(b"IDAT")
    first = kinds.index(b"IDAT") if count else 0
    if not _PNG_REMARKS.issuperset(kinds[:first] + kinds[first + count :]):
        return None
    return b"".join([data[start:end] for _, start, end in chunks[first : first + count]])


def _inflated_png(header: bytes, stream: bytes, size: int) -> bytes:
    """The same PNG with its scanlines, `size` bytes, not compressed.

    Inflating is most of a PNG's decoding, and libdeflate does it in a third of the time that the
    zlib inside every PNG decoder takes. What is left to spng is to undo the filters.
    """
    import imagecodecs

    scanlines = imagecodecs.deflate_decode(stream, out=size)  # RuntimeError if there are more
    if len(scanlines) != size:
        raise UndecodableImageError("the PNG has too few scanlines")
    parts = [b"IDAT\x78\x01"]
    for start in range(0, size, _STORED_BLOCK):
        block = scanlines[start : start + _STORED_BLOCK]
        last = start + len(block) == size
        parts += struct.pack("<?HH", last, len(block), len(block) ^ 0xFFFF), block
    parts.append(stream[-4:])  # the checksum, which libdeflate has compared
    body = b"".join(parts)
    checksum = imagecodecs.deflate_crc32(body).to_bytes(4, "big")
    return b"".join((header, (len(body) - 4).to_bytes(4, "big"), body, checksum, _PNG_END))


def _decode_with_tensorflow(data: bytes, channels: int | None, dtype: str) -> Array:
    with needs("tf", "decoding a palette, 16-bit, CMYK or BMP image, or another number of channels, takes TensorFlow"):
        import tensorflow as tf

    try:
        image: Array = tf.image.decode_image(data, channels=channels or 0, dtype=tf.dtypes.as_dtype(dtype)).numpy()
    except (tf.errors.OpError, ValueError) as error:
        message = str(getattr(error, "message", error)).partition("} ")[2] or str(error)
        raise UndecodableImageError(f"TensorFlow cannot decode it ({message.strip()[:120]})") from None
    if image.ndim != 3:
        raise UndecodableImageError("it is a GIF, which TFDS decodes as a video")
    return image


def encode_jpeg(images: Array, quality: int = 95) -> list[bytes]:
    """uint8 [T, H, W, C] (C is 1 or 3) as T JPEGs, chroma halved as tf.io.encode_jpeg does.

    Raises:
      ValueError: another dtype, or another number of channels.
    """
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] not in (1, 3):
        raise ValueError(f"a JPEG holds uint8 images of 1 or 3 channels, not {images.dtype}{images.shape[1:]}")
    import simplejpeg

    colour = images.shape[-1] == 3
    return [
        simplejpeg.encode_jpeg(
            image,
            quality=quality,
            colorspace="RGB" if colour else "GRAY",
            colorsubsampling="420" if colour else "Gray",
        )
        for image in np.ascontiguousarray(images)
    ]


def encode_png(images: Array) -> list[bytes]:
    """uint8 or uint16 [T, H, W, C] (C is 1, 3 or 4) as T PNGs."""
    import imagecodecs

    return [
        imagecodecs.png_encode(image[..., 0] if image.shape[-1] == 1 else image)
        for image in np.ascontiguousarray(images)
    ]


@functools.lru_cache(maxsize=64)
def encode_zeros(shape: tuple[int, ...], dtype: str, encoding: str) -> bytes:
    """An image of zeros, (height, width, channels), as PNG or JPEG."""
    zeros = np.zeros((1, *shape), dtype)
    return (encode_jpeg(zeros) if encoding == "jpeg" else encode_png(zeros))[0]
