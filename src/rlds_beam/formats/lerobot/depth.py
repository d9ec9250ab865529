"""LeRobot's depth videos: depth as numbers of 12 bits, of a logarithmic scale, in lossless HEVC (`gray12le`).

    number 0 ... 4095        meters: exp(a + number / 4095 * (b - a)) - shift
                             a = log(low + shift), b = log(high + shift)

Nearer depth than `low` becomes `low` (also 0, which cameras give for pixels without a measurement), farther than `high`
becomes `high`. In between, with LeRobot's defaults (0.01 to 10 m, shift 3.5 m), a value changes by less than 3 mm.
Depth is uint16 in millimeters or float32 in meters. See LeRobot's `datasets/depth_utils.py`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam.episodes.episode import Column
from rlds_beam.errors import BadEpisode, UsageError, Violation
from rlds_beam.images.encoded_images import EncodedImages

Array = np.ndarray[Any, Any]

LEVELS = 4096
PIXELS = "gray12le"
UNITS = {"mm": "uint16", "m": "float32"}
"""The dtype of depth in each unit."""

_BITS = 12
_OPTIONS = {"g": "1", "crf": "30", "x265-params": "lossless=1:pools=none:frame-threads=1:log-level=none"}
"""x265's options. It uses one thread, so that bytes are the same everywhere.

Every frame is a key frame: others are not lossless for some sizes (32x32), a few pixels change, and on each run others.
"""


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
        known = all(type(one) in (int, float) and math.isfinite(one) for one in (self.low, self.high, self.shift))
        if not known or not 0 <= self.low < self.high or (self.log and self.low + self.shift <= 0):
            raise UsageError(
                f"depth from {self.low} to {self.high} m with shift {self.shift}: expected 0 <= minimum < maximum, and "
                "minimum + shift above 0"
            )

    @staticmethod
    def of_feature(feature: Mapping[str, Any]) -> Depth | None:
        """The scale in a feature's entry in info.json; None if it is not a depth map. Raises UsageError."""
        parts = [feature.get(name) or {} for name in ("info", "video_info")]
        if not all(isinstance(part, dict) for part in parts):
            return None
        info, older = parts
        if not (info.get("is_depth_map") or info.get("video.is_depth_map") or older.get("video.is_depth_map")):
            return None
        given = {name: info.get(f"video.{key}") for name, key in _KEYS.items()}
        made = {name: value for name, value in given.items() if value is not None}
        unit = info.get("depth_unit") or "mm"
        if unit not in UNITS:
            raise UsageError(f"depth_unit is {str(unit)[:40]!r}, expected {' or '.join(UNITS)}")
        return Depth(**made, unit=unit)

    @property
    def dtype(self) -> str:
        return UNITS[self.unit]

    def quantize(self, depth: Array) -> Array:
        """The 12-bit numbers of depth in our unit; those of NaN are 0."""
        scale = np.float32(1000 if self.unit == "mm" else 1)
        low, high, shift = (np.float32(one) * scale for one in (self.low, self.high, self.shift))
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
            raise ValueError(f"its pixel format is {format.name}, but depth maps have {_BITS} bits ({PIXELS})")

    def of_frame(self, frame: Any) -> Array:
        """The depth in a video frame, (height, width, 1). Raises ValueError (`check`)."""
        self.check(frame.format)
        numbers = frame.to_ndarray(format=PIXELS)
        depth: Array = self.values[np.minimum(numbers, LEVELS - 1)][..., None]
        return depth

    def histogram(self, images: Column, path: str) -> Array:
        """The number of pixels with each 12-bit number, int64 (1, LEVELS)."""
        counts = np.zeros((1, LEVELS), np.int64)
        for image in images.decode(path) if isinstance(images, EncodedImages) else np.asarray(images):
            counts[0] += np.bincount(self.quantize(image).reshape(-1), minlength=LEVELS)
        return counts


_KEYS = {"low": "depth_min", "high": "depth_max", "shift": "shift", "log": "use_log"}
"""The keys in a feature's `info`, after `video.`."""


@dataclasses.dataclass(frozen=True)
class DepthEncoding:
    """The encoder's settings (`videos.Encoding` for cameras)."""

    depth: Depth
    encoder = "libx265"
    pixels = PIXELS
    codec = "hevc"

    def options(self) -> dict[str, str]:
        """The encoder's options."""
        return _OPTIONS

    def info(self, height: int, width: int, fps: int) -> dict[str, Any]:
        """The feature's `info` in info.json."""
        depth = {f"video.{key}": getattr(self.depth, name) for name, key in _KEYS.items()}
        return {
            "video.height": height, "video.width": width, "video.codec": self.codec, "video.pix_fmt": PIXELS,
            "video.fps": fps, "video.channels": 1, "has_audio": False, "video.g": int(_OPTIONS["g"]),
            "video.crf": int(_OPTIONS["crf"]), "video.preset": None, "video.fast_decode": 0,
            "video.extra_options": {"x265-params": "lossless=1"}, "video.video_backend": "pyav", **depth,
            "is_depth_map": True, "depth_unit": self.depth.unit,
        }  # fmt: skip


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
            one = self._column[[step]]
            assert isinstance(one, EncodedImages)
            return np.asarray(EncodedImages(one.data, self._shape, one.dtype).decode(self._path)[0])
        except BadEpisode as bad:
            raise BadEpisode(*(_at(violation, step) for violation in bad.violations)) from None


def _at(violation: Violation, step: int) -> Violation:
    return dataclasses.replace(violation, detail=f"{violation.detail} (its frame {step})", step=step)


def checked_shape(shape: Sequence[int | None]) -> tuple[int, int, int] | None:
    """The (height, width, 1) of a depth map; None if it has another shape."""
    sizes = tuple(shape) if len(shape) == 3 else (*shape, 1)
    if len(sizes) != 3 or sizes[2] != 1 or sizes[0] is None or sizes[1] is None:
        return None
    return (sizes[0], sizes[1], 1)
