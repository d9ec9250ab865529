"""Decodes the images of a batch, each straight into its place in one array."""

from __future__ import annotations

from rlds_beam.errors import needs
from rlds_beam.images.codecs import Jpeg, decode_image, decode_reduced
from rlds_beam.images.encoded_images import ZERO_IMAGE
from rlds_beam.images.headers import UndecodableImageError
from rlds_beam.typing import Array


def decode_into(place: Array, data: bytes, dtype: str, jpeg: Jpeg = "fast") -> None:
    """Decodes an image into an array of its size, [H, W, C] of `dtype`.

    Raises:
      UndecodableImageError: the image is damaged, or has another size.
    """
    if data == ZERO_IMAGE:
        place[:] = 0
        return
    image = decode_image(data, place.shape[-1], dtype, place, jpeg, place.shape[0] * place.shape[1])
    if image is not place:
        copy_into(place, image)


def copy_into(place: Array, image: Array) -> None:
    """Copies an image into an array of its size, [H, W, C]. Raises UndecodableImageError if it has another size."""
    if image.shape != place.shape:
        raise UndecodableImageError(f"its shape is {image.shape}, but others have {place.shape}: give image_size")
    place[:] = image


def decode_resized(place: Array, data: bytes, dtype: str, jpeg: Jpeg = "fast") -> None:
    """Decodes an image of any size into an array, [H, W, C] of `dtype`.

    Bilinear, if the image is less than twice as large. A larger JPEG is first decoded at a half, a quarter, or an
    eighth of its size, which libjpeg does as it decodes; other images are averaged over areas. So every pixel counts.

    Raises:
      UndecodableImageError: the image is damaged.
    """
    if data == ZERO_IMAGE:
        place[:] = 0
        return
    height, width, channels = place.shape
    image = _reduced_jpeg(data, height, width, channels, jpeg) if dtype == "uint8" else None
    if image is None:
        image = decode_image(data, channels, dtype, jpeg=jpeg)
    resize_into(place, image)


def resize_into(place: Array, image: Array) -> None:
    """Resizes an image [h, w, C] into an array [H, W, C] of the same dtype."""
    height, width, _ = place.shape
    if image.shape == place.shape:
        place[:] = image
        return
    with needs("loading", "image_size needs OpenCV"):
        import cv2
    halved = image.shape[0] >= 2 * height and image.shape[1] >= 2 * width
    method = cv2.INTER_AREA if halved else cv2.INTER_LINEAR
    if place.shape[-1] > 1 and place.flags.c_contiguous:
        cv2.resize(image, (width, height), dst=place, interpolation=method)
    else:
        place[:] = cv2.resize(image, (width, height), interpolation=method).reshape(place.shape)


def _reduced_jpeg(data: bytes, height: int, width: int, channels: int, jpeg: Jpeg) -> Array | None:
    """Decodes a color JPEG at the smallest of 1/1, 1/2, 1/4, 1/8 that is not below the size; None if it is not one."""
    if not data.startswith(b"\xff\xd8\xff") or channels != 3:
        return None
    import simplejpeg

    try:
        rows, columns, stored, _ = simplejpeg.decode_jpeg_header(data)
    except (ValueError, KeyError) as error:
        raise UndecodableImageError(f"the JPEG is damaged ({error})") from None
    if stored in ("CMYK", "YCCK") or rows < 2 * height or columns < 2 * width:
        return None
    return decode_reduced(data, height, width, jpeg=jpeg, min_factor=2)
