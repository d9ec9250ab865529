"""The frames of a camera in an episode, as a video gets them: copied packets, decoded images, or depth.

Packets are copied as they are stored, without decoding them:

    source   episode 4                  episode 5                 episode 6
    packet   key   .     key   .        key   .     key   .       key   .
                                        copied, with new times

An episode that does not start with a key frame can only be copied after the packet before it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from rlds_beam.encoding.example.row_decoder import objects
from rlds_beam.episodes.episode import Column
from rlds_beam.errors import BadEpisode, needs
from rlds_beam.formats.lerobot.features import LerobotFeature
from rlds_beam.images.depth import Depth
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.images.video_frames import VideoFrames, unreadable
from rlds_beam.images.videos import Video
from rlds_beam.typing import Array

_MAX_HELD_BYTES = 256 << 20
"""Maximum bytes of pixels held for an episode and camera."""


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


class PixelFrames:
    """The frames of an episode, decoded one at a time, from images checked beforehand.

    Long episodes are decoded twice instead of being held in memory.
    """

    def __init__(self, images: Sequence[bytes], feature: LerobotFeature):
        """Raises BadEpisode if an image is damaged, or has another size."""
        self._images, self._feature = images, feature
        self._held: list[Array] | None = []
        holds = len(images) * feature.size <= _MAX_HELD_BYTES
        for image in self._decode():
            if holds:
                self._held.append(image)
        if not holds:
            self._held = None

    def __iter__(self) -> Iterator[Array]:
        return iter(self._decode() if self._held is None else self._held)

    def _decode(self) -> Iterator[Array]:
        for step, image in enumerate(self._images):
            try:
                yield EncodedImages(objects([image]), self._feature.shape).decode(self._feature.path)[0]
            except BadEpisode as bad:
                raise _name_frame(bad, step) from None


class DepthFrames:
    """The 12-bit frames of an episode, made one at a time, from depth checked beforehand."""

    def __init__(self, column: Column, path: str, shape: tuple[int, ...], depth: Depth):
        """Raises BadEpisode if an image is damaged, or is not of this shape, (height, width, 1)."""
        self._column, self._path, self._shape, self._depth = column, path, shape, depth
        if isinstance(column, EncodedImages):
            for _ in self:
                pass

    def __iter__(self) -> Iterator[Array]:
        height, width, _ = self._shape
        for step in range(len(self._column)):
            yield self._depth.quantize(self._pixels(step).reshape(height, width))

    def _pixels(self, step: int) -> Array:
        if not isinstance(self._column, EncodedImages):
            return np.asarray(self._column[step])
        if not self._column.image(step):  # a step added by a repair or a connector
            return np.zeros(self._shape, np.uint16)
        try:
            image = self._column[[step]]
            assert isinstance(image, EncodedImages)
            return np.asarray(EncodedImages(image.data, self._shape, image.dtype).decode(self._path)[0])
        except BadEpisode as bad:
            raise _name_frame(bad, step) from None


def _name_frame(bad: BadEpisode, step: int) -> BadEpisode:
    """The same error, which also says which frame of the episode it is."""
    return BadEpisode(
        *(
            dataclasses.replace(fault, detail=f"{fault.detail} (its frame {step})", step=step)
            for fault in bad.violations
        )
    )
