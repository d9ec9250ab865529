"""Videos of a LeRobot dataset: the frames of a camera in an episode, and the files that hold them.

In v3.0, a file has all episodes of a range. The frame rate is constant and the first frame is at 0, so frame i of the
file is exactly at i / fps. LeRobot looks a frame up by its time, with a tolerance of 1e-4 s. `images/videos.py` reads
them.

    file-003.mp4      episode 7                episode 8
    frame             0     1     2     3      4     5
    time at 10 fps    0.0   0.1   0.2   0.3    0.4   0.5          from_timestamp of episode 8: 0.4

Packets of videos are copied as they are stored, without decoding them:

    source   episode 4                  episode 5                 episode 6
    packet   key   .     key   .        key   .     key   .       key   .
                                        copied, with new times

An episode that does not start with a key frame can only be copied after the packet before it.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from rlds_beam import storage
from rlds_beam.encoding.example.row_decoder import objects
from rlds_beam.episodes.episode import Column
from rlds_beam.errors import BadEpisode, UsageError, needs
from rlds_beam.formats.format_options import Codec, LerobotOptions
from rlds_beam.formats.lerobot.features import DEPTH_KEYS, LerobotFeature
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.images.video_frames import DEPTH_PIXELS, Depth, VideoFrames, color_pixels, unreadable
from rlds_beam.images.videos import Video
from rlds_beam.output.shards import LocalFile, ShardInfo, ShardWriter
from rlds_beam.platforms import reset_priority
from rlds_beam.typing import Array

PIXELS = "yuv420p"
_PRESETS: dict[str, str] = {"av1": "12", "h264": "medium"}
_ENCODERS = {"av1": "libsvtav1", "h264": "libx264"}
_ARRAYS = {PIXELS: "rgb24", DEPTH_PIXELS: DEPTH_PIXELS}
"""The pixel format of the arrays that become frames of a video, by its own."""
_DEPTH_OPTIONS = {"g": "1", "crf": "30", "x265-params": "lossless=1:pools=none:frame-threads=1:log-level=none"}
"""x265's options. It uses one thread, so that bytes are the same everywhere.

Every frame is a key frame: others are not lossless for some sizes (32x32), a few pixels change, and on each run others.
"""


@dataclasses.dataclass(frozen=True)
class Encoding:
    """Video encoder settings; the defaults are LeRobot's.

    Attributes:
      codec: `av1` (SVT-AV1) or `h264` (x264).
      crf: the quality; lower is better, with larger files.
      gop: the number of frames between key frames.
      preset: the encoder's speed preset.
    """

    codec: Codec = "av1"
    crf: int = 30
    gop: int = 2
    preset: str = "12"
    pixels = PIXELS

    @property
    def encoder(self) -> str:
        """FFmpeg's name of the encoder."""
        return _ENCODERS[self.codec]

    @staticmethod
    def from_options(options: LerobotOptions) -> Encoding:
        """The settings of a job. Raises UsageError if they cannot be used, or PyAV is not installed."""
        with needs("lerobot", "--images=video needs PyAV"):
            import av  # noqa: F401
        if not 0 <= options.crf <= 63 or options.gop < 1:
            raise UsageError(f"--crf={options.crf} --gop={options.gop}: expected 0 to 63, and 1 or more")
        return Encoding(options.vcodec, options.crf, options.gop, _PRESETS[options.vcodec])

    def options(self) -> dict[str, str]:
        """The encoder's options. It uses one thread, so that bytes are the same everywhere; workers share the cores.

        x264's macroblock tree (`mbtree`) reads uninitialized memory for most frame sizes, so the bytes would depend on
        previous memory contents.
        """
        own = {"svtav1-params": "fast-decode=0:lp=1"} if self.codec == "av1" else {"threads": "1", "mbtree": "0"}
        return {"g": str(self.gop), "crf": str(self.crf), "preset": self.preset, **own}

    def info(self) -> dict[str, Any]:
        """The entries of info.json about the encoding."""
        return {
            "video.channels": 3,
            "video.g": self.gop,
            "video.crf": self.crf,
            "video.preset": int(self.preset) if self.preset.isdigit() else self.preset,
            "video.extra_options": {},
            "is_depth_map": False,
        }


@dataclasses.dataclass(frozen=True)
class DepthEncoding:
    """The encoder's settings for depth, with the members of `Encoding`."""

    depth: Depth
    encoder = "libx265"
    pixels = DEPTH_PIXELS
    codec = "hevc"

    def options(self) -> dict[str, str]:
        return _DEPTH_OPTIONS

    def info(self) -> dict[str, Any]:
        scale = {f"video.{key}": getattr(self.depth, name) for name, key in DEPTH_KEYS.items()}
        return {
            "video.channels": 1,
            "video.g": int(_DEPTH_OPTIONS["g"]),
            "video.crf": int(_DEPTH_OPTIONS["crf"]),
            "video.preset": None,
            "video.extra_options": {"x265-params": "lossless=1"},
            **scale,
            "is_depth_map": True,
            "depth_unit": self.depth.unit,
        }


