"""Image columns of episodes: PNG or JPEG until an output needs pixels."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Self

import numpy as np

from rlds_beam.errors import BadEpisode, Violation
from rlds_beam.images.codecs import Jpeg, decode_image
from rlds_beam.images.headers import (
    JPEG_END,
    ImageTooLargeError,
    UndecodableImageError,
    alike,
    allow_pixels,
    read_image_header,
)
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

    _computed: ClassVar[tuple[str, ...]] = ()  # attributes of subclasses that are computed again when needed

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.data)

    def __getitem__(self, index: Any) -> EncodedImages:
        """Selects steps by slice, index array, or mask; always returns EncodedImages, never a single image."""
        return self.with_data(np.atleast_1d(self.data[index]))

    def with_data(self, data: Array) -> EncodedImages:
        """A column with different images of the same shape, dtype, and encoding."""
        return EncodedImages(data, self.shape, self.dtype, self.encoding)

    def _with(self, **changes: Any) -> Self:
        """A copy of the same class with other attributes."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__getstate__(), **changes)
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in self._computed}

    def image(self, step: int) -> bytes:
        """The image of a step."""
        data: bytes = self.data[step]
        return data

    def unlike(self, start: bytes, end: bytes) -> list[int]:
        """The steps whose images do not begin with `start` and end with `end`."""
        return [step for step, data in enumerate(self.data) if not (data.startswith(start) and data.endswith(end))]

    def check(self, max_pixels: int, field: str | None = None) -> list[Violation]:
        """Checks the images without decoding them.

        Args:
          max_pixels: the maximum height x width of an image.
          field: the field's path, for the violations.

        Returns:
          At most one violation of each rule, at the first step that breaks it: `undecodable_image` (unknown format,
          incomplete header, missing end, wrong PNG checksum), `image_too_large` (more pixels than allowed), and
          `image_size_mismatch` (a size that differs from the declared one). Only `decode` finds damage inside a JPEG's
          body, or in a video, of which only the size is checked here (`video_frames` checks the number of its frames).
        """
        allow_pixels(max_pixels)
        asked = *self.shape[:2], max_pixels
        known = _good.get(asked)
        if known is not None and not self.unlike(known, JPEG_END):
            return []
        violations: dict[str, Violation] = {}
        steps: Iterable[int] = range(len(self))
        good = b""  # the start of the last good JPEG
        if len(self):
            good = self._check_image(0, max_pixels, field, violations)
            steps = self.unlike(good, JPEG_END) if good else range(1, len(self))
        for step in steps:
            data = self.image(step)
            if not (good and data.startswith(good) and data.endswith(JPEG_END)):
                good = self._check_image(step, max_pixels, field, violations) or good
        if good:
            if len(_good) > _MAX_KEPT:
                _good.clear()
            _good[asked] = good
        return list(violations.values())

    def _check_image(self, step: int, max_pixels: int, field: str | None, violations: dict[str, Violation]) -> bytes:
        """Adds an image's violations; returns the start of all equally good images, empty if unknown."""
        try:
            header = read_image_header(self.image(step))
        except UndecodableImageError as error:
            detail = f"{error} at step {step}"
            violations.setdefault("undecodable_image", Violation("undecodable_image", detail, field, step))
            return b""
        found = self._check_size(header, step, max_pixels, field)
        if found is not None:
            violations.setdefault(found.rule, found)
            return b""
        return alike(header)

    def _check_size(self, size: tuple[int, int], step: int, max_pixels: int, field: str | None) -> Violation | None:
        """The fault in the (height, width) of an image, if there is one."""
        (height, width), declared = size, self.shape[:2]
        if height * width > max_pixels:
            detail = f"{height}x{width} pixels at step {step}, but at most {max_pixels} are allowed"
            return Violation("image_too_large", detail, field, step)
        if any(want not in (None, got) for want, got in zip(declared, size, strict=True)):
            expected = "x".join("?" if d is None else str(d) for d in declared)
            detail = f"{height}x{width} at step {step}, but expected {expected}"
            return Violation("image_size_mismatch", detail, field, step)
        return None

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

    def decode_all(self, field: str | None = None, shape: tuple[int | None, ...] | None = None) -> Array:
        """Decodes the images as `decode` does, and `ZERO_IMAGE` to zeros: [T, H, W, C].

        Args:
          field: see `decode`, which raises the same errors.
          shape: (height, width, channels) of zeros; by default that of the column, or of the other images.
        """
        there = self.data != ZERO_IMAGE
        if there.all():
            return self.decode(field)
        decoded = self[there].decode(field)
        size = [*(shape or (decoded.shape[1:] if len(decoded) else self.shape))]
        if None in size:
            raise BadEpisode(Violation("image_size_mismatch", "the schema leaves the size of the images open", field))
        pixels = np.zeros((len(self), *(each or 0 for each in size)), self.dtype)
        pixels[there] = decoded
        return pixels

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


_MAX_KEPT = 256
_asked: dict[tuple[int | None, ...], tuple[bytes, bytes]] = {}
"""The arguments of the last call of `StoredImages.unlike`, by the shape of the column."""
_good: dict[tuple[int | None, ...], bytes] = {}
"""The start of the last good JPEG, by the declared size and the maximum number of pixels."""


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
    _computed = ("data", "starts", "stops", "_last")

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
        return self._with(places=tuple(np.atleast_1d(places[index]).tolist() for places in (self.starts, self.stops)))

    def image(self, step: int) -> bytes:
        starts, stops = self.places
        return self.record[starts[step] : stops[step]]

    def unlike(self, start: bytes, end: bytes) -> list[int]:
        # Called by the check and again by the output, for column after column: keep the last answer, and find the next
        # ones on the way (`in_record`).
        known: tuple[bytes, bytes, list[int]] | None = self.__dict__.get("_last")
        if known is None or known[:2] != (start, end):
            begins, ends = self.record.startswith, self.record.endswith
            places = enumerate(zip(*self.places, strict=True))
            unlike = [t for t, (low, high) in places if not (begins(start, low, high) and ends(end, low, high))]
            known = self.__dict__["_last"] = start, end, unlike
            if len(_asked) > _MAX_KEPT:
                _asked.clear()
            _asked[(*self.shape,)] = start, end
        return known[2]
