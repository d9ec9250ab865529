"""How a LeRobot dataset is written: the options."""

from __future__ import annotations

import dataclasses
from typing import Literal

from rlds_beam.errors import UsageError
from rlds_beam.formats.lerobot.layout import Version
from rlds_beam.options import Options, option

Codec = Literal["av1", "h264"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LerobotOptions(Options):
    """How a LeRobot dataset is written."""

    lerobot_version: Version = option("3.0", "3.0, or 2.1, with files for each episode, which GR00T and openpi read")
    fps: float | None = option(None, "frames a second of the recording, if the data does not say")
    round_fps: bool = option(False, "round --fps to a whole number (it is refused otherwise)")
    map: tuple[str, ...] = option(
        (), "NAME=PATH: the feature that a field becomes (PATH+PATH joins vectors, task=PATH names the instruction); "
        "-PATH leaves a field out (comma separated)", metavar="NAME=PATH"
    )  # fmt: skip
    image_samples: int | None = option(
        None,
        "images of each camera and episode that are decoded for the image statistics (one of 50, 4 at most)",
        least=1,
    )
    images: Literal["copy", "video"] = option("copy", "copy them as they are, or encode them as videos")
    vcodec: Codec = option("av1", "codec of --images=video")
    crf: int = option(30, "quality of videos: lower is better and larger", least=0)
    gop: int = option(
        2, "frames from one key frame to the next: more make smaller videos that are slower to read at random", least=1
    )
    encoder_preset: str | None = option(None, "speed of the encoder (12 for av1, medium for h264)")
    robot_type: str | None = option(None, "the name of the robot, for info.json")
    modality: str | None = option(
        None,
        "modality.json for GR00T, with --lerobot_version=2.1: auto, or a file that is checked and copied",
        metavar="FILE",
    )


def whole_fps(options: LerobotOptions, recorded: float | None = None) -> int:
    """The frames a second.

    Args:
      recorded: the rate of the data, if known.

    Raises:
      UsageError: nothing says it, or it is not a whole number.
    """
    fps = options.fps if options.fps is not None else recorded
    if fps is None:
        raise UsageError("--to=lerobot: nothing says how many frames a second were recorded; name it: --fps=10")
    if not 0 < fps < 1e6:
        raise UsageError(f"--fps={fps:g}: expected a number above 0")
    if float(fps).is_integer():
        return int(fps)
    if not options.round_fps or round(fps) < 1:
        raise UsageError(
            f"--fps={fps:g}: LeRobot's videos and tools need a whole number of frames a second; give one, or "
            "--round_fps to take the nearest (the timestamps are then those of the rounded rate)"
        )
    return round(float(fps))