def video_info(encoding: Encoding | DepthEncoding, height: int, width: int, fps: int) -> dict[str, Any]:
    """The `info` of a video feature in info.json."""
    return {
        "video.height": height,
        "video.width": width,
        "video.codec": encoding.codec,
        "video.pix_fmt": encoding.pixels,
        "video.fps": fps,
        "has_audio": False,
        "video.fast_decode": 0,
        "video.video_backend": "pyav",
        **encoding.info(),
    }


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
    """The number of episodes that were encoded although packets are copied, and why the first of them was."""

    episodes: int = 0
    why: str = ""

    def add(self, other: EncodedAgain) -> EncodedAgain:
        return EncodedAgain(self.episodes + other.episodes, self.why or other.why)


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
    """The frames of an episode, made one at a time, from images checked beforehand.

    They are uint8 (height, width, 3), or the 12-bit numbers of depth, uint16 (height, width). Long episodes are decoded
    twice instead of being held in memory.
    """

    def __init__(self, column: Column, feature: LerobotFeature):
        """Raises BadEpisode if an image is damaged, or has another size."""
        self._column, self._feature = column, feature
        self._held: list[Array] | None = None
        if isinstance(column, EncodedImages):
            if len(column) * feature.size <= _MAX_HELD_BYTES:
                self._held = list(self._decode())
            else:
                collections.deque(self._decode(), maxlen=0)

    def __iter__(self) -> Iterator[Array]:
        return iter(self._decode() if self._held is None else self._held)

    def _decode(self) -> Iterator[Array]:
        column, feature = self._column, self._feature
        for step in range(len(column)):
            if not isinstance(column, EncodedImages):
                pixels = np.asarray(column[step]).reshape(feature.shape)
            elif not (image := column.image(step)):  # a step added by a repair or a connector
                pixels = np.zeros(feature.shape, column.dtype)
            else:
                try:
                    pixels = EncodedImages(objects([image]), feature.shape, column.dtype).decode(feature.path)[0]
                except BadEpisode as bad:
                    faults = bad.violations
                    named = (dataclasses.replace(f, detail=f"{f.detail} (its frame {step})", step=step) for f in faults)
                    raise BadEpisode(*named) from None
            yield pixels if feature.depth is None else feature.depth.quantize(pixels[..., 0])


