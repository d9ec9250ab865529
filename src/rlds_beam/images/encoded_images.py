"""Image columns of episodes: PNG or JPEG until an output needs pixels."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np

from rlds_beam.errors import BadEpisode, Violation
from rlds_beam.images.decoding import Jpeg, decode_image
from rlds_beam.images.headers import UndecodableImageError

Array: TypeAlias = "np.ndarray[Any, Any]"

ZERO_IMAGE = b""
"""An image of zeros in an `EncodedImages` column (an added or padding frame).

Datasets contain no such images (an empty image is `undecodable_image`), and adding one needs no encoder. Code that
decodes or encodes the column converts it to zeros of the column's shape.
"""


@dataclasses.dataclass(frozen=True)
class EncodedImages:
    """One image field of all steps, encoded as PNG or JPEG.

    Attributes:
      data: object array [T] of `bytes`.
      shape: (height, width, channels) as declared by the schema; None if unknown.
      dtype: the numpy dtype name of a pixel, `uint8` or `uint16`.
      encoding: the encoding declared by the schema, `png` or `jpeg`; an image may be stored in the other one.
      seconds: the length of the video that the images are from, by the dataset's metadata; None if there is none.
    """

    data: Array
    shape: tuple[int | None, ...]
    dtype: str = "uint8"
    encoding: str = "jpeg"
    seconds: float | None = None

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.data)

    def __getitem__(self, index: Any) -> EncodedImages:
        """Selects steps by slice, index array, or mask; always returns EncodedImages, never a single image."""
        return self.with_data(np.atleast_1d(self.data[index]))

    def with_data(self, data: Array) -> EncodedImages:
        """A copy with different images of the same shape, dtype, and encoding."""
        return dataclasses.replace(self, data=data)

    def image(self, step: int) -> bytes:
        """The image of a step."""
        data: bytes = self.data[step]
        return data

    def unlike(self, start: bytes, end: bytes) -> list[int]:
        """The steps whose images do not begin with `start` and end with `end`."""
        return [step for step, data in enumerate(self.data) if not (data.startswith(start) and data.endswith(end))]

    def parts(self, count: int, field: str | None = None) -> Iterator[tuple[Array, Array]]:
        """Decodes the images that are not `ZERO_IMAGE`, some at a time: their steps [k], and their pixels [k, H, W, C].

        Args:
          count: the number of images to decode together.
          field: see `decode`, which raises the same errors.
        """
        steps = np.flatnonzero(self.data != ZERO_IMAGE)
        for start in range(0, len(steps), count):
            some = steps[start : start + count]
            yield some, self[some].decode(field)

    def decode(self, field: str | None = None, jpeg: Jpeg = "fast") -> Array:
        """Decodes the images to [T, H, W, C] of `dtype`, as TFDS would.

        Args:
          field: the field's path, for the violation.
          jpeg: the DCT of JPEGs.

        Raises:
          BadEpisode: undecodable_image; or image_too_large if an image's size differs from the schema or, if the schema
            leaves it open, from the first image.
        """
        if not len(self.data):
            return np.empty((0, *(d or 0 for d in self.shape)), self.dtype)
        pixels: Array | None = None
        for step, data in enumerate(self.data):
            try:
                place = None if pixels is None else pixels[step]
                image = decode_image(data, self.shape[-1], self.dtype, place, jpeg)
            except UndecodableImageError as error:
                raise BadEpisode(Violation("undecodable_image", f"{error} at step {step}", field, step)) from None
            if pixels is None:
                shape = tuple(s or d for s, d in zip(self.shape, image.shape, strict=True))
                pixels = np.empty((len(self.data), *shape), self.dtype)
            if image.shape != pixels.shape[1:]:
                detail = f"shape {image.shape} at step {step}, but expected {pixels.shape[1:]}"
                raise BadEpisode(Violation("image_too_large", detail, field, step))
            if image.base is not pixels:  # otherwise it was decoded in place
                pixels[step] = image
        assert pixels is not None
        return pixels
