"""One image column of an episode: PNG or JPEG until an output needs pixels."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np

from rlds_beam.errors import BadEpisode, Violation
from rlds_beam.images.decoding import decode_image
from rlds_beam.images.headers import UndecodableImageError

Array: TypeAlias = "np.ndarray[Any, Any]"

ZERO_IMAGE = b""
"""An image of zeros in an `EncodedImages` column (an added or a padding frame).

No dataset holds such an image (an empty one is `undecodable_image`), and no encoder is needed to add one. Code that
decodes or encodes the column turns it into zeros of the column's shape.
"""


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
                image = decode_image(data, self.shape[-1], self.dtype, None if pixels is None else pixels[step])
            except UndecodableImageError as error:
                raise BadEpisode(Violation("undecodable_image", f"{error} at step {step}", field, step)) from None
            if pixels is None:
                shape = tuple(s or d for s, d in zip(self.shape, image.shape, strict=True))
                pixels = np.empty((len(self.data), *shape), self.dtype)
            if image.shape != pixels.shape[1:]:
                detail = f"shape {image.shape} at step {step}, where {pixels.shape[1:]} is expected"
                raise BadEpisode(Violation("image_too_large", detail, field, step))
            if image.base is not pixels:  # else it was decoded to its place
                pixels[step] = image
        assert pixels is not None
        return pixels
