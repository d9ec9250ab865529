"""The options of the formats, which become flags: `--from=...` and `--to=...` choose the class."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from rlds_beam.options import Options, option
from rlds_beam.trajectories.options import FrameOptions, Images, ItemOptions

RawImages = Literal["png", "jpeg", "raw"]
LastStep = Literal["drop", "keep"]


def raw_images_option() -> Any:
    """The field `raw_images` of a source's options."""
    return option("png", "how to keep frames that are stored as pixels; jpeg changes them a little")


def last_step_option() -> Any:
    """The field `last_step` of outputs whose rows are an observation and an action."""
    return option(None, "drop or keep the last step of each episode (default: drop void ones, which have no action)")


ColumnsFormat = Literal["tfrecord", "array_record", "parquet"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ColumnsOptions(Options):
    """Columns output."""

    format: ColumnsFormat = option("tfrecord", "file format")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProfileOptions(Options):
    """HDF5, .npz, and zarr files."""

    profile: str | None = option(
        None, "layout of the files: aloha, libero, droid, ..., or a YAML file (default: recognized)", metavar="NAME"
    )
    raw_images: RawImages = raw_images_option()


Codec = Literal["av1", "h264"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LerobotOptions(Options):
    """LeRobot output."""

    lerobot_version: Literal["3.0", "2.1"] = option(
        "3.0", "3.0, or 2.1 (one file per episode; read by GR00T and openpi)"
    )
    fps: float | None = option(None, "recorded frames per second, if the data does not say it")
    round_fps: bool = option(False, "round a fractional rate instead of refusing it")
    map: tuple[str, ...] = option(
        (),
        "NAME=PATH: store a field as feature NAME (PATH+PATH joins vectors, task=PATH sets the instruction); "
        "-PATH leaves a field out (comma separated)",
        metavar="NAME=PATH",
    )
    image_samples: int | None = option(None, "images to decode per camera and episode for statistics", least=1)
    images: Literal["copy", "video"] | None = option(
        None, "copy images unchanged, or encode them as videos (default: images stay images, and videos stay videos)"
    )
    vcodec: Codec = option("av1", "video codec")
    crf: int = option(30, "video quality: lower is better, with larger files", least=0)
    gop: int = option(2, "frames between key frames: more make videos smaller, but slower to read at random", least=1)
    depth: tuple[str, ...] = option(
        (),
        "fields to encode as lossy depth videos of 12 bits: uint16 in millimeters or float32 in meters",
        metavar="FIELDS",
        needs="images=video",
    )
    depth_min: float = option(0.01, "nearest depth in meters: nearer becomes this, also 0", needs="depth")
    depth_max: float = option(10.0, "farthest depth in meters", needs="depth")
    last_step: LastStep | None = last_step_option()
    modality: Literal["auto"] | None = option(None, "write modality.json for GR00T (with --lerobot_version=2.1)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MergeOptions(Options):
    """Several datasets."""

    merge_fields: str | None = option(
        None, "YAML that makes the fields of datasets the same (rlds-beam inspect A B proposes one)", metavar="FILE"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RldsOptions(Options):
    """RLDS output."""

    format: Literal["tfrecord", "array_record"] = option("tfrecord", "file format")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ros2Options(Options):
    """ROS 2 bags."""

    topics: str | None = option(
        None, "YAML that maps topics to step fields (rlds-beam inspect BAG proposes one)", metavar="FILE"
    )
    raw_images: RawImages = raw_images_option()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScopeRlOptions(Options):
    """SCOPE-RL output."""

    step_per_trajectory: int | None = option(
        None, "steps per trajectory: shorter episodes are padded (default: the longest episode)", least=1
    )
    behavior_policy: str | None = option(None, "name of the behavior policy (default: the episodes' `policy`)")
    n_actions: int | None = option(None, "number of discrete actions (default: the largest recorded, plus 1)", least=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrajectoryOptions(FrameOptions, ItemOptions):
    """What an item stores."""

    images: Images = option("raw", "images decoded, or as JPEGs")
    keep: tuple[str, ...] = option(
        (), "text, episode fields, or episode_key to store in each item (comma separated)", metavar="FIELDS"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ZarrOptions(Options):
    """Options for zarr."""

    compressor: Literal["lz4", "zstd"] = option("lz4", "Blosc compressor: lz4 is fast, zstd is small")
    images: Literal["blosc", "jpegxl"] = option("blosc", "images by the same compressor, or as lossless JPEG XL")
    last_step: LastStep | None = last_step_option()
