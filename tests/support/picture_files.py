"""Image files of every kind."""

import io
import struct
import zlib
from typing import Any

import numpy as np

from rlds_beam.images.encoded_images import EncodedImages

RNG = np.random.default_rng(0)


ANY = (None, None, 3)


def picture(height: int = 33, width: int = 47, channels: int = 3, dtype: Any = np.uint8) -> Any:
    """A smooth image with noise, like a photograph."""
    y, x = np.mgrid[0:height, 0:width]
    smooth = np.stack([np.sin(y / (5 + c) + x / (9 - c)) for c in range(channels)], -1)
    top = np.iinfo(dtype).max
    return ((smooth + 1) * top / 2.2 + RNG.integers(0, top // 20, smooth.shape)).astype(dtype)


def column(*images: bytes, shape: tuple[int | None, ...] = ANY, dtype: str = "uint8") -> EncodedImages:
    return EncodedImages(np.fromiter(images, object, len(images)), shape, dtype)


def tensorflow(image: bytes, channels: int | None, dtype: str = "uint8") -> Any:
    import tensorflow as tf

    return tf.image.decode_image(image, channels=channels or 0, dtype=tf.dtypes.as_dtype(dtype)).numpy()


def tensorflow_accepts(image: bytes, channels: int | None) -> bool:
    import tensorflow as tf

    try:
        tensorflow(image, channels)
    except (tf.errors.OpError, ValueError):
        return False
    return True


def png_chunks(image: bytes) -> list[tuple[bytes, bytes]]:
    at, chunks = 8, []
    while at < len(image):
        size = int.from_bytes(image[at : at + 4], "big")
        chunks.append((image[at + 4 : at + 8], image[at + 8 : at + 8 + size]))
        at += 12 + size
    return chunks


def png(chunks: list[tuple[bytes, bytes]]) -> bytes:
    body = [struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(body)


def interlaced(image: Any) -> bytes:
    """Encodes an Adam7-interlaced PNG without filters."""
    height, width, channels = image.shape
    lines = b""
    for y, x, dy, dx in (
        (0, 0, 8, 8),
        (0, 4, 8, 8),
        (4, 0, 8, 4),
        (0, 2, 4, 4),
        (2, 0, 4, 2),
        (0, 1, 2, 2),
        (1, 0, 2, 1),
    ):
        for row in image[y::dy, x::dx]:
            lines += b"\0" + row.astype(row.dtype.newbyteorder(">")).tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8 * image.itemsize, {1: 0, 3: 2, 4: 6}[channels], 0, 0, 1)
    return png([(b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b"")])


def with_pillow(image: Any, form: str, **options: Any) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image.squeeze()).save(buffer, form, **options)
    return buffer.getvalue()


def rotated() -> Any:
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = 6
    return exif
