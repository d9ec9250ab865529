"""Images whose pixels are edited: decoded and encoded once, a few at a time, when somebody asks for what came out."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rlds_beam.images.encoded_images import ZERO_IMAGE, EncodedImages
from rlds_beam.images.encoding import encode_jpeg, encode_png

Array = np.ndarray[Any, Any]
Edit = Callable[[Array], Array]
"""Images [T, H, W, C] of any T, edited; pickles. Zeros become zeros."""

_AT_ONCE = 8 << 20
"""Bytes of pixels that are decoded together."""


class EditedImages(EncodedImages):
    """A column of images after some edits. Another edit adds to the list; nothing is decoded before `data` is read.

    Attributes:
      source: the images before them.
      edits: functions of pixels, in order.
      path: of the field, for what is said of damaged images.
      quality: of JPEGs.
      shape, dtype, encoding: of what comes out.
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

    @functools.cached_property
    def data(self) -> Array:
        """The images, encoded: object array [T] of `bytes`. Raises BadEpisode where one cannot be decoded."""
        images = np.full(len(self.source), ZERO_IMAGE, object)
        for steps, pixels in self._edited():
            encoded = encode_jpeg(pixels, self.quality) if self.encoding == "jpeg" else encode_png(pixels)
            images[steps] = np.fromiter(encoded, object, len(encoded))
        return images

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: Any) -> EditedImages:
        return EditedImages(
            self.source[index], self.edits, self.path,
            shape=self.shape, dtype=self.dtype, encoding=self.encoding, quality=self.quality,
        )  # fmt: skip

    def with_data(self, data: Array) -> EncodedImages:
        return EncodedImages(data, self.shape, self.dtype, self.encoding)

    def _edited(self) -> Iterator[tuple[Array, Array]]:
        """Some steps, and their pixels; those of zeros stay as they are."""
        steps = np.flatnonzero(self.source.data != ZERO_IMAGE)
        size = int(np.prod([d or 512 for d in self.source.shape]))
        count = max(1, _AT_ONCE // max(1, size))
        for start in range(0, len(steps), count):
            some = steps[start : start + count]
            pixels = self.source[some].decode(self.path)
            for edit in self.edits:
                pixels = edit(pixels)
            yield some, pixels


def edit_images(
    images: EncodedImages, edit: Edit, path: str, *,
    shape: tuple[int | None, ...] | None = None, encoding: str | None = None, quality: int = 95,
) -> EditedImages:  # fmt: skip
    """A column with one edit more.

    Args:
      path: of the field.
      shape, encoding: of the result; by default those of the column.
      quality: of JPEGs.
    """
    before = images.edits if isinstance(images, EditedImages) else ()
    source = images.source if isinstance(images, EditedImages) else images
    return EditedImages(
        source, (*before, edit), path, shape=images.shape if shape is None else shape, dtype=images.dtype,
        encoding=encoding or images.encoding, quality=quality,
    )  # fmt: skip
