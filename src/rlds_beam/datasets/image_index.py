"""The images and videos of an index: locations, packets, and bytes, compared with their checksums.

Frames are decoded from the packets, without opening a container:

    packets.bin    the packets of all videos, one video after the other: `INDEXED_PACKET` [P]
    index.json     "videos": the codec of each, and the number of its packets
                   "scales": how a column's frames are converted, if they are no colors
"""

from __future__ import annotations

import dataclasses
import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import google_crc32c
import numpy as np

from rlds_beam import storage
from rlds_beam.datasets.base import PerThread
from rlds_beam.datasets.step_index import (
    BLOB,
    BLOB_FILE,
    FIRST_VIDEO,
    INDEXED_PACKET,
    PLACE,
    DamagedIndexError,
    IndexWriter,
    StepIndex,
)
from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import RldsBeamError
from rlds_beam.images.depth import Depth
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.images.video_frames import Scale, VideoFrames
from rlds_beam.images.videos import Video
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
            image = data if len(data) == length else data[low - offset : low - offset + length]
            if google_crc32c.value(image) != crc:
                raise _damage_error(path, low, length)
            found[j] = image

    def _read_blob(self, index: StepIndex, group: Sequence[_Row], offset: int, stop: int, found: list[bytes]) -> None:
        """The same for blob.bin; if it is damaged, the index is built again."""
        try:
            self._read_group(index.blob, group, offset, stop, found)
        except RldsBeamError:
            stamp = storage.make_stamp(os.fstat(self._open[index.blob].fileno()))
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


def _damage_error(path: str, offset: int, size: int) -> RldsBeamError:
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


_AT_ONCE = 64
"""Packets to read at a time."""


class VideoWriter:
    """Collects the videos of an index that is being built."""

    def __init__(self, files: list[str]):
        self._files = files
        self._numbers: dict[str, int] = {}
        self._waiting: list[Video] = []
        self.videos: list[dict[str, Any]] = []
        self.scales: dict[str, Any] = {}

    def places(self, frames: VideoFrames) -> Array:
        """The places of a column's frames, `PLACE` [T], but for the numbers of the videos. Reads their packets."""
        places = np.zeros(len(frames), PLACE)
        places["offset"] = frames.numbers
        for which in np.unique(frames.which).tolist():
            steps, video = np.flatnonzero(frames.which == which), frames.videos[which]
            places["size"][steps] = video.packets["size"][video.shown[frames.numbers[steps]]]
        return places

    def number(self, places: Array, frames: VideoFrames, path: str) -> None:
        """Fills in the numbers of the videos."""
        numbers = np.array([self._number(video) for video in frames.videos], np.int64)
        places["file"] = FIRST_VIDEO - numbers[frames.which]
        if frames.scale is not None:
            self.scales[path] = dataclasses.asdict(frames.scale)  # type: ignore[call-overload]

    def _number(self, video: Video) -> int:
        if video.path not in self._numbers:
            self._numbers[video.path] = len(self._numbers)
            self._waiting.append(video)
        return self._numbers[video.path]

    def write(self, writer: IndexWriter) -> None:
        """Writes the packets of the videos since the last call."""
        waiting, self._waiting = self._waiting, []
        for video in waiting:
            packets = np.zeros(len(video.packets), INDEXED_PACKET)
            places = packets["place"]
            for name in ("offset", "size", "crc"):
                places[name] = video.packets[name]
            for name in ("time", "key", "shown"):
                packets[name] = video.packets[name]
            if (places["offset"] < 0).any():  # the file holds its packets in another way
                places["offset"] = [writer.add_blob(data) for data in video.read(0, len(packets))]
                places["file"] = BLOB
            else:
                places["file"] = len(self._files)
            self._files.append(video.path)
            writer.add_packets(packets)
            self.videos.append(
                {
                    "path": video.path,
                    "codec": video.codec,
                    "format": video.format,
                    "size": list(video.size),
                    "base": list(video.base),
                    "packets": len(packets),
                }
            )


class IndexedVideos(Sequence[Video]):
    """The videos of an index. Picklable and thread-safe."""

    def __init__(self, index: StepIndex, reader: PlaceReader):
        self._index, self._reader = index, reader
        counts = [video["packets"] for video in index.content["videos"]]
        self._ends = np.cumsum([0, *counts])
        self._opened: dict[int, Video] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return IndexedVideos, (self._index, self._reader)

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, number: int) -> Video: ...

    @overload
    def __getitem__(self, number: slice) -> Sequence[Video]: ...

    def __getitem__(self, number: int | slice) -> Video | Sequence[Video]:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        if number not in self._opened:
            video = self._index.content["videos"][number]
            packets = self._index.packets[self._ends[number] : self._ends[number + 1]]
            size, base = tuple(video["size"]), tuple(video["base"])

            def read(start: int, stop: int) -> Iterator[bytes]:
                for first in range(start, stop, _AT_ONCE):
                    yield from self._reader.read(packets["place"][first : min(first + _AT_ONCE, stop)])

            self._opened[number] = Video(video["path"], video["codec"], video["format"], size, base, packets, read)
        return self._opened[number]

    def scale(self, path: str) -> Scale | None:
        """The scaling of a column's frames."""
        scale = self._index.content["scales"].get(path)
        return None if scale is None else Depth(**scale)
