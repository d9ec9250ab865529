"""The stages of a conversion, after the search for duplicates and the fitting: convert, number, commit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rlds_beam.output.commits import RangeCommit
from rlds_beam.output.range_conversion import DatasetCommitter, RangeConverter, RangeFinisher
from rlds_beam.processing.job import Stage, Totals
from rlds_beam.processing.report import Report
from rlds_beam.reading.plan import WorkRange
from rlds_beam.worker_status import count


@dataclasses.dataclass(frozen=True)
class OpenOutput(Stage):
    """Prepares the output when the job runs, not when it is planned: the pending ranges.

    Attributes:
      open: prepares the output, and returns the ranges.
    """

    open: Callable[[], Sequence[WorkRange]]
    name = "pending"

    def finish(self, total: Any, totals: Totals) -> Sequence[WorkRange]:
        return self.open()


@dataclasses.dataclass(frozen=True)
class ConvertRanges(Stage):
    """Reads, checks, converts, and writes whole ranges.

    One worker processes a whole range, episode by episode, because a shard is finished only when its range is. The
    shard is then renamed atomically, so a killed run loses only the ranges in progress.

    Attributes:
      converter: converts a range.
      pending: the ranges to convert; None for those of `OpenOutput`.
    """

    converter: RangeConverter
    pending: Sequence[WorkRange] | None = None
    name = "convert"

    def ranges(self, totals: Totals) -> Sequence[WorkRange]:
        pending: Sequence[WorkRange] = totals[OpenOutput.name] if self.pending is None else self.pending
        return pending

    def process(self, work: WorkRange, totals: Totals) -> None:
        self.converter.convert_range(work, totals.get("duplicates", {}), totals.get("fitted", ()))
        count(ranges=1)


@dataclasses.dataclass(frozen=True)
class NumberRanges(Stage):
    """Completes the files of all ranges, for outputs that number their frames and episodes."""

    finisher: RangeFinisher
    name = "number"

    def ranges(self, totals: Totals) -> Iterable[tuple[RangeCommit, Any]]:
        return self.finisher.commits()

    def describe(self, work: tuple[RangeCommit, Any]) -> str:
        return f"{work[0].range}, its numbers"

    def process(self, work: tuple[RangeCommit, Any], totals: Totals) -> None:
        self.finisher.finish(*work)


@dataclasses.dataclass(frozen=True)
class CommitDataset(Stage):
    """Checks all ranges, and writes the manifest last: the `Report`."""

    committer: DatasetCommitter
    name = "commit"

    def finish(self, total: Any, totals: Totals) -> Report:
        return self.committer.commit(numbered=True)
