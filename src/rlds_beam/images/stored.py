"""Image columns stored as slices of the record they were read from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.lazy import lockless_property

Array = np.ndarray[Any, Any]

_FEW = 64
"""Below this number of images, comparing one by one is faster than vectorized."""


_MOST_SHAPES = 256
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
        self, record: bytes, starts: list[int], stops: list[int],
        shape: tuple[int | None, ...], dtype: str = "uint8", encoding: str = "jpeg",
    ):  # fmt: skip
        # Most columns are only checked and copied, so arrays are built on demand.
        self.__dict__.update(record=record, places=(starts, stops), shape=shape, dtype=dtype, encoding=encoding)

    @classmethod
    def in_record(
        cls, record: bytes, spans: Callable[[bytes, bytes], tuple[list[int], list[int], list[int]]],
        shape: tuple[int | None, ...], dtype: str, encoding: str,
    ) -> StoredImages:  # fmt: skip
        """A column of a record.

        Args:
          spans: returns the start and stop offsets of the images, and those `unlike` a start and an end
            (`encoding.example.reading.Feature.spans`).
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
            if len(_asked) > _MOST_SHAPES:
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
