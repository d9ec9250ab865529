"""The images and videos of an index: locations, packets, and bytes, compared with their checksums.

Frames are decoded from the packets, without opening a container:

    packets.bin    the packets of all videos, one video after the other: `INDEXED_PACKET` [P]
    index.json     "videos": the codec of each, and the number of its packets
                   "scales": how a column's frames are converted, if they are no colors
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import mmap
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import google_crc32c
import numpy as np

from rlds_beam import storage
from rlds_beam.datasets.base import Cache, PerThread
from rlds_beam.datasets.step_index import (
    FIRST_VIDEO,
    INDEXED_PACKET,
    PLACE,
    IndexWriter,
    Located,
    StepIndex,
)
from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import RldsBeamError
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.images.video_frames import Depth, VideoFrames
from rlds_beam.images.videos import Video
from rlds_beam.reading.base import Shard, Source, Span, VideoSpan
from rlds_beam.typing import Array

_TOGETHER = 1 << 16
"""The largest gap in bytes between two images of a remote file that is read instead of skipped."""

_LARGEST = 4 << 20
"""Bytes from which images are no longer read together."""

_MAX_REQUESTED = 256 << 20
"""Bytes of remote files that are kept after they were requested."""

_Row = tuple[int, int, int, int, int]
"""The number of a place among those to read, its file, its offset, its size, and its CRC32C."""

_OPEN = 64
"""Files that a thread keeps open."""


class PlaceReader:
    """Reads bytes of files by their `PLACE`. Picklable and thread-safe."""

    def __init__(self, files: Sequence[str]):
        self._files = files
        self._remote = {i for i, path in enumerate(files) if storage.scheme(path) is not None}
        self._open: PerThread[Any] = PerThread(storage.open_read, _OPEN, lambda file: file.close())
        self._forget_requests()

    def __reduce__(self) -> tuple[Any, ...]:
        return PlaceReader, (self._files,)

    @property
    def is_remote(self) -> bool:
        """Whether some of the files are in a bucket."""
        return bool(self._remote)

    def prefetch(self, places: Array) -> None:
        """Requests the bytes of remote files, if any, at these places, `PLACE` [k]; `read` then waits for them."""
        if self._remote:
            self._request([row for row in _sort_places(places) if row[1] in self._remote])

    def read(self, places: Array) -> list[bytes]:
        """Reads the bytes at each place, `PLACE` [k], in any order; b"" for a size of 0.

        Raises:
          RldsBeamError: they do not match their checksum, or the file cannot be read.
        """
        found, rows = [b""] * len(places), _sort_places(places)
        if self._remote:
            remote = [row for row in rows if row[1] in self._remote]
            rows = [row for row in rows if row[1] not in self._remote]
            for row, wait in zip(remote, self._request(remote), strict=True):
                try:
                    self._put(found, row, wait())
                except (OSError, RldsBeamError) as error:
                    self._forget_requests()
                    raise self._describe(row[1], error) from error
        for number, offset, stop, group in _group(rows, 0):
            try:
                data = os.pread(self._open[self._files[number]].fileno(), stop - offset, offset)
            except OSError as error:
                raise self._describe(number, error) from error
            for row in group:
                _, _, low, length, _ = row
                self._put(found, row, data if len(data) == length else data[low - offset : low - offset + length])
        return found

    def _put(self, found: list[bytes], row: _Row, data: bytes) -> None:
        j, number, low, length, crc = row
        if google_crc32c.value(data) != crc:
            raise RldsBeamError(
                f"{self._files[number]}: the {length:,} bytes at {low:,} do not match their checksum: the file is "
                "damaged, or was changed after the dataset was opened. Fetch it again, and open the dataset again"
            )
        found[j] = data

    def _describe(self, number: int, error: OSError | RldsBeamError) -> RldsBeamError:
        if isinstance(error, RldsBeamError):
            return error
        return RldsBeamError(f"cannot read {self._files[number]}: {error.strerror or error}")

    def _forget_requests(self) -> None:
        self._process, self._requested = os.getpid(), Cache[Callable[[], bytes]](_MAX_REQUESTED)

    def _request(self, rows: Sequence[_Row]) -> list[Callable[[], bytes]]:
        """Functions that wait for the bytes of rows; requests those that were not requested recently."""
        from rlds_beam.remote import request_ranges

        if self._process != os.getpid():  # a fork has neither the threads nor, perhaps, the lock
            self._forget_requests()
        waiting = {row[0]: wait for row in rows if (wait := self._requested.get(row[1:4])) is not None}
        groups = _group([row for row in rows if row[0] not in waiting], _TOGETHER)
        for number, some in itertools.groupby(groups, operator.itemgetter(0)):
            of_file = list(some)
            contents = request_ranges(self._files[number], [(offset, stop) for _, offset, stop, _ in of_file])
            for (_, offset, stop, group), content in zip(of_file, contents, strict=True):
                for j, _, low, length, _ in group:
                    waiting[j] = functools.partial(_cut, content, low - offset, length)
                    self._requested.put((number, low, length), waiting[j], (stop - offset) // len(group))
        return [waiting[row[0]] for row in rows]


def _cut(content: Callable[[], bytes], start: int, size: int) -> bytes:
    data = content()
    return data if len(data) == size else data[start : start + size]


def _sort_places(places: Array) -> list[_Row]:
    """The places in the order of files and offsets, without those of images of zeros."""
    order, rows = np.lexsort((places["offset"], places["file"])).tolist(), places.tolist()
    found = []
    for j in order:
        offset, size, crc, number, _ = rows[j]
        if size:
            found.append((j, number, offset, size, crc))
    return found


def _group(rows: Sequence[_Row], gap: int) -> Iterator[tuple[int, int, int, list[_Row]]]:
    """Groups sorted rows that are near to each other: (file, offset, stop, rows)."""
    i = 0
    while i < len(rows):
        _, number, offset, size, _ = rows[i]
        stop, j = offset + size, i + 1
        while j < len(rows) and rows[j][1] == number and rows[j][2] <= stop + gap and stop - offset < _LARGEST:
            stop = max(stop, rows[j][2] + rows[j][3])
            j += 1
        yield number, offset, stop, list(rows[i:j])
        i = j


Place = tuple[str, int]
"""A file, and an offset in it."""

_LENGTH = 4
"""Bytes before each value of a Parquet page."""
_NEAR = 1 << 20
"""How far after the image before it an image is searched, in bytes, besides those of images that were not found."""
_MAX_MISSED = 8
"""Images in a row that are not found before the next span is searched."""


def stored_images(source: Source, shard: Shard, episode: Episode) -> dict[bytes, Place]:
    """The place of each image of an episode, as it was read, that is in a file as it is."""
    found: dict[bytes, Place] = {}
    for path, spans in source.media(shard, episode.key.position).items():
        column = episode.steps.get(path)
        if isinstance(column, EncodedImages) and not isinstance(spans, VideoSpan):
            found |= find_images(column, spans)
    return found


def find_images(images: Iterable[bytes], spans: Sequence[Span]) -> dict[bytes, Place]:
    """The place of each image that is in these spans, which hold them in order.

    Of images that do not get smaller, Snappy stores most as they are, but changes others, and those of 64 KB and more.
    """
    found: dict[bytes, Place] = {}
    wanted, i = list(images), 0
    for file, start, stop in spans:
        if i == len(wanted):
            break
        with _open_span(file, start, stop) as (content, base):
            at, end, skipped, near = start - base, stop - base, 0, stop - base
            for j in range(i, len(wanted)):
                image = wanted[j]
                if not image or image in found:
                    i += i == j  # those before it that were not found may be in the next span
                    continue
                place = at + _LENGTH  # the next value, or a new page
                if content[place : place + len(image)] != image:
                    place = content.find(image, at, min(end, near))
                if place >= 0 and place + len(image) <= end:
                    found[image], at, skipped, i = (file, base + place), place + len(image), 0, j + 1
                elif j - i >= _MAX_MISSED:
                    break
                else:
                    skipped += len(image)
                near = at + skipped + _NEAR
    return found


@contextlib.contextmanager
def _open_span(file: str, start: int, stop: int) -> Iterator[tuple[bytes | mmap.mmap, int]]:
    """The bytes of a file around a span, and where they begin in the file."""
    if storage.scheme(file) is not None:
        yield _read_span(file, start, stop), start
        return
    with open(file, "rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        yield content, 0


@functools.lru_cache(maxsize=4)  # episodes that follow each other share spans
def _read_span(file: str, start: int, stop: int) -> bytes:
    from rlds_beam.remote import open_store

    return open_store(file).read_ranges(file, [(start, stop)])[0]


_AT_ONCE = 64
"""Packets to read at a time."""


def frame_places(frames: VideoFrames) -> Array:
    """The places of a column's frames, `PLACE` [T], with the position of the video as `file`. Reads their packets."""
    places = np.zeros(len(frames), PLACE)
    places["file"] = frames.which
    places["offset"] = frames.numbers
    for which in np.unique(frames.which).tolist():
        steps, video = np.flatnonzero(frames.which == which), frames.videos[which]
        places["size"][steps] = video.packets["size"][video.shown[frames.numbers[steps]]]
    return places


