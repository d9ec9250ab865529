"""Makes a report of a dataset, and writes it as one file."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar, NamedTuple

from rlds_beam import storage
from rlds_beam._version import __version__
from rlds_beam.checking.signals.episodes import Context
from rlds_beam.checking.signals.table import EpisodeTable
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.connectors.statistics.episode_statistics import Groups
from rlds_beam.output.directory import Holding
from rlds_beam.processing.job import Job, Stage, Totals
from rlds_beam.processing.ranges import summarize
from rlds_beam.processing.report import Report, check_counts
from rlds_beam.reading.base import Source
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.viewing.episode_view import Json
from rlds_beam.viewing.report.conversion import describe_conversion, items_part, read_report, rejected_rules
from rlds_beam.viewing.report.dataset import Gathered, Settings, make_section


@dataclasses.dataclass(frozen=True)
class Input:
    """A dataset of a report. Picklable.

    Attributes:
      source: the dataset.
      settings: how it is shown.
      dataset_report: the report on the dataset as a whole (`processing.report.check_source`).
    """

    source: Source
    settings: Settings
    dataset_report: Report

    @property
    def context(self) -> Context:
        """The fields whose signals are measured."""
        return Context.of(self.source.schema, fps=self.source.fps, decoded=self.settings.decode)

    def stages(self, connecting: ConnectorRunner, name: str) -> Job:
        """The pass over the dataset: the signals, and the statistics (`Gathered`) after the connectors."""
        reader, measured = EpisodeReader(self.source), EpisodeTable(self.context)
        groups = functools.partial(Groups, None, None)
        check = self.settings.check
        return summarize(
            self.source, reader, check, connecting, Gathered.of, measured=measured, groups=groups, name=name
        )

    def part(self, gathered: Gathered) -> Json:
        """Its part of the report; reads the episodes that it shows."""
        counts = check_counts(self.source, gathered.report.shards, self.settings.check)
        whole = self.dataset_report.merge(gathered.report, counts)
        return make_section(self.source, gathered._replace(report=whole), self.settings)


class WrittenReport(NamedTuple):
    """The result of the job.

    Attributes:
      report: the counts of the records read; None if the dataset is an output whose rows are not episodes.
      path: the file written.
      bytes: its size.
    """

    report: Report | None
    path: str
    bytes: int


@dataclasses.dataclass(frozen=True)
class ConversionView:
    """An output directory of rlds-beam that a report shows. Picklable.

    Attributes:
      path: the directory.
      held: what it holds.
      command: the beginning of the command that converts again.
      is_read: whether a source reads it as episodes; then it is the first input of the report.
    """

    path: str
    held: Holding
    command: tuple[str, ...]
    is_read: bool

    def section(self) -> Json:
        """The section on the conversion."""
        return describe_conversion(self.path, self.held, read_report(self.path))

    def part(self, part: Json | None) -> Json:
        """The part of the output (its items, if no source reads it) with the rules that records of the input broke."""
        shown = items_part(self.path, self.held) if part is None else part
        rules = rejected_rules(read_report(self.path), self.command)
        return {**shown, "rules": [*rules, *shown["rules"]]}


@dataclasses.dataclass(frozen=True)
class ReportWriter:
    """Writes the report of a dataset. Picklable.

    Attributes:
      shown: the dataset; None for an output that no source reads as episodes.
      path: the file to write.
      command: the command that makes the report.
      conversion: the output directory that the dataset is, if rlds-beam wrote it.
    """

    shown: Input | None
    path: str
    command: str
    conversion: ConversionView | None = None

    def write(self, gathered: Gathered | None) -> WrittenReport:
        """Writes the report, in place of an earlier one.

        Args:
          gathered: what a pass over the dataset found.
        """
        from rlds_beam.viewing.report.page import render

        page = render(self.document(gathered)).encode()
        storage.write_given(self.path, page, "--output")
        return WrittenReport(None if gathered is None else gathered.report, self.path, len(page))

    def stages(self, connecting: ConnectorRunner | None) -> Job:
        """The stages that read the dataset and write the report: a `WrittenReport`.

        Args:
          connecting: the connectors; None if the dataset is not read.
        """
        if self.shown is None or connecting is None:
            return (_Write(self),)
        return (*self.shown.stages(connecting, _Write.measured), _Write(self))

    def document(self, gathered: Gathered | None) -> Json:
        """The content of the report, all that the page shows.

        All texts may come from a dataset, so they are not trusted. There are no time stamps, and equal inputs give
        equal bytes for any number of workers.
        """
        conversion = self.conversion
        part = None if self.shown is None or gathered is None else self.shown.part(gathered)
        if conversion is not None:
            part = conversion.part(part)
        assert part is not None
        return {
            "title": part["facts"]["name"],
            "dataset": part,
            "made": {"command": self.command, "version": __version__},
            "conversion": None if conversion is None else conversion.section(),
        }


@dataclasses.dataclass(frozen=True)
class _Write(Stage):
    """Writes the report; `measured` is the stage that reads the dataset."""

    measured: ClassVar[str] = "measured"

    writer: ReportWriter
    name = "write"

    def finish(self, total: Any, totals: Totals) -> WrittenReport:
        return self.writer.write(totals.get(self.measured))
