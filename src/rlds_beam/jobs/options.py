"""The options of the jobs, composed from shared groups."""

from __future__ import annotations

import dataclasses

from rlds_beam.checking.rules import CheckOptions
from rlds_beam.connectors.options import ConnectorOptions
from rlds_beam.formats.options import InputOptions, OutputOptions
from rlds_beam.options import option
from rlds_beam.reverb.options import ReverbOptions
from rlds_beam.trajectories.options import FrameOptions, ItemOptions


@dataclasses.dataclass(frozen=True)
class ConvertOptions(OutputOptions, ConnectorOptions, CheckOptions, InputOptions):
    """Output files."""

    output: str = option(dataclasses.MISSING, "directory to write to", positional=True)
    _: dataclasses.KW_ONLY
    shards: int | None = option(None, "output files per split (default: by size)", least=1)
    overwrite: bool = option(False, "replace the output of an earlier job")
    append: bool = option(False, "add what a finished output does not have yet; its old files stay as they are")
    allow_empty: bool = option(False, "exit with 0, not 3, even if no items are produced")


@dataclasses.dataclass(frozen=True)
class PushOptions(ReverbOptions, ItemOptions, FrameOptions, ConnectorOptions, CheckOptions, InputOptions):
    """Rejected records and empty inputs."""

    _: dataclasses.KW_ONLY
    rejected: str | None = option(None, "directory for the original bytes of rejected records", metavar="DIR")
    allow_empty: bool = option(False, "exit with 0, not 3, even if no items are produced")
