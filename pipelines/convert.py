"""`rlds-beam convert`: RLDS in, checked trajectory TFRecords out."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rlds_beam.options import (
    CheckOptions,
    FrameOptions,
    ItemOptions,
    ReportOptions,
    RunOptions,
    SourceOptions,
    option,
)

if TYPE_CHECKING:
    from rlds_beam.report import Report


USAGE = "INPUT OUTPUT"


@dataclasses.dataclass(frozen=True)
class ConvertConfig(RunOptions, ReportOptions, ItemOptions, FrameOptions, CheckOptions, SourceOptions):
    """Converts an RLDS dataset to trajectory TFRecords that TF-Agents and TFDS read."""

    input: str = option(dataclasses.MISSING, "a TFDS or EnvLogger dataset directory, or shard files", positional=True)
    output: str = option(dataclasses.MISSING, "directory to write to", positional=True)
    _: dataclasses.KW_ONLY
    images: Literal["raw", "jpeg"] = option("raw", "how images are written: decoded, or as JPEG")
    shards: int | None = option(None, "output shards of each split (chosen by size)")
    overwrite: bool = option(False, "replace what an earlier job wrote to the output")
    dry_run: bool = option(False, "check everything, print the plan, write nothing")


class ConvertResult(NamedTuple):
    """The outputs of the job.

    Attributes:
      written: PCollection of `RangeResult`, one for each output shard.
      report: PCollection of one `Report`, after the dataset is committed.
    """

    written: Any
    report: Any
