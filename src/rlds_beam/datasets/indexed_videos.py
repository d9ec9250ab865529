"""The videos of an index: their packets, so that frames are decoded without opening a container.

packets.bin    the packets of all videos, one video after the other: `INDEXED_PACKET` [P]
index.json     "videos": the codec of each, and the number of its packets
               "scales": how a column's frames are converted, if they are no colors
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np

from rlds_beam.datasets.places import PlaceReader
from rlds_beam.datasets.step_index import BLOB, FIRST_VIDEO, INDEXED_PACKET, PLACE, IndexWriter, StepIndex
from rlds_beam.images.depth import Depth
from rlds_beam.images.video_frames import Scale, VideoFrames
from rlds_beam.images.videos import Video
from rlds_beam.typing import Array

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
        """Where the frames of a column are, `PLACE` [T], but for the numbers of the videos. Reads their packets."""
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
            one = self._index.content["videos"][number]
            packets = self._index.packets[self._ends[number] : self._ends[number + 1]]
            size, base = tuple(one["size"]), tuple(one["base"])

            def read(start: int, stop: int) -> Iterator[bytes]:
                for first in range(start, stop, _AT_ONCE):
                    yield from self._reader.read(packets["place"][first : min(first + _AT_ONCE, stop)])

            self._opened[number] = Video(one["path"], one["codec"], one["format"], size, base, packets, read)
        return self._opened[number]

    def scale(self, path: str) -> Scale | None:
        """How the frames of a column are converted."""
        scale = self._index.content["scales"].get(path)
        return None if scale is None else Depth(**scale)
