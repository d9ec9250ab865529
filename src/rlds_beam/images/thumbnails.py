"""Small JPEGs of images. Never raises for a damaged image: shows a placeholder instead."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlds_beam.errors import RldsBeamError
from rlds_beam.images.codecs import decode_any_png, decode_image, decode_reduced, encode_jpeg
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.images.headers import ImageTooLargeError, UndecodableImageError
from rlds_beam.images.resizing import resize_colors
from rlds_beam.typing import Array

QUALITY = 80
_WIDEST = 4
"""Maximum ratio of width to height of a thumbnail."""
_IMAGE_SIDE = 8
"""Arrays [T, H, W, ...] of at least this height and width are pictures."""
_GRAY, _CROSS = 200, 120
GAP = 2
"""Pixels between the pictures of a strip."""


class Thumbnail(bytes):
    """A small JPEG.

    Attributes:
      fault: what is wrong with the image that it shows; None if nothing is.
    """

    fault: str | None = None


def thumbnail(image: bytes | Array, height: int) -> Thumbnail:
    """A JPEG of at most `height` rows; never enlarged. A damaged image becomes a crossed gray rectangle.

    Args:
      image: a stored image, or pixels [H, W] or [H, W, C] of any dtype.
    """
    pixels, fault = small_pixels(image, height)
    made = Thumbnail(encode_jpeg(pixels[None], QUALITY)[0])
    made.fault = fault
    return made


def small_pixels(image: bytes | Array, height: int) -> tuple[Array, str | None]:
    """An image as uint8 [h, w, 3] with h at most `height`, and what is wrong with it.

    Arguments as for `thumbnail`.
    """
    try:
        if isinstance(image, bytes | memoryview):
            pixels, fault = _decode(bytes(image), height)
        else:
            pixels, fault = _as_colors(np.asarray(image)), None
        rows, columns = pixels.shape[:2]
        scale = min(1.0, height / rows, _WIDEST * height / columns)
        return pixels if scale == 1.0 else _resize(pixels, scale), fault
    except (UndecodableImageError, RldsBeamError) as error:
        return _placeholder(height, height * 4 // 3), str(error)


def is_image(column: Array | EncodedImages) -> bool:
    """Whether a column holds images: encoded, or an array [T, H, W] or [T, H, W, C]."""
    if isinstance(column, EncodedImages):
        return True
    shape = column.shape[1:]
    return (
        column.dtype.kind in "uif"
        and (len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3, 4)))
        and min(shape[:2]) >= _IMAGE_SIDE
    )


def find_image(column: Array | EncodedImages, step: int) -> bytes | Array:
    """The image of a step: as stored, or its pixels."""
    return column.image(step) if isinstance(column, EncodedImages) else np.asarray(column[step])


def spread(length: int, count: int) -> list[int]:
    """Up to `count` of `length` steps, evenly spaced, with the first and the last one."""
    return sorted({*np.linspace(0, length - 1, min(count, length)).round().astype(int).tolist()})


def join_pictures(pictures: Sequence[Array], height: int) -> Array:
    """Pictures side by side, resized to `height` rows."""
    fitted = [p if len(p) == height else _resize(p, height / len(p), height) for p in pictures]
    spaced = [np.pad(picture, ((0, 0), (0, GAP), (0, 0)), constant_values=255) for picture in fitted]
    return np.asarray(np.concatenate(spaced, axis=1)[:, :-GAP])


def _decode(data: bytes, height: int) -> tuple[Array, str | None]:
    """The pixels of a stored image, and what is wrong with it although it can be shown."""
    if not data:
        raise UndecodableImageError("the image is empty")
    if data.startswith(b"\xff\xd8\xff"):
        try:
            return decode_reduced(data, height), None
        except ImageTooLargeError:
            raise
        except UndecodableImageError as error:
            return decode_reduced(data, height, partly=True), str(error)
    if data.startswith(b"\x89PNG"):
        return _as_colors(decode_any_png(data)), None
    return _as_colors(decode_image(data, 3, "uint8")), None


def _as_colors(pixels: Array) -> Array:
    """Pixels of any dtype as uint8 [H, W, 3]; other numbers than uint8 are scaled to their range, as depth needs."""
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    if pixels.ndim != 3 or 0 in pixels.shape:
        raise UndecodableImageError(f"an array of shape {list(pixels.shape)} is no image")
    if pixels.shape[2] > 3:  # alpha
        pixels = pixels[..., :3]
    if pixels.shape[2] != 3:
        pixels = np.repeat(pixels[..., :1], 3, axis=2)
    if pixels.dtype == np.uint8:
        return pixels
    numbers = pixels.astype(np.float64)
    known = np.isfinite(numbers)
    low, high = (float(numbers[known].min()), float(numbers[known].max())) if known.any() else (0.0, 0.0)
    if pixels.dtype.kind == "f" and low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = (numbers - low) / ((high - low) or 1.0)
    return np.asarray(np.rint(np.clip(np.nan_to_num(scaled), 0, 1) * 255).astype(np.uint8))


def _resize(pixels: Array, scale: float, height: int | None = None) -> Array:
    rows, columns = (max(1, round(size * scale)) for size in pixels.shape[:2])
    return np.asarray(resize_colors(pixels[None], height or rows, columns)[0])


def _placeholder(height: int, width: int) -> Array:
    """A gray rectangle with a cross."""
    rows, columns = np.indices((height, width))
    across = columns * height
    cross = np.minimum(abs(across - rows * width), abs(across + rows * width - height * width)) <= max(height, width)
    return np.repeat(np.where(cross, _CROSS, _GRAY).astype(np.uint8)[..., None], 3, axis=2)
