"""Options of `record`: a recording, and how it is checked and written."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar

from rlds_beam.checking.rules import CheckOptions
from rlds_beam.connectors.options import ConnectorOptions
from rlds_beam.formats.options import OutputOptions, to_option
from rlds_beam.formats.registry import RLDS
from rlds_beam.options import option
from rlds_beam.recording.options import RolloutOptions

if TYPE_CHECKING:
    from rlds_beam.reading.base import Source


@dataclasses.dataclass(frozen=True)
class RecordOptions(OutputOptions, ConnectorOptions, CheckOptions, RolloutOptions):
    """Output files."""

    source_format: ClassVar[str] = "record"

    output: str = option(dataclasses.MISSING, "directory to write to", positional=True)
    _: dataclasses.KW_ONLY
    to: str = to_option(RLDS)
    overwrite: bool = option(False, "replace the output of an earlier job")
    allow_empty: bool = option(False, "exit with 0, not 3, even if no items are produced")

    def open_source(self) -> Source:
        """Opens the rollouts; raises UsageError if the environment or a policy cannot be used."""
        from rlds_beam.connectors.dry_run import with_given_meaning
        from rlds_beam.recording.source import open_recording

        return with_given_meaning(open_recording(self), self)
