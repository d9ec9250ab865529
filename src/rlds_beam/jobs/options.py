"""The options of the jobs, each a mix of the groups that it needs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar

from rlds_beam.checking.options import CheckOptions
from rlds_beam.connectors.options import ConnectorOptions
from rlds_beam.formats.columns.options import ColumnsOptions
from rlds_beam.formats.keep_ranges.options import KeepRangesOptions
from rlds_beam.formats.lerobot.options import LerobotOptions
from rlds_beam.formats.rlds.options import RldsOptions
from rlds_beam.formats.scope_rl.options import ScopeRlOptions
from rlds_beam.options import option
from rlds_beam.output.options import OutputOptions
from rlds_beam.reading.options import SourceOptions
from rlds_beam.recording.options import RolloutOptions
from rlds_beam.reverb.options import ReverbOptions
from rlds_beam.trajectories.options import FrameOptions, ItemOptions

if TYPE_CHECKING:
    from rlds_beam.reading.base import Source


@dataclasses.dataclass(frozen=True)
class MakeOptions(
    ItemOptions,
    FrameOptions,
    ColumnsOptions,
    RldsOptions,
    LerobotOptions,
    KeepRangesOptions,
    OutputOptions,
    ConnectorOptions,
    CheckOptions,
):
    """How episodes are checked, edited and written."""


@dataclasses.dataclass(frozen=True)
class PlanOptions(MakeOptions, ScopeRlOptions, SourceOptions):
    """What is read, and what is made of it: of a conversion, and of the plan of one."""


@dataclasses.dataclass(frozen=True)
class ConvertOptions(PlanOptions):
    """What a conversion reads and writes."""

    input: str = option(
        dataclasses.MISSING, "a TFDS or EnvLogger dataset directory, or shard files", positional=True, several=True
    )
    output: str = option(dataclasses.MISSING, "directory to write to", positional=True)
    _: dataclasses.KW_ONLY
    shards: int | None = option(None, "output shards of each split (chosen by size)", least=1)
    overwrite: bool = option(False, "replace what an earlier job wrote to the output")
    allow_empty: bool = option(False, "no item at all is a success too (otherwise the exit code is 3)")

    def open_source(self) -> Source:
        """The dataset to read; raises UsageError if there is none, or it cannot be read."""
        from rlds_beam.formats.sources import open_for_job

        return open_for_job(self.input, self)


@dataclasses.dataclass(frozen=True)
class RecordOptions(MakeOptions, RolloutOptions):
    """What a recording rolls out and writes."""

    from_: ClassVar[str] = "record"

    output: str = option(dataclasses.MISSING, "directory to write to", positional=True)
    _: dataclasses.KW_ONLY
    to: str = option("rlds", "rlds, or another format as of convert")
    shards: int | None = option(
        None, "files of each policy in each dataset (chosen by the number of trajectories)", least=1
    )
    overwrite: bool = option(False, "replace what an earlier job wrote to the output")
    allow_empty: bool = option(False, "no item at all is a success too (otherwise the exit code is 3)")

    def open_source(self) -> Source:
        """The rollouts to read; raises UsageError if the environment or a policy cannot be used."""
        from rlds_beam.recording.source import open_recording

        return open_recording(self, self.shards)


@dataclasses.dataclass(frozen=True)
class PushOptions(ReverbOptions, ItemOptions, FrameOptions, ConnectorOptions, CheckOptions, SourceOptions):
    """What a push reads and writes."""

    input: str = option(
        dataclasses.MISSING, "a TFDS or EnvLogger dataset directory, shard files, or what convert wrote",
        positional=True, several=True,
    )  # fmt: skip
    _: dataclasses.KW_ONLY
    rejected: str | None = option(None, "directory to keep the original bytes of rejected records in")
    allow_empty: bool = option(False, "no item at all is a success too (otherwise the exit code is 3)")
