"""Reads and decodes the images of a batch, each straight into its place in one array."""

from __future__ import annotations

import dataclasses
import sys
import threading

import numpy as np

from rlds_beam.datasets.base import Loadable
from rlds_beam.datasets.order import Indices
from rlds_beam.encoding.example.row_decoder import objects
from rlds_beam.errors import BadEpisode, RldsBeamError, UsageError, needs
from rlds_beam.images.codecs import Jpeg, decode_image, decode_reduced
from rlds_beam.images.encoded_images import ZERO_IMAGE, EncodedImages
from rlds_beam.images.headers import UndecodableImageError
from rlds_beam.images.video_frames import VideoFrames
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


@dataclasses.dataclass(frozen=True)
class Frames:
    """A few frames to read and decode.

    Attributes:
      dataset, path: the column.
      resized: whether images get the size of the array.
      rows: the rows to read, [k], and the `places` of their images in the array, [k, images of a row].
      copies: further places, which get copies of those in `copied`.
    """

    dataset: Loadable
    path: str
    resized: bool
    rows: Indices
    places: Indices
    copies: Indices
    copied: Indices

    def decode(self, frames: Array) -> None:
        """Fills an array, [N, H, W, C]; [N] of objects, if the size of images is unknown."""
        column = self.dataset.rows.read(self.rows, [self.path])[self.path]
        assert isinstance(column, EncodedImages)
        if isinstance(column, VideoFrames) and column.is_plain:
            self._fill_from_videos(frames, column)
        else:
            self._fill_from_images(frames, column)
        for copy, original in zip(self.copies.ravel().tolist(), self.copied.ravel().tolist(), strict=True):
            frames[copy] = frames[original]

    def _fill_from_images(self, frames: Array, column: EncodedImages) -> None:
        decode = decode_resized if self.resized else decode_into
        for row, places, data in zip(self.rows.tolist(), self.places.tolist(), column.data, strict=True):
            images = [data] if isinstance(data, bytes) else np.ravel(data).tolist()
            try:
                for place, image in zip(places, images, strict=True):
                    if frames.dtype == object:
                        frames[place] = column.with_data(objects([image])).decode(self.path, self.dataset.jpeg)[0]
                    else:
                        decode(frames[place], image, column.dtype, self.dataset.jpeg)
            except (UndecodableImageError, RldsBeamError) as error:
                raise RldsBeamError(f"{self.dataset.name}: {self.path}, row {row}: {error}") from error

    def _fill_from_videos(self, frames: Array, column: VideoFrames) -> None:
        put = resize_into if self.resized else copy_into
        try:
            for step, pixels in column.pixels():
                place = self.places[step, 0]
                if frames.dtype == object:
                    frames[place] = pixels
                else:
                    put(frames[place], pixels)
        except (BadEpisode, UndecodableImageError) as error:
            raise RldsBeamError(f"{self.dataset.name}: {self.path}: {error}") from error


class Buffers:
    """Arrays for images, used again when nobody else refers to them: neither the caller, nor a view, nor a tensor.

    Getting megabytes of memory from the system for each batch takes a fifth of the time of decoding it.
    """

    def __init__(self, most: int):
        self._arrays: list[Array] = []
        self._most, self._lock = most, threading.Lock()
        self._unused = _references([np.empty(0)], 0)

    def take(self, shape: tuple[int, ...], dtype: str) -> Array:
        """An array whose content is undefined."""
        with self._lock:
            for i in range(len(self._arrays)):
                fits = self._arrays[i].shape == shape and self._arrays[i].dtype == dtype
                if fits and _references(self._arrays, i) == self._unused:
                    return self._arrays[i]
            array = np.empty(shape, dtype)
            self._arrays = [array, *self._arrays[: self._most - 1]]
            return array


def _references(arrays: list[Array], i: int) -> int:
    return sys.getrefcount(arrays[i])


def stack(images: Array, path: str) -> Array:
    shapes = {image.shape for image in images.flat}
    if len(shapes) > 1:
        raise UsageError(
            f"{path}: images of a batch have several sizes, {sorted(shapes)[:3]}: give image_size=(height, width)"
        )
    stacked: Array = np.stack(list(images.flat))
    return stacked.reshape(*images.shape, *shapes.pop())
