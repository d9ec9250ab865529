"""Converts each input range to a finished output shard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import AsSingleton

from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.output.commits import RangeCommit
from rlds_beam.output.completion import RangeFinisher
from rlds_beam.output.range_conversion import DatasetCommitter, RangeConverter
from rlds_beam.processing.report import Report
from rlds_beam.reading.plan import WorkRange
from rlds_beam.transforms.duplicates import as_side_input
from rlds_beam.transforms.elements import RangeMetrics
from rlds_beam.transforms.jobs.fitted_connectors import as_results
from rlds_beam.worker_status import working_on


class OpenOutput(beam.PTransform):
    """Prepares the output of a conversion: a PCollection of the pending `WorkRange`s.

    Args:
      open_ranges: prepares the output and returns the ranges (`jobs.convert.ConvertJob.open`).
    """

    def __init__(self, open_ranges: Callable[[], Iterable[WorkRange]]):
        super().__init__()
        self._open_ranges = open_ranges

    def expand(self, root: Any) -> Any:
        return (
            root
            | "Start" >> beam.Create([None])
            | "Open" >> beam.FlatMap(_open, self._open_ranges)
            | "Spread" >> beam.Reshuffle()
        )


def _open(start: None, open_ranges: Callable[[], Iterable[WorkRange]]) -> Iterable[WorkRange]:
    return open_ranges()


class ConvertRanges(beam.PTransform):
    """Reads, checks, converts, and writes whole ranges: a PCollection of `RangeCommit`.

    One worker processes a whole range, episode by episode, because a shard is finished only when its range is. The
    shard is then renamed atomically, so a killed run loses only the ranges in progress. Episodes never leave the worker
    that read them. Without Beam: `range_conversion.RangeConverter`.

    Args:
      converter: converts a range.
      duplicates: the result of `FindDuplicateEpisodes`; None skips the search for duplicates.
      fitted: the result of `FitConnectors`; None if no connector needs fitting.
    """

    def __init__(self, converter: RangeConverter, duplicates: Any = None, fitted: Any = None):
        super().__init__()
        self._converter = converter
        self._duplicates, self._fitted = duplicates, fitted

    def expand(self, ranges: Any) -> Any:
        return ranges | "Convert" >> beam.ParDo(
            _ConvertRangeFn(self._converter), as_side_input(self._duplicates), as_results(self._fitted)
        )


class _ConvertRangeFn(beam.DoFn):
    def __init__(self, converter: RangeConverter):
        self._converter = converter
        self._metrics = RangeMetrics()

    def process(
        self, work: WorkRange, duplicates: Mapping[EpisodeKey, EpisodeKey], results: Sequence[Any]
    ) -> Iterator[RangeCommit]:
        self._metrics.begin()
        with working_on(work):
            commit = self._converter.convert_range(work, duplicates, results)
        self._metrics.end(Report.from_json(commit.report))
        yield commit


class CommitDataset(beam.PTransform):
    """Waits for all ranges, checks them, and writes the manifest last: a PCollection of one `Report`.

    Without Beam: `range_conversion.DatasetCommitter`.

    Args:
      committer: commits the dataset; a side input if the ranges are known only while running.
      finisher: completes the ranges' files before the commit, for outputs that number their items.
    """

    def __init__(self, committer: DatasetCommitter | AsSingleton, finisher: RangeFinisher | AsSingleton | None = None):
        super().__init__()
        self._committer, self._finisher = committer, finisher

    def expand(self, commits: Any) -> Any:
        # Only the number of finished ranges is passed on; the files stay in place.
        done = commits | "Done" >> beam.CombineGlobally(beam.combiners.CountCombineFn())
        if self._finisher is not None:
            done = done | "FinishRanges" >> _FinishRanges(self._finisher)
        return done | "Commit" >> beam.Map(_commit, self._committer)


class _FinishRanges(beam.PTransform):
    """Completes the files of all ranges, on any worker: a PCollection of their number."""

    def __init__(self, finisher: RangeFinisher | AsSingleton):
        super().__init__()
        self._finisher = finisher

    def expand(self, done: Any) -> Any:
        return (
            done
            | "Number" >> beam.FlatMap(_number, self._finisher)
            | "Spread" >> beam.Reshuffle()
            | "Finish" >> beam.Map(_finish, self._finisher)
            | "Finished" >> beam.CombineGlobally(beam.combiners.CountCombineFn())
        )


def _number(done: int, finisher: RangeFinisher) -> Iterable[tuple[RangeCommit, Any]]:
    del done
    return finisher.commits()


def _finish(element: tuple[RangeCommit, Any], finisher: RangeFinisher) -> None:
    commit, numbers = element
    with working_on(f"{commit.range}, its numbers"):
        finisher.finish(commit, numbers)


def _commit(done: int, committer: DatasetCommitter) -> Report:
    del done
    return committer.commit()
