"""Decodes images to exactly the same pixels as TFDS, or as Pillow and OpenCV; encodes JPEG and PNG.

simplejpeg and imagecodecs decode the usual formats several times faster. TensorFlow decodes the rest (palettes, 16 bits
read as 8, alpha dropped, CMYK) and, if installed, has the last word on bytes that the fast decoders reject.
"""

from __future__ import annotations

import functools
import importlib.util
import struct
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np

from rlds_beam.errors import needs
from rlds_beam.images.headers import UndecodableImageError, check_decodable, png_chunks, read_image_header
from rlds_beam.typing import Array

Jpeg = Literal["fast", "accurate"]
"""libjpeg's integer DCT: the fast one, as TensorFlow, or the accurate one, as Pillow and OpenCV."""

_PNG_CHANNELS = {0: 1, 2: 3, 6: 4}  # color type -> channels, without palette and gray + alpha
# Chunks that do not affect how the pixels are stored. (As TensorFlow calls it, libpng does no color correction.)
_PNG_REMARKS = frozenset(b"IEND bKGD cHRM eXIf gAMA iCCP iTXt pHYs sBIT sRGB tEXt tIME zTXt".split())
_PNG_END = b"\0\0\0\0IEND\xaeB`\x82"
_MAX_INFLATION = 1032  # the maximum compression ratio of deflate
_STORED_BLOCK = 65535  # the maximum bytes of an uncompressed deflate block


def decode_image(
    data: bytes,
    channels: int | None,
    dtype: str,
    place: Array | None = None,
    jpeg: Jpeg = "fast",
    declared: int = 0,
) -> Array:
    """Decodes to [H, W, C], like `tf.image.decode_image(data, channels, dtype)`.

    Args:
      place: an array to decode into; used and returned if its shape fits.
      jpeg: the DCT of JPEGs; not of those in CMYK, which only TensorFlow decodes.
      declared: the number of pixels that the schema declares; always allowed.

    Raises:
      UndecodableImageError: the image is damaged, or too large (ImageTooLargeError).
    """
    image = None
    check_decodable(data, declared)
    try:
        if dtype == "uint8" and data.startswith(b"\xff\xd8\xff"):
            image = _libjpeg(data, channels, place, jpeg)
        elif data.startswith(b"\x89PNG\r\n\x1a\n"):
            image = _fast_png(data, channels, dtype)
        else:
            read_image_header(data)
    except UndecodableImageError:
        if importlib.util.find_spec("tensorflow") is None:
            raise
    return _decode_with_tensorflow(data, channels, dtype) if image is None else image


def _libjpeg(data: bytes, channels: int | None, place: Array | None, jpeg: Jpeg) -> Array | None:
    """Decodes a JPEG; None if only TensorFlow decodes its format correctly."""
    import simplejpeg

    try:
        height, width, stored, _ = simplejpeg.decode_jpeg_header(data)
    except (ValueError, KeyError) as error:
        raise UndecodableImageError(f"the JPEG is damaged ({error})") from None
    if channels is None:
        channels = 1 if stored == "Gray" else 3
    if channels not in (1, 3) or stored in ("CMYK", "YCCK"):
        return None
    if place is None or place.shape != (height, width, channels):
        return _decode_jpeg(data, channels, jpeg)
    _decode_jpeg(data, channels, jpeg, buffer=place)
    return place


def _decode_jpeg(data: bytes, channels: int, jpeg: Jpeg, **options: Any) -> Array:
    """Decodes a JPEG; with the fast DCT, the settings of tf.io.decode_jpeg."""
    import simplejpeg

    colors, fast = "RGB" if channels == 3 else "GRAY", jpeg == "fast"
    try:
        image: Array = simplejpeg.decode_jpeg(data, colorspace=colors, fastdct=fast, fastupsample=False, **options)
    except (ValueError, KeyError) as error:  # KeyError: chroma subsampling without a name
        raise UndecodableImageError(f"the JPEG is damaged ({error})") from None
    return image


def decode_reduced(
    data: bytes,
    height: int,
    width: int = 0,
    *,
    channels: int = 3,
    jpeg: Jpeg = "fast",
    min_factor: int = 1,
    partly: bool = False,
) -> Array:
    """Decodes a JPEG at 1/1, 1/2, 1/4, or 1/8 of its size, which libjpeg does as it decodes: [h, w, channels].

    Args:
      data: the JPEG.
      height, width: the smallest size; an image that is smaller keeps its own.
      channels: 3, or 1 for gray.
      min_factor: 2 to decode at the full size rather than at a size in between.
      partly: whether to decode what is readable of a damaged one.

    Raises:
      UndecodableImageError: the image is damaged, or too large.
    """
    check_decodable(data)
    size = {"min_height": height, "min_width": width, "min_factor": min_factor}
    return _decode_jpeg(data, channels, jpeg, strict=not partly, **size)


