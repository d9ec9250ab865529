"""Where the images of a dataset are, and their bytes there, compared with their checksums."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Sequence
from typing import Any

import google_crc32c
import numpy as np

from rlds_beam import storage
from rlds_beam.datasets.base import PerThread
from rlds_beam.datasets.step_index import BLOB, BLOB_FILE, DamagedIndexError, StepIndex
from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import RldsBeamError
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.reading.base import Shard, Source, Span
from rlds_beam.typing import Array

_TOGETHER = 1 << 16
"""The largest gap in bytes between two images of a remote file that is read instead of skipped."""

_Row = tuple[int, int, int, int]
"""The number of a place among those to read, its offset, its size, and its CRC32C."""

_OPEN = 64
"""Files that a thread keeps open."""


class PlaceReader:
    """Reads bytes by their `PLACE`. Picklable and thread-safe.

    Args:
      files: the files.
      index: the index whose blob.bin holds the rest.
    """

    def __init__(self, files: Sequence[str], index: StepIndex | None = None):
        self._files, self._index = files, index
        self._remote = any(storage.scheme(path) is not None for path in files)
        self._open: PerThread[Any] = PerThread(storage.open_read, _OPEN, _close)

    def read(self, places: Array) -> list[bytes]:
        """Reads the bytes at each place, `PLACE` [k], in any order; b"" for a size of 0.

        Raises:
          RldsBeamError: they do not match their checksum, or the file cannot be read.
        """
        found = [b""] * len(places)
        order = np.lexsort((places["offset"], places["file"])).tolist()
        rows = places.tolist()
        i = 0
        while i < len(order):
            offset, size, _, number, _ = rows[order[i]]
            if not size:
                i += 1
                continue
            stop, group = offset + size, [order[i]]
            for j in order[i + 1 :]:
                next_offset, next_size, _, next_number, _ = rows[j]
                if next_number != number or next_offset > stop + (_TOGETHER if self._remote else 0):
                    break
                stop = max(stop, next_offset + next_size)
                group.append(j)
            together = [(j, *rows[j][:3]) for j in group]
            if number == BLOB and self._index is not None:
                self._read_blob(self._index, together, offset, stop, found)
            else:
                self._read_group(self._files[number], together, offset, stop, found)
            i += len(group)
        return found

    def _read_group(self, path: str, group: Sequence[_Row], offset: int, stop: int, found: list[bytes]) -> None:
        """Reads what is between two offsets at once."""
        data = self._bytes(path, offset, stop - offset)
        for j, low, length, crc in group:
            one = data if len(data) == length else data[low - offset : low - offset + length]
            if google_crc32c.value(one) != crc:
                raise _damaged(path, low, length)
            found[j] = one

    def _read_blob(self, index: StepIndex, group: Sequence[_Row], offset: int, stop: int, found: list[bytes]) -> None:
        """The same for blob.bin; if it is damaged, the index is built again."""
        try:
            self._read_group(index.blob, group, offset, stop, found)
        except RldsBeamError:
            stamp = storage.stamp_of(os.fstat(self._open[index.blob].fileno()))
            self._open.forget(index.blob)
            index.replace(DamagedIndexError(index.directory, BLOB_FILE, stamp))
            self._read_group(index.blob, group, offset, stop, found)

    def _bytes(self, path: str, offset: int, size: int) -> bytes:
        try:
            file = self._open[path]
            if storage.scheme(path) is None:
                return os.pread(file.fileno(), size, offset)
            file.seek(offset)
            data: bytes = file.read(size)
            return data
        except OSError as error:
            raise RldsBeamError(f"cannot read {path}: {error.strerror or error}") from error


def _close(file: Any) -> None:
    file.close()


def _damaged(path: str, offset: int, size: int) -> RldsBeamError:
    return RldsBeamError(
        f"{path}: the {size:,} bytes at {offset:,} do not match their checksum: the file is damaged, or was changed "
        "after the dataset was opened. Fetch it again, and open the dataset again"
    )


Place = tuple[str, int]
"""A file, and an offset in it."""

_LENGTH = 4
"""Bytes before each value of a Parquet page."""
_NEAR = 1 << 20
"""How far after the image before it an image is searched, in bytes, besides those of images that were not found."""
_MAX_MISSED = 8
"""Images in a row that are not found before the next span is searched."""


def stored_images(source: Source, shard: Shard, episode: Episode) -> dict[bytes, Place]:
    """The place of each image of an episode, as it was read, that is in a local file."""
    found: dict[bytes, Place] = {}
    for path, spans in source.image_spans(shard, episode.key.position).items():
        column = episode.steps.get(path)
        if isinstance(column, EncodedImages):
            found |= find_images(column, spans)
    return found


def find_images(images: Iterable[bytes], spans: Sequence[Span]) -> dict[bytes, Place]:
    """The place of each image that is in these spans, which hold them in order.

    Of images that do not get smaller, Snappy stores most as they are, but changes others, and those of 64 KB and more.
    """
    found: dict[bytes, Place] = {}
    wanted, i = list(images), 0
    for file, start, stop in spans:
        if i == len(wanted) or storage.scheme(file) is not None:
            break
        with open(file, "rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
            at, skipped, near = start, 0, stop
            for j in range(i, len(wanted)):
                image = wanted[j]
                if not image or image in found:
                    i += i == j  # those before it that were not found may be in the next span
                    continue
                place = at + _LENGTH  # the next value, or a new page
                if content[place : place + len(image)] != image:
                    place = content.find(image, at, min(stop, near))
                if place >= 0 and place + len(image) <= stop:
                    found[image], at, skipped, i = (file, place), place + len(image), 0, j + 1
                elif j - i >= _MAX_MISSED:
                    break
                else:
                    skipped += len(image)
                near = at + skipped + _NEAR
    return found
