"""Random access to the frames of a video: its packets are listed once, without decoding.

    packet    0      1      2      3      4      5          in the order of decoding: offset, size, CRC32C, time, key
              key                  key
    frame     0      2      1      3      5      4          by time

A frame is decoded from the key frame before it, with the packets from there to its own. These are read from the file
by their offsets, and compared with their checksums. So a random frame costs no seek, and a file that has changed never
gives other frames.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import google_crc32c
import numpy as np

from rlds_beam import storage
from rlds_beam.errors import needs
from rlds_beam.images.headers import MAX_PIXELS
from rlds_beam.lazy import lockless_property
from rlds_beam.typing import Array

Packets = Callable[[int, int], Iterator[bytes]]
"""Reads the packets of a video from one number to another; raises ValueError if they have changed."""

PACKET = np.dtype(
    [("offset", "<i8"), ("size", "<u4"), ("crc", "<u4"), ("time", "<i8"), ("key", "?"), ("shown", "?")], align=False
)
"""A packet: where it is in the file, the time of its frame, whether it is a key frame, and whether it is shown."""

_OWN_FILE = {"format_whitelist": "mov,mp4,m4a,3gp,3g2,mj2", "protocol_whitelist": "none"}
"""FFmpeg options: only MP4, which holds packets as they are. Playlists read other files, or the network."""

_NO_TIME = -(1 << 63)
_CHANGED = "it has changed since it was opened"
_BLOCK = 4 << 20
"""Bytes to read at a time."""
_GAP = 1 << 16
"""The largest gap between two packets that is read instead of skipped."""


class Video:
    """A video and its packets.

    Attributes:
      path: its path.
      codec: the digest of its codec's parameters: a decoder can be used for all videos with the same.
      format: the name of FFmpeg's pixel format.
      size: (height, width).
      base: the numerator and denominator of the unit of time in seconds.
      packets: the packets, in the order of decoding: `PACKET` [N], or an array with the fields `time`, `key`, `shown`.
      read: reads packets.
    """

    def __init__(
        self,
        path: str,
        codec: str,
        format: str,
        size: tuple[int, int],
        base: tuple[int, int],
        packets: Array,
        read: Packets | None = None,
    ):
        self.path, self.codec, self.format, self.size, self.base = path, codec, format, size, base
        self.packets = packets
        self.read: Packets = read or functools.partial(_packets_of_file, path, packets)

    @classmethod
    def probe(cls, path: str) -> Video:
        """Lists the packets of a file; kept for the last files.

        Raises:
          OSError, ValueError, av.FFmpegError: it cannot be read.
        """
        is_local = storage.scheme(path) is None
        return _scan(path, storage.stamp(path) if is_local else storage.checksum(path) or storage.size(path))

    def __reduce__(self) -> tuple[Any, ...]:
        return Video.probe, (self.path,)

    @contextlib.contextmanager
    def template(self) -> Iterator[Any]:
        """The stream of PyAV, for a file to which packets are copied. Raises ValueError if the file has changed."""
        with _open(self.path) as (_, stream):
            if _codec_name(stream) != self.codec:
                raise ValueError(_CHANGED)
            yield stream

    def __len__(self) -> int:
        """The number of frames."""
        return len(self.shown)

    @lockless_property
    def shown(self) -> Array:
        """The packet of each frame, by time: int64 [F]."""
        numbers = np.flatnonzero(self.packets["shown"])
        return numbers[np.argsort(self.packets["time"][numbers], kind="stable")]

    @lockless_property
    def times(self) -> Array:
        """The time of each frame in seconds: float64 [F]."""
        seconds: Array = self.packets["time"][self.shown].astype(np.float64) * self.base[0] / self.base[1]
        return seconds

    def frame_at(self, start: float, fps: float) -> int:
        """The first frame that begins at a time, or less than half a frame before it."""
        return int(np.searchsorted(self.times, start - 0.5 / fps, side="right"))

    def decode(self, numbers: Array) -> Iterator[tuple[int, Any]]:
        """Decodes frames.

        Args:
          numbers: the numbers of the frames, by time, in rising order.

        Yields:
          (number, frame of PyAV), each once, in the order of decoding.

        Raises:
          OSError, ValueError, av.FFmpegError: the file has changed, or is damaged.
        """
        with needs("lerobot", "reading videos needs PyAV"):
            import av

        times = self.packets["time"]
        for start, stop, some in self.runs(numbers):
            wanted = dict(zip(times[self.shown[some]].tolist(), some, strict=True))
            with _decoder(self) as decoder:
                for time, data in zip(times[start:stop].tolist(), self.read(start, stop), strict=True):
                    packet = av.Packet(data)
                    packet.pts = None if time == _NO_TIME else time
                    frames = decoder.decode(packet)
                    yield from _take(frames, wanted, times[start])
                if wanted:  # frames that the decoder holds back to put them in order
                    frames = decoder.decode(None)
                    yield from _take(frames, wanted, times[start])
            if wanted:
                raise ValueError(f"frame {min(wanted.values())} cannot be decoded")

    def runs(self, numbers: Array) -> Iterator[tuple[int, int, list[int]]]:
        """The packets to decode for some frames, as (start, stop, frames)."""
        start, stop, frames = 0, 0, list[int]()
        for number, first in zip(numbers.tolist(), self._starts(numbers).tolist(), strict=True):
            last = int(self.shown[number])
            if frames and start <= first <= stop:
                stop = max(stop, last + 1)
            else:
                if frames:
                    yield start, stop, frames
                start, stop, frames = first, last + 1, []
            frames.append(number)
        if frames:
            yield start, stop, frames

    def _starts(self, numbers: Array) -> Array:
        """The key frame from which to decode each frame: the last one before it in the file and in time."""
        packets, wanted, keys = self.packets, self.shown[numbers], self._keys
        if not len(keys):
            return np.zeros(len(wanted), np.int64)
        places = np.searchsorted(keys, wanted, side="right") - 1
        while True:  # frames that are shown before the key frame that they follow
            early = (places > 0) & (packets["time"][keys[places]] > packets["time"][wanted])
            if not early.any():
                return np.where(places < 0, 0, keys[places])
            places = places - early

    @lockless_property
    def _keys(self) -> Array:
        return np.flatnonzero(self.packets["key"])


def _take(frames: list[Any], wanted: dict[int, int], first: int) -> Iterator[tuple[int, Any]]:
    """The wanted frames of those that were decoded.

    Args:
      first: the time of the key frame from which they were decoded; those before it may lack what they refer to.

    Raises:
      ValueError: a frame is damaged: FFmpeg guessed a part of it, and of those that refer to it.
    """
    for frame in frames:
        if frame.is_corrupt and (frame.pts is None or frame.pts >= first):
            raise ValueError("a frame is damaged")
        number = wanted.pop(frame.pts, None)
        if number is not None:
            yield number, frame


# Files


@contextlib.contextmanager
def _open(path: str) -> Iterator[tuple[Any, Any]]:
    """A video's container, and its stream, whose decoder does not run threads."""
    with needs("lerobot", "reading videos needs PyAV"):
        import av

    with storage.open_read(path) as file, contextlib.ExitStack() as stack:
        container = stack.enter_context(av.open(file, options=_OWN_FILE))
        if not container.streams.video:
            raise ValueError("it has no video stream")
        stream = container.streams.video[0]
        codec = stream.codec_context
        codec.thread_type, codec.thread_count = "NONE", 1
        if codec.width * codec.height > MAX_PIXELS:
            raise ValueError(f"its frames have {codec.width}x{codec.height} pixels; the limit is {MAX_PIXELS:,}")
        if codec.format is None:
            raise ValueError("its pixel format is unknown")
        codec.options = {"max_pixels": str(MAX_PIXELS)}  # a later frame may have another size
        yield container, stream