class VideoWriter:
    """Collects the videos of an index that is being built."""

    def __init__(self, files: list[str]):
        self._files = files
        self._numbers: dict[str, int] = {}
        self._waiting: list[Video] = []
        self.videos: list[dict[str, Any]] = []
        self.scales: dict[str, Any] = {}

    def number(self, located: Located, path: str, known: Mapping[str, tuple[Any, ...]]) -> None:
        """Fills in the numbers of a column's videos.

        Args:
          known: the arguments of each `Video` by its path.
        """
        for name in located.videos:
            if name not in self._numbers:
                self._numbers[name] = len(self._numbers)
                self._waiting.append(Video(*known[name]))
        numbers = np.array([self._numbers[name] for name in located.videos], np.int64)
        located.places["file"] = FIRST_VIDEO - numbers[located.places["file"]]
        if located.scale is not None:
            self.scales[path] = dataclasses.asdict(located.scale)

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

    def __getitem__(self, number: Any) -> Any:
        if number not in self._opened:
            video = self._index.content["videos"][number]
            packets = self._index.packets[self._ends[number] : self._ends[number + 1]]
            size, base = tuple(video["size"]), tuple(video["base"])

            def read(start: int, stop: int) -> Iterator[bytes]:
                for first in range(start, stop, _AT_ONCE):
                    yield from self._reader.read(packets["place"][first : min(first + _AT_ONCE, stop)])

            self._opened[number] = Video(video["path"], video["codec"], video["format"], size, base, packets, read)
        return self._opened[number]

    def scale(self, path: str) -> Depth | None:
        """The scaling of a column's frames."""
        scale = self._index.content["scales"].get(path)
        return None if scale is None else Depth(**scale)
