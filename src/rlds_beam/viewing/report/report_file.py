"""Makes a report of one or two datasets, and writes it as one file."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from rlds_beam import storage
from rlds_beam._version import __version__
from rlds_beam.checking.signals.context import Context
from rlds_beam.checking.signals.table import EpisodeTable
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.connectors.statistics.episode_statistics import Groups
from rlds_beam.output.directory import Holding
from rlds_beam.processing.job import Job, Stage, Totals
from rlds_beam.processing.range_summary import summarize
from rlds_beam.processing.report import Report, check_counts
from rlds_beam.reading.base import Source
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.viewing.episode_view import Json
from rlds_beam.viewing.report.comparison import compare
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
      report: the counts of the records read, of the first dataset and then of the second.
      path: the file written.
      bytes: its size.
    """

    reports: tuple[Report, ...]
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

    def parts(self, parts: list[Json]) -> list[Json]:
        """Adds the items of the output, if no source reads it, and the rules that records of the input broke."""
        first, *others = parts if self.is_read else [items_part(self.path, self.held), *parts]
        rules = rejected_rules(read_report(self.path), self.command)
        return [{**first, "rules": [*rules, *first["rules"]]}, *others]


@dataclasses.dataclass(frozen=True)
class ReportWriter:
    """Writes the report of one or two inputs. Picklable.

    Attributes:
      inputs: the datasets.
      path: the file to write.
      command: the command that makes the report.
      conversion: the output directory that the first input is, if rlds-beam wrote it.
    """

    inputs: tuple[Input, ...]
    path: str
    command: str
    conversion: ConversionView | None = None

    def write(self, gathered: Sequence[Gathered]) -> WrittenReport:
        """Writes the report, in place of an earlier one.

        Args:
          gathered: what a pass over each input found.
        """
        from rlds_beam.viewing.report.page import render

        page = render(self.document(gathered)).encode()
        storage.write_given(self.path, page, "--output")
        return WrittenReport(tuple(summary.report for summary in gathered), self.path, len(page))

    def stages(self, connecting: Sequence[ConnectorRunner]) -> Job:
        """The stages that read the inputs and write the report: a `WrittenReport`.

        Args:
          connecting: the connectors of each input.
        """
        pairs = zip(self.inputs, connecting, strict=True)
        passes = [shown.stages(runner, f"input {i}") for i, (shown, runner) in enumerate(pairs, 1)]
        return (*itertools.chain(*passes), _Write(self, tuple(each[-1].name for each in passes)))

    def document(self, gathered: Sequence[Gathered]) -> Json:
        """The content of the report, all that the page shows.

        All texts may come from a dataset, so they are not trusted. There are no time stamps, and equal inputs give
        equal bytes for any number of workers.
        """
        parts = [shown.part(found) for shown, found in zip(self.inputs, gathered, strict=True)]
        conversion = self.conversion
        if conversion is not None:
            parts = conversion.parts(parts)
        return {
            "title": " and ".join(part["facts"]["name"] for part in parts),
            "datasets": parts,
            "made": {"command": self.command, "version": __version__},
            "conversion": None if conversion is None else conversion.section(),
            "comparison": self._comparison(gathered) if len(self.inputs) == 2 else None,
        }

    def _comparison(self, gathered: Sequence[Gathered]) -> Json:
        (first, second), (one, other) = self.inputs, gathered
        return compare(
            (first.source.dataset, second.source.dataset),
            (first.source.schema, second.source.schema),
            (one.statistics.whole, other.statistics.whole),
        )


@dataclasses.dataclass(frozen=True)
class _Write(Stage):
    """Writes the report; `passes` are the names of the stages that read its inputs."""

    writer: ReportWriter
    passes: tuple[str, ...]
    name = "write"

    def finish(self, total: Any, totals: Totals) -> WrittenReport:
        return self.writer.write([totals[name] for name in self.passes])