def decode_any_png(data: bytes) -> Array:
    """Decodes a PNG of any kind, also with a palette, to [H, W] or [H, W, C] of its own dtype, unlike TFDS.

    Raises:
      UndecodableImageError: the image is damaged, or too large.
    """
    import imagecodecs

    check_decodable(data)
    try:
        image: Array = imagecodecs.png_decode(data)
    except (RuntimeError, ValueError) as error:
        raise UndecodableImageError(f"the PNG is damaged ({error})") from None
    return image


def _fast_png(data: bytes, channels: int | None, dtype: str) -> Array | None:
    """Decodes a PNG; None if only TensorFlow decodes its format correctly."""
    if len(data) < 33:
        raise UndecodableImageError("the PNG is cut short")
    width, height, depth, color, _, _, interlaced = struct.unpack_from(">IIBBBBB", data, 16)
    stored = _PNG_CHANNELS.get(color)
    if depth != (8 if dtype == "uint8" else 16) or stored is None or channels not in (stored, None):
        return None
    # Do not allocate if the header claims more pixels than the data can hold.
    if height * width * stored * (depth // 8) > _MAX_INFLATION * len(data):
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
        # zlib enforces the window size in the first byte; libdeflate ignores it.
        if depth == 8 and not interlaced and min(size, 1 << 15) <= 256 << (stream[0] >> 4):
            image = imagecodecs.spng_decode(_inflated_png(data[:33], stream, size))
        else:
            image = imagecodecs.png_decode(data)
    except (RuntimeError, ValueError) as error:  # ValueError: imagecodecs cannot read libpng's message
        raise UndecodableImageError(f"the PNG is damaged ({error})") from None
    if image.ndim == 2:
        image = image[..., None]
    return image


def _png_stream(data: bytes) -> bytes | None:
    """The compressed scanlines; None if the PNG has chunks besides scanlines and comments."""
    _, *chunks = png_chunks(data)
    kinds = [kind for kind, _, _ in chunks]
    count = kinds.count(b"IDAT")
    first = kinds.index(b"IDAT") if count else 0
    if not _PNG_REMARKS.issuperset(kinds[:first] + kinds[first + count :]):
        return None
    return b"".join([data[start:end] for _, start, end in chunks[first : first + count]])


def _inflated_png(header: bytes, stream: bytes, size: int) -> bytes:
    """Rewrites a PNG with its `size` bytes of scanlines uncompressed.

    Decompression takes most of the decoding time, and libdeflate is three times as fast as the zlib in PNG decoders.
    Only the filters are left to spng.
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
    parts.append(stream[-4:])  # the checksum, already checked by libdeflate
    body = b"".join(parts)
    checksum = imagecodecs.deflate_crc32(body).to_bytes(4, "big")
    return b"".join((header, (len(body) - 4).to_bytes(4, "big"), body, checksum, _PNG_END))


def _decode_with_tensorflow(data: bytes, channels: int | None, dtype: str) -> Array:
    with needs("tf", "decoding palette, 16-bit, and CMYK images, or other numbers of channels, needs TensorFlow"):
        import tensorflow as tf

    try:
        image: Array = tf.image.decode_image(data, channels=channels or 0, dtype=tf.dtypes.as_dtype(dtype)).numpy()
    except (tf.errors.OpError, ValueError) as error:
        message = str(getattr(error, "message", error)).partition("} ")[2] or str(error)
        raise UndecodableImageError(f"TensorFlow cannot decode the image ({message.strip()[:120]})") from None
    if image.ndim != 3:
        raise UndecodableImageError("the image is a GIF, which TFDS decodes as a video")
    return image


def encode_jpeg(images: Array, quality: int = 95) -> list[bytes]:
    """Encodes uint8 [T, H, W, C] (C is 1 or 3) as T JPEGs with 4:2:0 chroma, like tf.io.encode_jpeg.

    Raises:
      ValueError: the dtype or number of channels is unsupported.
    """
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] not in (1, 3):
        raise ValueError(f"JPEG needs uint8 images with 1 or 3 channels, not {images.dtype}{images.shape[1:]}")
    import simplejpeg

    color = images.shape[-1] == 3
    return [
        simplejpeg.encode_jpeg(
            image,
            quality=quality,
            colorspace="RGB" if color else "GRAY",
            colorsubsampling="420" if color else "Gray",
        )
        for image in np.ascontiguousarray(images)
    ]


def encode_png(images: Iterable[Array], level: int | None = None) -> list[bytes]:
    """Encodes uint8 or uint16 images [H, W, C] (C is 1, 3, or 4) as PNGs; a low level is fast rather than small."""
    import imagecodecs

    contiguous = (np.ascontiguousarray(image[..., 0] if image.shape[-1] == 1 else image) for image in images)
    return [bytes(imagecodecs.png_encode(image, level=level)) for image in contiguous]


@functools.lru_cache(maxsize=64)
def encode_zeros(shape: tuple[int, ...], dtype: str, encoding: str) -> bytes:
    """Encodes an image of zeros of shape (height, width, channels) as PNG or JPEG."""
    zeros = np.zeros((1, *shape), dtype)
    return (encode_jpeg(zeros) if encoding == "jpeg" else encode_png(zeros))[0]
