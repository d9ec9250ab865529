"""Image columns of episodes: PNG or JPEG until an output needs pixels."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rlds_beam.errors import BadEpisode, Violation
from rlds_beam.images.codecs import Jpeg, decode_image
from rlds_beam.images.headers import ImageTooLargeError, UndecodableImageError
from rlds_beam.lazy import lockless_property
from rlds_beam.typing import Array

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
          BadEpisode: undecodable_image; image_too_large if an image has more pixels than allowed; or
            image_size_mismatch if its size differs from the schema or, if the schema leaves it open, from the first.
        """
        if not len(self.data):
            return np.empty((0, *(d or 0 for d in self.shape)), self.dtype)
        pixels: Array | None = None
        declared = math.prod(size or 0 for size in self.shape[:2])
        for step, data in enumerate(self.data):
            try:
                place = None if pixels is None else pixels[step]
                image = decode_image(data, self.shape[-1], self.dtype, place, jpeg, declared)
            except UndecodableImageError as error:
                rule = "image_too_large" if isinstance(error, ImageTooLargeError) else "undecodable_image"
                raise BadEpisode(Violation(rule, f"{error} at step {step}", field, step)) from None
            if pixels is None:
                shape = tuple(s or d for s, d in zip(self.shape, image.shape, strict=True))
                pixels = np.empty((len(self.data), *shape), self.dtype)
            if image.shape != pixels.shape[1:]:
                detail = f"shape {image.shape} at step {step}, but expected {pixels.shape[1:]}"
                raise BadEpisode(Violation("image_size_mismatch", detail, field, step))
            if image.base is not pixels:  # otherwise it was decoded in place
                pixels[step] = image
        assert pixels is not None
        return pixels


_FEW = 64
"""Below this number of images, comparing one by one is faster than vectorized."""


_MAX_SHAPES = 256
_asked: dict[tuple[int | None, ...], tuple[bytes, bytes]] = {}
"""The arguments of the last call of `StoredImages.unlike`, by the shape of the column."""


class StoredImages(EncodedImages):
    """A column of images within a record; they are only copied when `data` is read.

        record    ...  tag, length  [ image 0 ]  tag, length  [ image 1 ]  ...
                                    ^          ^
                            starts[0]          stops[0]

    Attributes:
      record: the bytes of the record.
      places: the start and stop offsets of the images.
      starts, stops: the same as int64 [T].
      shape, dtype, encoding: see `EncodedImages`.
    """

    record: bytes
    places: tuple[list[int], list[int]]

    def __init__(
        self,
        record: bytes,
        starts: list[int],
        stops: list[int],
        shape: tuple[int | None, ...],
        dtype: str = "uint8",
        encoding: str = "jpeg",
    ):
        # Most columns are only checked and copied, so arrays are built on demand.
        self.__dict__.update(record=record, places=(starts, stops), shape=shape, dtype=dtype, encoding=encoding)

    @classmethod
    def in_record(
        cls,
        record: bytes,
        spans: Callable[[bytes, bytes], tuple[list[int], list[int], list[int]]],
        shape: tuple[int | None, ...],
        dtype: str,
        encoding: str,
    ) -> StoredImages:
        """A column of a record.

        Args:
          spans: returns the start and stop offsets of the images, and those `unlike` a start and an end
            (`encoding.example.reader.Feature.spans`).
        """
        asked = _asked.get(shape, (b"", b""))
        starts, stops, unlike = spans(*asked)
        column = cls(record, starts, stops, shape, dtype, encoding)
        if asked[0]:
            column.__dict__["_last"] = *asked, unlike
        return column

    @lockless_property
    def starts(self) -> Array:
        return np.array(self.places[0], np.int64)

    @lockless_property
    def stops(self) -> Array:
        return np.array(self.places[1], np.int64)

    @lockless_property
    def data(self) -> Array:
        """The images: object array [T] of `bytes`."""
        record = self.record
        places = zip(*self.places, strict=True)
        return np.fromiter([record[start:stop] for start, stop in places], object, len(self))

    def pieces(self) -> list[memoryview]:
        """The images as views of the record."""
        record = memoryview(self.record)
        return [record[start:stop] for start, stop in zip(*self.places, strict=True)]

    def __len__(self) -> int:
        return len(self.places[0])

    def __getitem__(self, index: Any) -> StoredImages:
        starts, stops = (np.atleast_1d(places[index]).tolist() for places in (self.starts, self.stops))
        return StoredImages(self.record, starts, stops, self.shape, self.dtype, self.encoding)

    def __getstate__(self) -> dict[str, Any]:
        made_again = ("data", "starts", "stops", "_last")
        return {name: value for name, value in self.__dict__.items() if name not in made_again}

    def image(self, step: int) -> bytes:
        starts, stops = self.places
        return self.record[starts[step] : stops[step]]

    def unlike(self, start: bytes, end: bytes) -> list[int]:
        # Called by the check and again by the output, for column after column: keep the last answer, and find the next
        # ones on the way (`in_record`).
        known: tuple[bytes, bytes, list[int]] | None = self.__dict__.get("_last")
        if known is None or known[:2] != (start, end):
            known = self.__dict__["_last"] = start, end, self._unlike(start, end)
            if len(_asked) > _MAX_SHAPES:
                _asked.clear()
            _asked[(*self.shape,)] = start, end
        return known[2]

    def _unlike(self, start: bytes, end: bytes) -> list[int]:
        if len(self) < _FEW:
            begins, ends = self.record.startswith, self.record.endswith
            starts, stops = self.places
            places = enumerate(zip(starts, stops, strict=True))
            return [t for t, (low, high) in places if not (begins(start, low, high) and ends(end, low, high))]
        if (self.stops - self.starts).min() < max(len(start), len(end)):
            return super().unlike(start, end)
        alike = self._hold(self.starts, start) & self._hold(self.stops - len(end), end)
        unlike: list[int] = np.flatnonzero(~alike).tolist()
        return unlike

    def _hold(self, places: Array, wanted: bytes) -> Array:
        """Whether `wanted` is at each of these offsets, bool [T]."""
        size = len(wanted)
        if not size:
            return np.ones(len(places), bool)
        everywhere: Array = np.ndarray(len(self.record) - size + 1, f"V{size}", self.record, strides=1)
        equal: Array = everywhere[places] == np.void(wanted)
        return equal

    def with_data(self, data: Array) -> EncodedImages:
        return EncodedImages(data, self.shape, self.dtype, self.encoding)
