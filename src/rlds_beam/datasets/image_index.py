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
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    Located,
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

_LARGEST = 4 << 20
"""Bytes from which images are no longer read together."""

_MAX_PREFETCHED = 256 << 20
"""Bytes that are kept between `prefetch` and `read`."""

_Row = tuple[int, int, int, int, int]
"""The number of a place among those to read, its file, its offset, its size, and its CRC32C."""

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
        self.is_remote = any(storage.scheme(path) is not None for path in files)
        self._open: PerThread[Any] = PerThread(storage.open_read, _OPEN, _close)
        self._remote = _Prefetched()

    def __reduce__(self) -> tuple[Any, ...]:
        return PlaceReader, (self._files, self._index)

    def prefetch(self, places: Array) -> None:
        """Starts to read the bytes of remote files, if any, at these places, `PLACE` [k]; `read` then finds them."""
        if self.is_remote:
            state = self._state()
            missing = [row for row in self._remote_rows(places) if not state.keep(row[1:4])]
            for row, piece in self._request(missing):
                state.keep(row[1:4], piece)

    def drop_prefetched(self) -> None:
        """See `base.drop_prefetched`."""
        self._state().clear()

    def read(self, places: Array) -> list[bytes]:
        """Reads the bytes at each place, `PLACE` [k], in any order; b"" for a size of 0.

        Raises:
          RldsBeamError: they do not match their checksum, or the file cannot be read.
        """
        found = [b""] * len(places)
        remote = self._remote_rows(places) if self.is_remote else []
        if remote:
            self._read_remote(remote, found)
        there = {row[0] for row in remote}
        local = [row for row in _rows(places) if row[0] not in there]
        for number, offset, stop, group in _group(local, 0):
            if number == BLOB and self._index is not None:
                self._read_blob(self._index, group, offset, stop, found)
            else:
                self._read_group(self._files[number], group, offset, stop, found)
        return found

    def _remote_rows(self, places: Array) -> list[_Row]:
        return [row for row in _rows(places) if row[1] >= 0 and storage.scheme(self._files[row[1]]) is not None]

    def _state(self) -> _Prefetched:
        self._remote = self._remote.of_this_process()
        return self._remote

    def _read_remote(self, rows: Sequence[_Row], found: list[bytes]) -> None:
        state = self._state()
        pieces = [(row, piece) for row in rows if (piece := state.take(row[1:4])) is not None]
        there = {row[0] for row, _ in pieces}
        pieces += self._request([row for row in rows if row[0] not in there])
        for row, piece in pieces:
            j, number, low, length, crc = row
            path = self._files[number]
            try:
                data = piece.read(low, length)
            except OSError as error:
                raise RldsBeamError(f"cannot read {path}: {error.strerror or error}") from error
            if google_crc32c.value(data) != crc:
                raise _damage_error(path, low, length)
            found[j] = data

    def _request(self, rows: Sequence[_Row]) -> list[tuple[_Row, _Piece]]:
        """Requests for the bytes of rows."""
        from rlds_beam.remote import request_ranges

        groups = list(_group(rows, _TOGETHER))
        pieces: list[tuple[_Row, _Piece]] = []
        for number, some in itertools.groupby(groups, operator.itemgetter(0)):
            of_file = list(some)
            contents = request_ranges(self._files[number], [(offset, stop) for _, offset, stop, _ in of_file])
            for (_, offset, _, group), content in zip(of_file, contents, strict=True):
                piece = _Piece(content, offset)
                pieces += [(row, piece) for row in group]
        return pieces

    def _read_group(self, path: str, group: Sequence[_Row], offset: int, stop: int, found: list[bytes]) -> None:
        """Reads what is between two offsets of a local file at once."""
        try:
            data = os.pread(self._open[path].fileno(), stop - offset, offset)
        except OSError as error:
            raise RldsBeamError(f"cannot read {path}: {error.strerror or error}") from error
        for j, _, low, length, crc in group:
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


def _rows(places: Array) -> list[_Row]:
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


class _Piece:
    """Bytes of a file that were requested.

    Attributes:
      content: waits for the bytes.
      offset: where they begin in the file.
    """

    def __init__(self, content: Callable[[], bytes], offset: int):
        self.content, self.offset = content, offset

    def read(self, offset: int, size: int) -> bytes:
        """Waits for some of the bytes. Raises RldsBeamError or OSError if they cannot be read."""
        data = self.content()
        return data if len(data) == size else data[offset - self.offset : offset - self.offset + size]


class _Prefetched:
    """What was requested from files in a bucket, but not yet read. Thread-safe."""

    def __init__(self) -> None:
        self._process, self._lock = os.getpid(), threading.Lock()
        self._kept: OrderedDict[tuple[int, int, int], tuple[_Piece | None, int]] = OrderedDict()
        self._bytes = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return _Prefetched, ()

    def of_this_process(self) -> _Prefetched:
        """These files; without any, if the process was forked since, and a lock may be held forever."""
        return self if self._process == os.getpid() else _Prefetched()

    def keep(self, key: tuple[int, int, int], piece: _Piece | None = None) -> bool:
        """Keeps the bytes of a file, an offset, and a size for one more `take`; the oldest go if it is too much.

        Returns:
          Whether they are kept: False if there is no piece.
        """
        with self._lock:
            known, takes = self._kept.get(key, (piece, 0))
            if known is None:
                return False
            self._bytes += 0 if takes else key[2]
            self._kept[key] = known, takes + 1
            while self._bytes > _MAX_PREFETCHED and len(self._kept) > 1:
                (*_, dropped), _ = self._kept.popitem(last=False)
                self._bytes -= dropped
            return True

    def clear(self) -> None:
        """Drops what is kept."""
        with self._lock:
            self._kept.clear()
            self._bytes = 0

    def take(self, key: tuple[int, int, int]) -> _Piece | None:
        """What is kept; None if it is not."""
        with self._lock:
            piece, takes = self._kept.pop(key, (None, 0))
            if takes > 1:
                self._kept[key] = piece, takes - 1
            elif takes:
                self._bytes -= key[2]
            return piece


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
    """The place of each image of an episode, as it was read, that is in a file as it is."""
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
            self.scales[path] = dataclasses.asdict(located.scale)  # type: ignore[call-overload]

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