class VideoFile:
    """Writes frames to a video, which gets its file name when complete. A context manager, which aborts at its end.

    Attributes:
      frames: the number of frames so far.
      encoded: the number of episodes that were encoded, and why the first of them was not copied.
      ends: see `VideoPack`.
    """

    ends: Sequence[int] = ()

    def __init__(self, path: str, encoding: Encoding | DepthEncoding, fps: int | Fraction, height: int, width: int):
        with needs("lerobot", "writing videos needs PyAV"):
            import av
        os.environ.setdefault("SVT_LOG", "1")  # log errors, not settings
        self._av, self._local, self.frames = av, LocalFile(path), 0
        self._encoding, self._fps, self._size = encoding, fps, (height, width)
        self._container: Any = None
        self._stream: Any = None
        self._copied: str | None = None  # the codec's digest, if packets are copied
        self._last: tuple[str, int] | None = None  # the file and the number of the last copied packet
        self._keys: list[str] = []
        self._episodes = 0
        self.encoded = EncodedAgain()

    def add(self, pixels: Iterable[Array], key: object) -> None:
        """Adds the frames of an episode, uint8 (height, width, 3), or 12-bit numbers (height, width).

        `CopiedFrames` are copied, unless the file already has frames of another codec: then all of it is encoded.
        """
        why = self._why_not_copied(pixels)
        self._episodes += 1
        if isinstance(pixels, CopiedFrames) and not why:
            self._copy(pixels)
        else:
            if self._copied is not None:
                self._encode_copied()
                self.encoded = EncodedAgain(self._episodes - 1, why)
            self.encoded = self.encoded.add(EncodedAgain(1, why))
            self._encode(pixels)
        self._keys[1:] = [str(key)]

    def _open(self) -> None:
        self._container = self._av.open(self._local.name, "w", format="mp4", options={"movflags": "faststart"})

    def _why_not_copied(self, frames: Iterable[Array]) -> str:
        """Why the frames cannot be copied; empty if they can, as packets of the same codec."""
        if not isinstance(frames, CopiedFrames):
            return "connectors change frames, or they are not consecutive frames of one .mp4 file"
        if not frames.keys[0] and self._last != (frames.video.path, frames.first - 1):
            return "some do not begin at a key frame"
        same = self._stream is None or self._copied == frames.video.codec
        return "" if same else "the codecs of the episodes differ"

    def _copy(self, frames: CopiedFrames) -> None:
        if self._stream is None:
            self._open()
            self._copied = frames.video.codec
            with frames.video.template() as template:
                self._stream = self._container.add_stream_from_template(template, opaque=True)
            self._stream.time_base = 1 / Fraction(self._fps)
        for data, key in zip(frames.packets, frames.keys, strict=True):
            packet = self._av.Packet(data)
            packet.stream, packet.time_base, packet.is_keyframe = self._stream, 1 / Fraction(self._fps), key
            packet.pts = packet.dts = self.frames
            packet.duration = 1
            self._container.mux(packet)
            self.frames += 1
        self._last = frames.video.path, frames.first + len(frames.packets) - 1

    def _encode_copied(self) -> None:
        """Encodes the frames that were copied so far."""
        self._close()
        self._stream = None
        copied, self._copied = f"{self._local.name}.copied", None
        os.replace(self._local.name, copied)
        try:
            frames, self.frames = np.arange(self.frames), 0
            self._encode(color_pixels(frame) for _, frame in Video.probe(copied).decode(frames))
        finally:
            os.unlink(copied)

    def _encode(self, pixels: Iterable[Array]) -> None:
        if self._stream is None:
            self._open()
            self._stream = self._container.add_stream(
                self._encoding.encoder, self._fps, options=self._encoding.options()
            )
            self._stream.pix_fmt, (self._stream.height, self._stream.width) = self._encoding.pixels, self._size
        for image in pixels:
            frame = self._av.VideoFrame.from_ndarray(np.ascontiguousarray(image), _ARRAYS[self._encoding.pixels])
            frame.pts = self.frames
            packets = self._stream.encode(frame)
            if not self.frames:  # the first one opens the encoder
                reset_priority()
            self.frames += 1
            self._container.mux(packets)

    def content(self) -> bytes:
        """Returns the complete video instead of a file, which `abort` removes."""
        self._complete()
        with open(self._local.name, "rb") as file:
            return file.read()

    def commit(self) -> ShardInfo:
        """Completes the file and returns its counts."""
        self._complete()
        first, last = (self._keys[0], self._keys[-1]) if self._keys else (None, None)
        return self._local.commit(self.frames, first, last)

    def abort(self) -> None:
        """Removes what was written so far. Does nothing after `commit`."""
        if self._container is not None:
            with contextlib.suppress(Exception):  # an encoder without frames cannot be closed
                self._close()
        self._local.abort()

    def __enter__(self) -> VideoFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self.abort()

    def _complete(self) -> None:
        if self.frames:
            if self._copied is None:
                self._container.mux(self._stream.encode())
            self._close()
        else:  # a range without episodes: an empty file, removed at the end
            with contextlib.suppress(Exception):  # an encoder without frames cannot be closed
                self._close()
            open(self._local.name, "wb").close()

    def _close(self) -> None:
        container, self._container = self._container, None
        if container is not None:
            container.close()


class VideoPack:
    """Appends a video for each episode to a file, from which v2.1 gets a file for each (`split_pack`), as `VideoFile`.

    Attributes:
      encoded: see `VideoFile`.
      ends: where the videos begin and end in the file.
    """

    def __init__(self, path: str, encoding: Encoding | DepthEncoding, fps: int | Fraction, height: int, width: int):
        self._shard, self._settings = ShardWriter(path), (path, encoding, fps, height, width)
        self.encoded = EncodedAgain()
        self.ends = [0]

    def add(self, pixels: Iterable[Array], key: object) -> None:
        """Adds the frames of an episode."""
        with VideoFile(*self._settings) as video:  # a temporary file next to the pack
            video.add(pixels, key)
            content = video.content()
            self.encoded = self.encoded.add(video.encoded)
            self._shard.write([content], video.frames, key)
        self.ends.append(self.ends[-1] + len(content))

    def commit(self) -> ShardInfo:
        return self._shard.commit()

    def abort(self) -> None:
        self._shard.abort()


def split_pack(path: str, ends: Sequence[int]) -> Iterator[bytes]:
    """The video of each episode in a pack. Raises ValueError if the pack is cut short."""
    with storage.open_read(path) as file:
        for start, stop in itertools.pairwise(ends):
            content = file.read(stop - start)
            if len(content) < stop - start:
                raise ValueError(f"it has {start + len(content)} bytes, expected {ends[-1]}")
            yield content
