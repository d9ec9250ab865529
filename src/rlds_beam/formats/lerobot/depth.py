"""Writes LeRobot's depth videos (`images.depth`), and reads what info.json says of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam.episodes.episode import Column
from rlds_beam.errors import BadEpisode, UsageError, Violation
from rlds_beam.images.depth import PIXELS, UNITS, Depth
from rlds_beam.images.encoded_images import EncodedImages

Array = np.ndarray[Any, Any]

_OPTIONS = {"g": "1", "crf": "30", "x265-params": "lossless=1:pools=none:frame-threads=1:log-level=none"}
"""x265's options. It uses one thread, so that bytes are the same everywhere.

Every frame is a key frame: others are not lossless for some sizes (32x32), a few pixels change, and on each run others.
"""


_KEYS = {"low": "depth_min", "high": "depth_max", "shift": "shift", "log": "use_log"}
"""The keys in a feature's `info`, after `video.`."""


def depth_of_feature(feature: Mapping[str, Any]) -> Depth | None:
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
