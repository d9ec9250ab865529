"""Prepare the input of a job: the same steps, in the same order, for every job, loader, and view."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from rlds_beam.checking.rules import CheckOptions
from rlds_beam.connectors.cleaning.presets import with_preset
from rlds_beam.connectors.configuration import Configuration
from rlds_beam.connectors.runner import ConnectorRunner
from rlds_beam.formats.sources import open_input
from rlds_beam.processing.dataset import check_source
from rlds_beam.processing.report import Report
from rlds_beam.reading.base import Source
from rlds_beam.reading.changes import AGAIN, Snapshot
from rlds_beam.reading.framing import Framing
from rlds_beam.reading.plan import WorkRange, plan_ranges


@dataclasses.dataclass(frozen=True)
class OpenedInput:
    """The input of a job, before its episodes are read.

    Attributes:
      source: the dataset.
      check: the policy of each rule, with the repairs of the preset: the job's options.
      connecting: the connectors, tried on zeros.
      advice: what to do if a file changes during the job.
    """

    source: Source
    check: CheckOptions
    connecting: ConnectorRunner
    advice: str = AGAIN

    @functools.cached_property
    def framing(self) -> Framing:
        """The framing of the source's records, found when it is first needed."""
        return Framing(self.source)

    def snapshot(self, *, by_content: bool = False) -> Snapshot:
        """The state of the source's files now; a local file's content counts only if `by_content`."""
        return Snapshot.of(self.source, self.advice, self.framing if by_content else None)

    @functools.cached_property
    def report(self) -> Report:
        """The report on the dataset as a whole; raises UsageError as `check_source`."""
        return check_source(self.source, self.check)

    def ranges(self, shards: int | None = None, *, whole_shards: bool = False) -> tuple[WorkRange, ...]:
        """The work ranges (`plan_ranges`)."""
        return plan_ranges(self.source, shards, whole_shards=whole_shards, starts=self.framing.record_starts)


def prepare_input(
    options: Any, source: Source | None = None, configuration: Configuration | None = None, advice: str = AGAIN
) -> OpenedInput:
    """Opens the input of a job, and tries its connectors. Reads only metadata.

    Args:
      options: the job's options: what to read, the rules, the connectors, and perhaps a preset.
      source: the dataset, if it is already open.
      configuration: the connectors; by default those of the options.
      advice: what to do if a file changes during the job.

    Raises:
      UsageError: the input or a connector cannot be used.
    """
    options = with_preset(options)
    source = open_input(options) if source is None else source
    configuration = Configuration.of(options) if configuration is None else configuration
    return OpenedInput(source, options, ConnectorRunner.for_source(configuration, source), advice)
