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
import itertools
import math
from typing import Any

import numpy as np

from rlds_beam.errors import UsageError
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.typing import Array

LEVELS = 4096
PIXELS = "gray12le"
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
            raise ValueError(f"its pixel format is {format.name}, but depth maps have {_BITS} bits ({PIXELS})")

    def of_frame(self, frame: Any) -> Array:
        """The depth in a video frame, (height, width, 1). Raises ValueError (`check`)."""
        self.check(frame.format)
        numbers = frame.to_ndarray(format=PIXELS)
        depth: Array = self.values[np.minimum(numbers, LEVELS - 1)][..., None]
        return depth

    def histogram(self, images: Array | EncodedImages, path: str) -> Array:
        """The number of pixels with each 12-bit number, int64 (1, LEVELS)."""
        counts = np.zeros((1, LEVELS), np.int64)
        parts = (some for _, some in images.parts(1, path)) if isinstance(images, EncodedImages) else [images]
        for image in itertools.chain.from_iterable(parts):
            counts[0] += np.bincount(self.quantize(image).reshape(-1), minlength=LEVELS)
        return counts
