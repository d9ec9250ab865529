"""The options of the formats, which become flags: `--from=...` and `--to=...` choose the class."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, get_args

from rlds_beam.options import Options, option
from rlds_beam.trajectories.options import FrameOptions, ItemOptions

RawImages = Literal["png", "jpeg", "raw"]
LastStep = Literal["drop", "keep"]


def raw_images_option() -> Any:
    """The field `raw_images` of a source's options."""
    return option("png", "how to keep frames that are stored as pixels; jpeg changes them a little")


def last_step_option() -> Any:
    """The field `last_step` of outputs whose rows are an observation and an action."""
    return option(None, "drop or keep the last step of each episode (default: drop void ones, which have no action)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageOptions(Options):
    """Options for images."""

    images: Literal["raw", "jpeg"] = option("raw", "decoded, or as JPEGs")


ColumnsFormat = Literal["tfrecord", "array_record", "parquet"]
FORMATS: tuple[ColumnsFormat, ...] = get_args(ColumnsFormat)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ColumnsOptions(Options):
    """Columns output."""

    format: ColumnsFormat = option("tfrecord", "file format")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProfileOptions(Options):
    """HDF5, .npz, and zarr files."""

    profile: str | None = option(
        None,
        "layout of the files: aloha, robomimic, libero, isaaclab, robotwin, xpolicylab, robomind, droid, agibot, "
        "d4rl, minari, exorl, ogbench, replay_buffer, or a YAML file (recognized by default)",
        metavar="NAME",
    )
    raw_images: RawImages = raw_images_option()


@dataclasses.dataclass(frozen=True, kw_only=True)
class MergeOptions(Options):
    """Several datasets."""

    merge_fields: str = option(
        "same",
        "what differs: same (refused), common (left out), all (filled), or a YAML file (proposed by inspect A B)",
        metavar="FILE",
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

    step_per_trajectory: int | None = option(None, "steps per trajectory (default: the longest episode)", least=1)
    ragged: Literal["pad", "reject"] = option("pad", "what to do with shorter episodes")
    behavior_policy: str | None = option(None, "name of the behavior policy (default: the episodes' `policy`)")
    n_actions: int | None = option(None, "number of discrete actions (default: the largest recorded, plus 1)", least=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrajectoryOptions(FrameOptions, ItemOptions, ImageOptions):
    """Values that an item stores besides the trajectory."""

    keep: tuple[str, ...] = option(
        (), "text, episode fields, or episode_key to store in each item (comma separated)", metavar="FIELDS"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ZarrOptions(Options):
    """Options for zarr."""

    compressor: Literal["lz4", "zstd"] = option("lz4", "Blosc compressor: lz4 is fast, zstd is small")
    images: Literal["blosc", "jpegxl"] = option("blosc", "images by the same compressor, or as lossless JPEG XL")
    last_step: LastStep | None = last_step_option()
