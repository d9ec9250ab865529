"""Options of the LeRobot output."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

from rlds_beam.errors import UsageError
from rlds_beam.formats.format_options import LastStep, last_step_option
from rlds_beam.formats.lerobot.layout import Version
from rlds_beam.options import Options, option
from rlds_beam.text import join_texts

if TYPE_CHECKING:
    from rlds_beam.reading.base import Source

Codec = Literal["av1", "h264"]

ENCODER_OPTIONS = ("vcodec", "crf", "gop", "encoder_preset")
"""Options of color videos."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LerobotOptions(Options):
    """LeRobot output."""

    lerobot_version: Version = option("3.0", "3.0, or 2.1 (one file per episode; read by GR00T and openpi)")
    fps: float | None = option(None, "recorded frames per second, if the data does not say it")
    round_fps: bool = option(False, "round a fractional rate instead of refusing it")
    map: tuple[str, ...] = option(
        (),
        "NAME=PATH: store a field as feature NAME (PATH+PATH joins vectors, task=PATH sets the instruction); "
        "-PATH leaves a field out (comma separated)",
        metavar="NAME=PATH",
    )
    image_samples: int | None = option(
        None,
        "images to decode per camera and episode for statistics (default: all of up to 1,000 "
        "frames; of more, 1 in 50, at most 4)",
        least=1,
    )
    images: Literal["copy", "video"] | None = option(
        None, "copy images unchanged, or encode them as videos (default: images stay images, and videos stay videos)"
    )
    vcodec: Codec = option("av1", "video codec")
    crf: int = option(30, "video quality: lower is better, with larger files", least=0)
    gop: int = option(2, "frames between key frames: more make videos smaller, but slower to read at random", least=1)
    encoder_preset: str | None = option(None, "encoder speed preset (default: 12 for av1, medium for h264)")
    depth: tuple[str, ...] = option(
        (),
        "fields to encode as depth videos of 12 bits, which changes values: uint16 in millimeters or float32 in "
        "meters (comma separated; needs --images=video)",
        metavar="FIELDS",
    )
    depth_min: float = option(0.01, "nearest depth of depth videos in meters: nearer becomes this, also 0")
    depth_max: float = option(10.0, "farthest depth of depth videos in meters")
    depth_shift: float = option(3.5, "meters added before the logarithm of depth")
    last_step: LastStep | None = last_step_option()
    modality: Literal["auto"] | None = option(None, "write modality.json for GR00T (with --lerobot_version=2.1)")


def whole_fps(options: LerobotOptions, source: Source) -> int:
    """The frames per second. Raises UsageError if it is unknown, contradicts the data, or is not a whole number."""
    rates = source.rates
    if len(rates) > 1:
        raise UsageError(
            f"--to=lerobot: the data is {join_texts([f'{rate:g}' for rate in rates])} Hz, but LeRobot has one rate for "
            f'all episodes: convert each with --connectors="Resample({min(rates):g})", and merge the results'
        )
    fps = options.fps if options.fps is not None else source.fps
    if fps is None:
        raise UsageError("--to=lerobot: the data does not say its frames per second; pass --fps, for example --fps=10")
    if not 0 < fps < 1e6:
        raise UsageError(f"--fps={fps:g}: expected a number above 0")
    if (recorded := next(iter(rates), fps)) != fps:
        raise UsageError(
            f'--fps={fps:g}: the data is {recorded:g} Hz; --fps={recorded:g}, or --connectors="Resample({fps:g})": '
            f"every frame is kept, so it would play at {fps / recorded:.3g} times its speed. If the data says a wrong "
            "rate, correct it there"
        )
    if float(fps).is_integer():
        return int(fps)
    if not options.round_fps or round(fps) < 1:
        raise UsageError(
            f"{fps:g} Hz: LeRobot's videos and tools need a whole number of frames per second; pass "
            "--round_fps to use the nearest (timestamps then follow the rounded rate)"
        )
    return round(float(fps))
