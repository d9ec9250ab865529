"""Frames of a video that are copied as they are stored, without decoding them.

    source   episode 4                  episode 5                 episode 6
    packet   key   .     key   .        key   .     key   .       key   .
                                        copied, with new times

An episode that does not start with a key frame can only be copied after the packet before it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from rlds_beam.episodes.episode import Column
from rlds_beam.errors import needs
from rlds_beam.formats.lerobot.features import LerobotFeature
from rlds_beam.images.video_frames import VideoFrames, unreadable
from rlds_beam.images.videos import Video

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class CopiedFrames:
    """The packets of an episode's frames, in order.

    Attributes:
      column: the frames.
      video: their video.
      first: the number of the first packet in it.
      packets: the bytes of each packet.
      keys: whether each is a key frame.
    """

    column: VideoFrames
    video: Video
    first: int
    packets: list[bytes]
    keys: list[bool]

    def __iter__(self) -> Iterator[Array]:
        """The decoded frames, uint8 (height, width, 3)."""
        for _, image in self.column.pixels():
            yield image


class EncodedAgain(NamedTuple):
    """Episodes that were encoded in a video whose packets are copied.

    Attributes:
      episodes: their number.
      why: why the first of them was not copied.
    """

    episodes: int = 0
    why: str = ""

    def add(self, other: EncodedAgain) -> EncodedAgain:
        """The sum."""
        return EncodedAgain(self.episodes + other.episodes, self.why or other.why)


def why_not_copied(frames: Iterable[Array], last: tuple[str, int] | None = None) -> str:
    """Why the packets of frames cannot be copied; empty if they can.

    Args:
      frames: the frames.
      last: the file and the number of the packet before them in the output, if that was copied.
    """
    if not isinstance(frames, CopiedFrames):
        return "connectors change frames, or they are not consecutive frames of one .mp4 file"
    starts = frames.keys[0] or last == (frames.video.path, frames.first - 1)
    return "" if starts else "some do not begin at a key frame"


def copied_frames(column: Column, feature: LerobotFeature) -> CopiedFrames | None:
    """The frames of an episode, if they can be copied: a run of packets of an MP4 file, shown in their order.

    Raises:
      BadEpisode: the video cannot be read.
    """
    if not isinstance(column, VideoFrames) or column.scale is not None or not len(column):
        return None
    which, numbers = set(column.which.tolist()), column.numbers
    if len(which) > 1 or (np.diff(numbers) != 1).any():
        return None
    video = column.videos[which.pop()]
    packets = video.shown[numbers]
    first, stop = int(packets[0]), int(packets[-1]) + 1
    if (np.diff(packets) != 1).any() or video.size != feature.shape[:2] or not video.path.endswith(".mp4"):
        return None
    with needs("lerobot", "reading videos needs PyAV"):
        import av
    try:
        data, keys = list(video.read(first, stop)), video.packets["key"][first:stop].tolist()
    except (OSError, ValueError, av.FFmpegError) as error:
        raise unreadable(video.path, error, feature.path) from None
    return CopiedFrames(column, video, first, data, keys)
