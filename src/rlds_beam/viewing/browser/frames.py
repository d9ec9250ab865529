"""The cameras of a dataset, and their images as stored bytes."""

from __future__ import annotations

import dataclasses

import numpy as np

from rlds_beam.episodes.episode import Column
from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.images.codecs import encode_png, encode_zeros
from rlds_beam.images.encoded_images import ZERO_IMAGE, EncodedImages

_MIN_SIDE_PIXELS = 8
"""The least height and width of raw pixels; smaller arrays are numbers."""


@dataclasses.dataclass(frozen=True)
class CameraFrames:
    """The images of a camera: encoded, or raw pixels [T, H, W, C]."""

    column: Column
    field: Field

    def __len__(self) -> int:
        return len(self.column)

    def image(self, step: int) -> bytes:
        """The image of a step: stored bytes, or a PNG of raw pixels."""
        if isinstance(self.column, EncodedImages):
            data = self.column.image(step)
            if data != ZERO_IMAGE:
                return data
            sides, channels = self.field.shape[:-1], self.field.shape[-1] or 3
            shape = (*(side or _MIN_SIDE_PIXELS for side in sides), channels)
            return encode_zeros(shape, self.field.dtype, "png")
        pixels = np.asarray(self.column[step])
        return encode_png(pixels.reshape(1, *pixels.shape[:2], -1))[0]

    def size(self, step: int) -> int:
        """The bytes of a stored image, or of raw pixels."""
        column = self.column
        return len(column.image(step)) if isinstance(column, EncodedImages) else int(np.asarray(column[step]).nbytes)


def is_camera(field: Field) -> bool:
    """Whether each value of a field is an image: encoded, or raw pixels."""
    if field.holds_image_files:
        return True
    sides, channels = field.shape[:2], field.shape[2:] or (1,)
    return (
        field.dtype in ("uint8", "uint16")
        and len(sides) == 2
        and channels in ((1,), (3,), (4,))
        and all(size is None or size >= _MIN_SIDE_PIXELS for size in sides)
    )


def find_cameras(schema: Schema) -> list[Field]:
    """The step fields that are images."""
    return [field for field in schema.steps.values() if is_camera(field)]


def media_type(image: bytes) -> str | None:
    """The media type of an encoded image; None if browsers cannot show it."""
    for start, name in ((b"\xff\xd8\xff", "image/jpeg"), (b"\x89PNG\r\n\x1a\n", "image/png")):
        if image.startswith(start):
            return name
    return None