def _codec_name(stream: Any) -> str:
    context = stream.codec_context
    facts = (
        context.name,
        context.codec_tag,
        context.width,
        context.height,
        context.format.name,
        context.profile,
        int(context.color_range),
        int(context.colorspace),
        int(context.color_primaries),
        int(context.color_trc),
    )
    return hashlib.sha256(repr(facts).encode() + (context.extradata or b"")).hexdigest()[:32]


@functools.lru_cache(maxsize=32)
def _scan(path: str, stamp: object) -> Video:
    del stamp
    most, entries = storage.size(path), list[tuple[Any, ...]]()
    with _open(path) as (container, stream):
        for packet in container.demux(stream):
            if not packet.size:
                continue
            if hasattr(packet, "has_sidedata") and packet.has_sidedata("new_extradata"):  # newer PyAV
                raise ValueError("its codec's parameters change, which is not supported")
            time, crc = packet.pts, google_crc32c.value(bytes(packet))
            shown = time is not None and not packet.is_discard and not packet.is_corrupt
            time = _NO_TIME if time is None else time
            entries.append((packet.pos, packet.size, crc, time, packet.is_keyframe, shown))
            if len(entries) > most:
                raise ValueError(f"it claims more packets than it has bytes ({most:,})")
        codec, unit = stream.codec_context, stream.time_base
        base, size = (unit.numerator, unit.denominator), (codec.height, codec.width)
        return Video(path, _codec_name(stream), codec.format.name, size, base, np.array(entries, PACKET))


def _packets_of_file(path: str, packets: Array, start: int, stop: int) -> Iterator[bytes]:
    """Reads packets by their places; those that are close together at once."""
    wanted = packets[start:stop]
    offsets, sizes, checksums = (wanted[name].tolist() for name in ("offset", "size", "crc"))
    with storage.open_read(path) as file:
        i = 0
        while i < len(offsets):
            low, high, j = offsets[i], offsets[i] + sizes[i], i + 1
            while j < len(offsets) and high <= offsets[j] <= high + _GAP and offsets[j] + sizes[j] <= low + _BLOCK:
                high, j = offsets[j] + sizes[j], j + 1
            file.seek(low)
            block = file.read(high - low)
            for k in range(i, j):
                data = block[offsets[k] - low : offsets[k] - low + sizes[k]]
                if google_crc32c.value(data) != checksums[k]:
                    raise ValueError(_CHANGED)
                yield data
            i = j


# Decoders

_MAX_IDLE = 8
"""Idle decoders kept for each codec, and codecs."""

_idle: dict[str, deque[Any]] = {}


@contextlib.contextmanager
def _decoder(video: Video) -> Iterator[Any]:
    """An idle decoder for a video, or another one. They keep no file open, and run no threads."""
    if len(_idle) > _MAX_IDLE:
        _idle.clear()
    idle = _idle.setdefault(video.codec, deque(maxlen=_MAX_IDLE))
    try:
        decoder = idle.pop()
    except IndexError:
        with _open(video.path) as (_, stream):
            if _codec_name(stream) != video.codec:
                raise ValueError(_CHANGED) from None
            decoder = stream.codec_context
    try:
        yield decoder
    finally:
        if decoder.is_open:
            decoder.flush_buffers()
        idle.append(decoder)
