"""The options of the jobs, each a mix of the groups that it needs."""

from __future__ import annotations

import dataclasses

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
from rlds_beam.reverb.options import ReverbOptions
from rlds_beam.trajectories.options import FrameOptions, ItemOptions


@dataclasses.dataclass(frozen=True)
class PlanOptions(
    ItemOptions,
    FrameOptions,
    ColumnsOptions,
    RldsOptions,
    LerobotOptions,
    ScopeRlOptions,
    KeepRangesOptions,
    OutputOptions,
    ConnectorOptions,
    CheckOptions,
    SourceOptions,
):
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
