"""Images in messages: sensor_msgs/Image and sensor_msgs/CompressedImage.

A CompressedImage is copied byte for byte. The pixels of an Image keep their type; BGR becomes RGB.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rlds_beam.episodes.schema import Field
from rlds_beam.errors import UsageError
from rlds_beam.formats.ros2.messages import BadMessage
from rlds_beam.images.headers import UndecodableImageError, read_image_header
from rlds_beam.text import shorten
from rlds_beam.typing import Array

IMAGE, COMPRESSED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
IMAGES = (IMAGE, COMPRESSED)

_DEPTH_HEADER = 12
"""Bytes before the PNG of compressed_depth_image_transport: its format and two parameters of the quantization."""
_PNG, _JPEG = b"\x89PNG", b"\xff\xd8\xff"


class PixelLayout(NamedTuple):
    """The layout of a pixel in an Image's encoding; `swap` is True for BGR."""

    dtype: str
    channels: int
    swap: bool = False


ENCODINGS = {
    "rgb8": PixelLayout("uint8", 3),
    "bgr8": PixelLayout("uint8", 3, True),
    "rgba8": PixelLayout("uint8", 4),
    "bgra8": PixelLayout("uint8", 4, True),
    "mono8": PixelLayout("uint8", 1),
    "8UC1": PixelLayout("uint8", 1),
    "mono16": PixelLayout("uint16", 1),
    "16UC1": PixelLayout("uint16", 1),
    "32FC1": PixelLayout("float32", 1),
}


class ImageReader(NamedTuple):
    """Reads the images of a topic, all like the first one.

    Attributes:
      kind: the message type.
      encoding: the encoding of an Image; `jpeg`, `png`, or `depth png` of a CompressedImage.
      height, width: the size.
      field: the step field that it becomes.
    """

    kind: str
    encoding: str
    height: int
    width: int
    field: Field

    def read(self, message: Any) -> bytes | Array:
        """The encoded image, or its pixels. Raises BadMessage if it is unlike the first one."""
        if self.kind == COMPRESSED:
            form, image = _decode_compressed(message)
            if form != self.encoding:
                raise BadMessage(f"a {form} image, but the first one is {self.encoding}")
            return image
        if (message.encoding, message.height, message.width) != (self.encoding, self.height, self.width):
            raise BadMessage(
                f"an image of {message.width}x{message.height} {shorten(message.encoding, 40)}, but the first one has "
                f"{self.width}x{self.height} {self.encoding}"
            )
        return _pixels(message)


def image_reader(kind: str, path: str, first: Any) -> ImageReader:
    """The reader for images like the first one of a topic, a decoded message.

    Raises:
      UsageError: the encoding is not supported.
      BadMessage: the image cannot be read.
    """
    if kind == IMAGE:
        pixels = _pixels(first)
        field = Field(path, pixels.dtype.name, pixels.shape, "bytes")
        return ImageReader(kind, first.encoding, first.height, first.width, field)
    encoding, image = _decode_compressed(first)
    try:
        height, width = read_image_header(image)
    except UndecodableImageError as error:
        raise BadMessage(str(error)) from error
    deep = image.startswith(_PNG) and len(image) > 25 and image[24] == 16
    channels = {0: 1, 2: 3, 4: 2, 6: 4}.get(image[25], 3) if image.startswith(_PNG) else _jpeg_channels(image)
    form = "png" if image.startswith(_PNG) else "jpeg"
    field = Field(path, "uint16" if deep else "uint8", (height, width, channels), form, "Image")
    return ImageReader(kind, encoding, height, width, field)


def _jpeg_channels(image: bytes) -> int:
    """3, or 1 for a gray JPEG."""
    import simplejpeg

    try:
        *_, colorspace, _ = simplejpeg.decode_jpeg_header(image, strict=False)
    except (ValueError, KeyError):
        return 3
    return 1 if str(colorspace).lower() == "gray" else 3


def _decode_compressed(message: Any) -> tuple[str, bytes]:
    """The encoding of a CompressedImage, and the image."""
    label, image = str(message.format), message.data.tobytes()
    if "compressedDepth" in label:
        if label.partition(";")[0].strip() not in ("16UC1", "mono16") or not image[_DEPTH_HEADER:].startswith(_PNG):
            raise UsageError(
                f"CompressedImage in the format {shorten(label, 60)!r}: of compressed depth, only 16-bit PNG "
                "(16UC1) can be copied; record the raw Image of 32FC1, or publish 16UC1"
            )
        return "depth png", image[_DEPTH_HEADER:]
    if image.startswith(_JPEG):
        return "jpeg", image
    if image.startswith(_PNG):
        return "png", image
    raise UsageError(f"CompressedImage in the format {shorten(label, 60)!r}: only JPEG and PNG can be copied")


def _pixels(message: Any) -> Array:
    """The pixels of an Image, [height, width, channels], with RGB for BGR."""
    if message.encoding not in ENCODINGS:
        raise UsageError(
            f"Image with the encoding {shorten(message.encoding, 40)!r}; supported: {', '.join(ENCODINGS)}. "
            "Record a CompressedImage instead, or convert it with image_proc"
        )
    form, height, width, step = ENCODINGS[message.encoding], message.height, message.width, message.step
    dtype = np.dtype(form.dtype)
    row, padding = width * form.channels * dtype.itemsize, step - width * form.channels * dtype.itemsize
    if not height or not width or padding < 0 or height * step > len(message.data) + padding:
        raise BadMessage(
            f"{len(message.data):,} bytes are not {width}x{height} pixels of {message.encoding} in rows of {step} bytes"
        )
    rows: Array = np.lib.stride_tricks.as_strided(message.data, (height, row), (step, 1), writeable=False)
    stored = dtype.newbyteorder(">" if message.is_bigendian else "<")
    values = np.ascontiguousarray(rows).view(stored).astype(dtype, copy=False).reshape(height, width, form.channels)
    return values[..., [2, 1, 0, 3][: form.channels]] if form.swap else values
