"""The files of a range.

In v3.0: frames, and a video of each camera, each with all episodes of the range.

In v2.1: a Parquet file of each episode, and a video of each camera. Their names contain the episode number, which is
known only when all ranges are finished. Until then the files of a range are concatenated in packs, one for frames and
one for each camera:

    _ranges/train-00003-of-00008.data     [ Parquet ][ Parquet ][ Parquet ]
                                                    ^          ^          ^   `ends`, in the facts of the range

`unpack` writes them under their final names, with the final numbers. The packs stay until the commit of the range names
these files, so the job may be killed at any point.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from rlds_beam import storage
from rlds_beam.formats.lerobot import layout
from rlds_beam.formats.lerobot.camera_frames import EncodedAgain, why_not_copied
from rlds_beam.formats.lerobot.features import LerobotFeature
from rlds_beam.formats.lerobot.frames import FrameFormat, LerobotFrames
from rlds_beam.formats.lerobot.parquet_file import FramesFile, renumber
from rlds_beam.formats.lerobot.range_facts import RangeFacts, RangeNumbers, report_damage
from rlds_beam.formats.lerobot.videos import VideoFile, encoded_video
from rlds_beam.output.shards import ShardWriter, WrittenFile
from rlds_beam.typing import Array

Videos = Mapping[str, Iterable[Array]]
"""The video frames of an episode by feature."""


class RangeFiles:
    """Writes the files of a range in v3.0.

    Args:
      directory: the directory of the dataset.
      frame_format: how frames are stored.
      names: the names of the frames file and the video files.
    """

    def __init__(self, directory: str, frame_format: FrameFormat, names: tuple[str, ...]):
        data, *videos = (storage.below(directory, name) for name in names)
        self._names, self._frames = names, 0
        self._shard = ShardWriter(data)
        self._file = FramesFile(self._shard, frame_format.stored)
        self._videos: dict[str, VideoFile] = {}
        self._copied = [feature.name for feature in frame_format.videos if feature.path in frame_format.copied]
        for feature, path in zip(frame_format.videos, videos, strict=True):
            height, width, _ = feature.shape
            encoding = frame_format.video_encoding(feature)
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


class EpisodeFiles:
    """Writes the packs of a range in v2.1.

    Args:
      directory: the directory of the dataset.
      frame_format: how frames are stored.
      names: the names of the frames pack and the video packs.

    Attributes:
      encoded: the episodes that were not copied, by feature whose videos are copied.
    """

    def __init__(self, directory: str, frame_format: FrameFormat, names: tuple[str, ...]):
        self._format, self._names, self._frames = frame_format, names, 0
        self._paths = [storage.below(directory, name) for name in names]
        self._shards = [ShardWriter(path) for path in self._paths]
        self._ends: list[list[int]] = [[0] * len(names)]
        self.encoded = {
            video.name: EncodedAgain() for video in frame_format.videos if video.path in frame_format.copied
        }

    def add(self, frames: LerobotFrames, videos: Videos, key: object) -> None:
        """Adds an episode."""
        file = FramesFile(self._shards[0], self._format.stored)
        file.add(frames, key)
        sizes = [file.close()]
        for place, feature in enumerate(self._format.videos, 1):
            height, width, _ = feature.shape
            encoding, pixels = self._format.video_encoding(feature), videos[feature.name]
            if feature.name in self.encoded and (why := why_not_copied(pixels)):
                self.encoded[feature.name] = self.encoded[feature.name].add(EncodedAgain(1, why))
            content = encoded_video(self._paths[place], encoding, self._format.fps, height, width, pixels)
            self._shards[place].write([content], frames.length, key)
            sizes.append(len(content))
        self._ends.append([start + size for start, size in zip(self._ends[-1], sizes, strict=True)])
        self._frames += frames.length

    @property
    def ends(self) -> Array:
        """See `RangeFacts.ends`."""
        return np.array(self._ends, np.int64)

    def commit(self) -> list[WrittenFile]:
        """Completes the packs, and returns them."""
        return [
            WrittenFile(name, shard.commit(), self._frames, role="part" if place else "items")
            for place, (name, shard) in enumerate(zip(self._names, self._shards, strict=True))
        ]

    def abort(self) -> None:
        """Removes what was written so far. Does nothing after `commit`."""
        for shard in self._shards:
            shard.abort()


def file_names(videos: Sequence[LerobotFeature], episode: int) -> list[str]:
    """The names of an episode's files: its frames, then its videos."""
    place = layout.place_of_episode(episode)
    paths = [layout.EPISODE_VIDEO_PATH.format(video_key=feature.name, **place) for feature in videos]
    return [layout.EPISODE_DATA_PATH.format(**place), *paths]


def unpack(
    directory: str, videos: Sequence[LerobotFeature], packs: list[str], facts: RangeFacts, numbers: RangeNumbers
) -> list[WrittenFile]:
    """Writes the episode files of a range and returns them in episode order. Can be repeated.

    Args:
      directory: the directory of the dataset.
      videos: the features that are videos.
      packs: the names of the packs.
      facts: the facts of the range.
      numbers: its numbers in the dataset.

    Raises:
      NotVerifiedError: a pack is missing or cut short.
    """
    frame_numbers, paths = facts.frame_numbers(numbers), [storage.below(directory, name) for name in packs]
    episodes = zip(*(_contents(path, facts, i, frame_numbers) for i, path in enumerate(paths)), strict=True)
    written = []
    for i, (contents, length, key) in enumerate(zip(episodes, facts.lengths.tolist(), facts.keys, strict=True)):
        names = file_names(videos, numbers.first_episode + i)
        for place, (name, content) in enumerate(zip(names, contents, strict=True)):
            with ShardWriter(storage.below(directory, name)) as shard:
                shard.write([content], length, key)
                written.append(WrittenFile(name, shard.commit(), length, role="part" if place else "items"))
    return written


def _contents(path: str, facts: RangeFacts, place: int, numbers: Mapping[str, Array]) -> Iterator[bytes]:
    """The file of each episode in a pack, with the final numbers if it is the pack of frames."""
    ends = facts.ends[:, place].tolist()
    stops = np.cumsum(facts.lengths)
    with report_damage(path), storage.open_read(path) as file:
        for (start, end), first, stop in zip(itertools.pairwise(ends), stops - facts.lengths, stops, strict=True):
            content = file.read(end - start)
            if len(content) < end - start:
                raise OSError(f"it has {start + len(content)} bytes, expected {ends[-1]}")
            if not place:
                frames = io.BytesIO(content)
                renumber(frames, {name: values[first:stop] for name, values in numbers.items()})
                content = frames.getvalue()
            yield content
