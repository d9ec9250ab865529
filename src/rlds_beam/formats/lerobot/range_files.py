"""The files of a range in v3.0: frames, and a video of each camera, each with all episodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from rlds_beam import storage
from rlds_beam.formats.lerobot.copied_frames import EncodedAgain
from rlds_beam.formats.lerobot.frame_format import FrameFormat
from rlds_beam.formats.lerobot.frames import FrameColumns, LerobotFrames
from rlds_beam.formats.lerobot.parquet_file import FramesFile
from rlds_beam.formats.lerobot.videos import VideoFile
from rlds_beam.output.shards import ShardWriter, WrittenFile

Array = np.ndarray[Any, Any]
Videos = Mapping[str, Iterable[Array]]
"""The video frames of an episode by feature."""


class RangeFiles:
    """Writes the files of a range.

    Args:
      directory: the directory of the dataset.
      frame_format: how frames are stored.
      names: the names of the frames file and the video files.
    """

    def __init__(self, directory: str, frame_format: FrameFormat, names: tuple[str, ...]):
        data, *videos = (storage.below(directory, name) for name in names)
        self._names, self._frames = names, 0
        self._shard = ShardWriter(data)
        self._file = FramesFile(self._shard, FrameColumns(frame_format.stored))
        self._videos: dict[str, VideoFile] = {}
        self._copied = [feature.name for feature in frame_format.videos if feature.path in frame_format.copied]
        for feature, path in zip(frame_format.videos, videos, strict=True):
            height, width, _ = feature.shape
            encoding = frame_format.encoding_of(feature)
            self._videos[feature.name] = VideoFile(path, encoding, frame_format.fps, height, width)

    def add(self, frames: LerobotFrames, videos: Videos, key: object) -> None:
        """Adds an episode."""
        self._file.add(frames, key)
        for name, pixels in videos.items():
            self._videos[name].add(pixels, key)
        self._frames += frames.length

    @property
    def ends(self) -> Array:
        """See `RangeFacts.ends`."""
        return np.empty((0, 0), np.int64)

    @property
    def encoded(self) -> dict[str, EncodedAgain]:
        """The episodes that were not copied, by feature whose videos are copied."""
        return {name: self._videos[name].encoded for name in self._copied}

    def commit(self) -> list[WrittenFile]:
        """Completes the files, and returns them."""
        self._file.close()
        written = [WrittenFile(self._names[0], self._shard.commit(), self._frames)]
        for name, video in zip(self._names[1:], self._videos.values(), strict=True):
            written.append(WrittenFile(name, video.commit(), self._frames, role="part"))
        return written

    def abort(self) -> None:
        """Removes what was written so far. Does nothing after `commit`."""
        self._shard.abort()
        self._file.abort()
        for video in self._videos.values():
            video.abort()
