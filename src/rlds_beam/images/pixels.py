"""Lazy pixel edits: images are decoded and encoded once, a few at a time, when the result is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rlds_beam.images.encoded_images import ZERO_IMAGE, EncodedImages
from rlds_beam.images.encoding import encode_jpeg, encode_png
from rlds_beam.lazy import lockless_property

Array = np.ndarray[Any, Any]
Edit = Callable[[Array], Array]
"""Edits images [T, H, W, C], for any T. Picklable. Must map zeros to zeros."""

_AT_ONCE = 8 << 20
"""Bytes of pixels to decode together."""


class EditedImages(EncodedImages):
    """A column of images with pending edits; nothing is decoded before `data` is read.

    Attributes:
      source: the images before the edits.
      edits: the edits, in order.
      path: the field's path, for errors about damaged images.
      quality: the JPEG quality of the result.
      shape, dtype, encoding: the shape, dtype, and encoding of the result.
    """

    source: EncodedImages
    edits: tuple[Edit, ...]
    path: str
    quality: int

    def __init__(
        self, source: EncodedImages, edits: tuple[Edit, ...], path: str, *,
        shape: tuple[int | None, ...], dtype: str = "uint8", encoding: str = "jpeg", quality: int = 95,
    ):  # fmt: skip
        self.__dict__.update(
            source=source, edits=edits, path=path, shape=shape, dtype=dtype, encoding=encoding, quality=quality
        )

    @lockless_property
    def data(self) -> Array:
        """The edited images, encoded: object array [T] of `bytes`. Raises BadEpisode if one cannot be decoded."""
        images = np.full(len(self.source), ZERO_IMAGE, object)
        for steps, pixels in self._edited():
            encoded = encode_jpeg(pixels, self.quality) if self.encoding == "jpeg" else encode_png(pixels)
            images[steps] = np.fromiter(encoded, object, len(encoded))
        return images

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: Any) -> EditedImages:
        return self.with_source(self.source[index])

    def with_source(self, source: EncodedImages) -> EditedImages:
        """The same edits of other images."""
        return EditedImages(
            source, self.edits, self.path,
            shape=self.shape, dtype=self.dtype, encoding=self.encoding, quality=self.quality,
        )  # fmt: skip

    def with_data(self, data: Array) -> EncodedImages:
        return EncodedImages(data, self.shape, self.dtype, self.encoding)

    def _edited(self) -> Iterator[tuple[Array, Array]]:
        """Batches of steps and their edited pixels; images of zeros are skipped."""
        size = int(np.prod([d or 512 for d in self.source.shape]))
        for some, pixels in self.source.parts(max(1, _AT_ONCE // max(1, size)), self.path):
            for edit in self.edits:
                pixels = edit(pixels)
            yield some, pixels


def edit_images(
    images: EncodedImages, edit: Edit, path: str, *,
    shape: tuple[int | None, ...] | None = None, encoding: str | None = None, quality: int = 95,
) -> EditedImages:  # fmt: skip
    """Adds an edit to a column.

    Args:
      path: the field's path.
      shape, encoding: the shape and encoding of the result; the column's by default.
      quality: the JPEG quality.
    """
    before = images.edits if isinstance(images, EditedImages) else ()
    source = images.source if isinstance(images, EditedImages) else images
    return EditedImages(
        source, (*before, edit), path, shape=images.shape if shape is None else shape, dtype=images.dtype,
        encoding=encoding or images.encoding, quality=quality,
    )  # fmt: skip
