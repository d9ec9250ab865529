"""Image columns that are frames of videos: decoded when pixels are read, and PNGs if images are.

Depth videos are LeRobot's: depth as numbers of 12 bits, of a logarithmic scale, in lossless HEVC (`gray12le`).

    number 0 ... 4095        meters: exp(a + number / 4095 * (b - a)) - shift
                             a = log(low + shift), b = log(high + shift)

Nearer depth than `low` becomes `low` (also 0, which cameras give for pixels without a measurement), farther than `high`
becomes `high`. In between, with LeRobot's defaults (0.01 to 10 m, shift 3.5 m), a value changes by less than 3 mm.
Depth is uint16 in millimeters or float32 in meters. See LeRobot's `datasets/depth_utils.py`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np

from rlds_beam.errors import BadEpisode, UsageError, Violation, needs
from rlds_beam.images.codecs import Jpeg, encode_png
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.images.headers import allow_pixels
from rlds_beam.images.videos import Video
from rlds_beam.lazy import lockless_property
from rlds_beam.typing import Array

_PNG_LEVEL = 1


LEVELS = 4096
DEPTH_PIXELS = "gray12le"
UNITS = {"mm": "uint16", "m": "float32"}
"""The dtype of depth in each unit."""

_BITS = 12


@dataclasses.dataclass(frozen=True)
class Depth:
    """The scale of a depth video; the defaults are LeRobot's.

    Attributes:
      low, high: the depth of the numbers 0 and 4095, in meters.
      shift: added before the logarithm, in meters.
      log: whether the scale is logarithmic.
      unit: the unit of the depth: `mm` (uint16) or `m` (float32).
    """

    low: float = 0.01
    high: float = 10.0
    shift: float = 3.5
    log: bool = True
    unit: str = "mm"

    def __post_init__(self) -> None:
        known = all(
            type(meters) in (int, float) and math.isfinite(meters) for meters in (self.low, self.high, self.shift)
        )
        if not known or not 0 <= self.low < self.high or (self.log and self.low + self.shift <= 0):
            raise UsageError(
                f"depth from {self.low} to {self.high} m with shift {self.shift}: expected 0 <= minimum < maximum, and "
                "minimum + shift above 0"
            )

    @property
    def dtype(self) -> str:
        return UNITS[self.unit]

    def quantize(self, depth: Array) -> Array:
        """The 12-bit numbers of depth in our unit; those of NaN are 0."""
        scale = np.float32(1000 if self.unit == "mm" else 1)
        low, high, shift = (np.float32(meters) * scale for meters in (self.low, self.high, self.shift))
        values = depth.astype(np.float32)
        with np.errstate(invalid="ignore", divide="ignore"):
            if self.log:
                first, last = math.log(float(low + shift)), math.log(float(high + shift))
                share = (np.log(values + shift) - first) / (last - first)
            else:
                share = (values - low) / (high - low)
            numbers = np.rint(share * (LEVELS - 1)).clip(0, LEVELS - 1)
        codes: Array = np.nan_to_num(numbers, nan=0).astype(np.uint16)
        return codes

    @functools.cached_property
    def values(self) -> Array:
        """The depth of each 12-bit number in our unit and dtype, as LeRobot computes it, (4096,)."""
        ends = [math.log(end + self.shift) if self.log else float(end) for end in (self.low, self.high)]
        made = np.empty(LEVELS, np.float32)
        np.multiply(np.arange(LEVELS, dtype=np.uint16), (ends[1] - ends[0]) / (LEVELS - 1), out=made)
        np.add(made, ends[0], out=made)
        if self.log:
            np.exp(made, out=made)
            np.subtract(made, self.shift, out=made)
        np.clip(made, self.low, self.high, out=made)
        if self.unit == "mm":
            made = np.rint(made * np.float32(1000)).clip(0, 65535)
        return made.astype(self.dtype)

    def check(self, format: Any) -> None:
        """Raises ValueError if a pixel format does not have 12 bits."""
        if {component.bits for component in format.components} != {_BITS}:
            raise ValueError(f"its pixel format is {format.name}, but depth maps have {_BITS} bits ({DEPTH_PIXELS})")

    def of_frame(self, frame: Any) -> Array:
        """The depth in a video frame, (height, width, 1). Raises ValueError (`check`)."""
        self.check(frame.format)
        numbers = frame.to_ndarray(format=DEPTH_PIXELS)
        depth: Array = self.values[np.minimum(numbers, LEVELS - 1)][..., None]
        return depth

    def histogram(self, images: Array | EncodedImages, path: str) -> Array:
        """The number of pixels with each 12-bit number, int64 (1, LEVELS)."""
        counts = np.zeros((1, LEVELS), np.int64)
        parts = (some for _, some in images.parts(1, path)) if isinstance(images, EncodedImages) else [images]
        for image in itertools.chain.from_iterable(parts):
            counts[0] += np.bincount(self.quantize(image).reshape(-1), minlength=LEVELS)
        return counts


class VideoFrames(EncodedImages):
    """A column of frames of videos. Nothing is decoded before pixels or `data` are read.

    Attributes:
      videos: the videos.
      which: the video of each step: int64 [T].
      numbers: the frame of each step in its video, by time: int64 [T].
      path: the field's path, for errors about damaged videos.
      scale: the scale of depth; None for colors.
      shape, dtype, encoding: see `EncodedImages`.
    """

    videos: Sequence[Video]
    which: Array
    numbers: Array
    path: str
    scale: Depth | None

    _computed = ("data", "size")

    def __init__(
        self,
        videos: Sequence[Video],
        which: Array,
        numbers: Array,
        path: str,
        shape: tuple[int | None, ...],
        dtype: str = "uint8",
        encoding: str = "png",
        *,
        scale: Depth | None = None,
    ):
        column = {"shape": shape, "dtype": dtype, "encoding": encoding}
        self.__dict__.update(videos=videos, which=which, numbers=numbers, path=path, scale=scale, **column)

    @lockless_property
    def data(self) -> Array:
        """The frames as PNGs: object array [T] of `bytes`. Raises BadEpisode if one cannot be decoded."""
        images = np.empty(len(self), object)
        for step, image in self.pixels():
            (images[step],) = encode_png([image], _PNG_LEVEL)
        return images

    def pixels(self) -> Iterator[tuple[int, Array]]:
        """Decodes each frame once: (step, pixels [H, W, C]), in the order of the videos.

        Raises:
          BadEpisode: undecodable_image; or image_size_mismatch if a frame has another size than its video.
        """
        for which in np.unique(self.which).tolist():
            yield from self._decode_pixels(self.videos[which], np.flatnonzero(self.which == which))

    def _decode_pixels(self, video: Video, steps: Array) -> Iterator[tuple[int, Array]]:
        with needs("lerobot", "reading videos needs PyAV"):
            import av

        steps = steps[np.argsort(self.numbers[steps], kind="stable")]
        numbers, firsts = np.unique(self.numbers[steps], return_index=True)
        steps_of = dict(zip(numbers.tolist(), np.split(steps, firsts[1:]), strict=True))
        try:
            for number, frame in video.decode(numbers):
                image = color_pixels(frame) if self.scale is None else self.scale.of_frame(frame)
                if image.shape[:2] != video.size:
                    detail = f"frame {number} of {video.path} has the shape {image.shape}, not {video.size}"
                    raise BadEpisode(Violation("image_size_mismatch", detail, self.path, int(steps_of[number][0])))
                for step in steps_of[number].tolist():
                    yield step, image
        except (OSError, ValueError, av.FFmpegError) as error:
            raise unreadable(video.path, error, self.path) from None

    @lockless_property
    def size(self) -> tuple[int, int] | None:
        """The (height, width) of the frames; None if there are none, or several sizes."""
        sizes = {self.videos[which].size for which in np.unique(self.which).tolist()}
        return sizes.pop() if len(sizes) == 1 else None

    @property
    def is_plain(self) -> bool:
        """Whether the frames have the declared channels and dtype, so that pixels need no conversion."""
        channels, dtype = self._kind
        return len(self.shape) == 3 and self.shape[-1] in (None, channels) and self.dtype == dtype

    @property
    def is_direct(self) -> bool:
        """Whether the frames are plain, and have the declared size."""
        size = self.size
        return (
            self.is_plain and size is not None and all(a in (None, b) for a, b in zip(self.shape, size, strict=False))
        )

    @property
    def _kind(self) -> tuple[int, str]:
        """The channels and the dtype of a frame."""
        return (3, "uint8") if self.scale is None else (1, self.scale.dtype)

    def stack(self) -> Array:
        """The pixels of frames of one size, [T, H, W, C], in their own dtype. Raises BadEpisode as `pixels`."""
        assert self.size is not None
        channels, dtype = self._kind
        images = np.empty((len(self), *self.size, channels), dtype)
        for step, image in self.pixels():
            images[step] = image
        return images

    def decode(self, field: str | None = None, jpeg: Jpeg = "fast") -> Array:
        return self.stack() if self.is_direct else super().decode(field, jpeg)

    def decode_all(self, field: str | None = None, shape: tuple[int | None, ...] | None = None) -> Array:
        return self.decode(field)

    def parts(self, count: int, field: str | None = None) -> Iterator[tuple[Array, Array]]:
        if not self.is_direct:
            yield from super().parts(count, field)
            return
        steps, images = list[int](), list[Array]()
        for step, image in self.pixels():
            steps.append(step)
            images.append(image)
            if len(steps) == count:
                yield np.array(steps), np.stack(images)
                steps, images = [], []
        if steps:
            yield np.array(steps), np.stack(images)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: Any) -> VideoFrames:
        return self._with(which=np.atleast_1d(self.which[index]), numbers=np.atleast_1d(self.numbers[index]))

    def check(self, max_pixels: int, field: str | None = None) -> list[Violation]:
        allow_pixels(max_pixels)
        found = None if self.size is None else self._check_size(self.size, 0, max_pixels, field)
        return [] if found is None else [found]

    def image(self, step: int) -> bytes:
        known = self.__dict__.get("data")
        return cast(bytes, self[[step]].data[0] if known is None else known[step])


def video_frames(
    path: str,
    start: float,
    fps: float,
    count: int,
    field: str,
    shape: tuple[int | None, ...],
    dtype: str,
    encoding: str,
    *,
    scale: Depth | None = None,
) -> VideoFrames:
    """The frames of an episode. Lists the packets of the video, and decodes nothing.

    Args:
      path: the file.
      start: the time of the first frame in the file, in seconds.
      count: the number of frames.
      field: the field's path.
      shape, dtype, encoding, scale: see `VideoFrames`.

    Raises:
      BadEpisode: the video is missing, damaged, too short, or of another frame rate; or its frames cannot be converted.
    """
    with needs("lerobot", "reading videos needs PyAV"):
        import av

    try:
        video = Video.probe(path)
        (check_colors if scale is None else scale.check)(av.VideoFormat(video.format))
        first = video.frame_at(start, fps)
    except (OSError, ValueError, av.FFmpegError) as error:
        raise unreadable(path, error, field) from None
    if len(video) - first < count:
        detail = f"{path} has {len(video) - first} frames from {start} s on, but the episode has {count}"
        raise BadEpisode(Violation("undecodable_image", detail, field))
    due = start + np.arange(count) / fps
    if (off := np.abs(video.times[first : first + count] - due) > 0.5 / fps).any():
        step = int(np.argmax(off))
        shown = video.times[first + step]
        detail = f"{path} has a frame at {shown:.3f} s, but at {fps:g} fps it is due at {due[step]:.3f} s"
        raise BadEpisode(Violation("undecodable_image", detail, field, step))
    which, numbers = np.zeros(count, np.int64), np.arange(first, first + count)
    return VideoFrames([video], which, numbers, field, shape, dtype, encoding, scale=scale)


def unreadable(path: str, error: Exception, field: str) -> BadEpisode:
    reason = getattr(error, "strerror", None) or error
    return BadEpisode(Violation("undecodable_image", f"{path} cannot be read: {reason}", field))


def check_colors(format: Any) -> None:
    """Raises ValueError if a pixel format is gray with more than 8 bits, for example depth, which would lose most."""
    bits, *more = (component.bits for component in format.components)
    if len(more) < 2 and bits > 8 and not format.has_palette:
        raise ValueError(
            f"its pixel format is {format.name}, {bits} bits of gray, but info.json does not call it a depth map "
            "(is_depth_map)"
        )


def color_pixels(frame: Any) -> Array:
    """The pixels of a frame, uint8 (height, width, 3), as LeRobot converts them. Raises ValueError (`check_colors`)."""
    check_colors(frame.format)
    pixels: Array = frame.to_ndarray(format="rgb24")
    return pixels
