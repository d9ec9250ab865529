"""One input range in, one finished output shard out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam

from rlds_beam.checking.report import Report
from rlds_beam.episodes.keys import EpisodeKey
from rlds_beam.output.commits import RangeCommit
from rlds_beam.output.range_conversion import DatasetCommitter, RangeConverter, RangeFinisher
from rlds_beam.reading.plan import WorkRange
from rlds_beam.transforms.duplicates import as_side_input
from rlds_beam.transforms.fitting import as_results
from rlds_beam.transforms.metrics import RangeMetrics
from rlds_beam.worker_status import working_on


class OpenOutput(beam.PTransform):
    """Makes the output of a conversion ready: a PCollection of the `WorkRange`s that are still to do.

    Args:
      open_ranges: does it, and gives the ranges (`jobs.convert.ConvertJob.open`).
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
    """Reads, checks, converts and writes whole ranges: a PCollection of `RangeCommit`.

    Everything that happens to a range happens in one place, one episode after the other, because a
    shard is finished only when all of its range is: it then takes its name at once, and a run that
    is killed loses no more than the ranges it was on. No episode ever leaves the worker that read it.
    Without Beam: `ranges.RangeConverter`.

    Args:
      converter: what to do with a range.
      duplicates: what `FindDuplicateEpisodes` gives; None looks for none.
      fitted: what `FitConnectors` gives; None where no connector is to be fitted.
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
            commit = self._converter.convert(work, duplicates, results)
        self._metrics.end(Report.from_json(commit.report))
        yield commit


class CommitDataset(beam.PTransform):
    """Waits for all ranges, checks them, and writes the manifest last: a PCollection of one `Report`.

    Without Beam: `range_conversion.DatasetCommitter`.

    Args:
      committer: commits the dataset.
      finisher: completes the files of the ranges before that, of an output that numbers them.
    """

    def __init__(self, committer: DatasetCommitter, finisher: RangeFinisher | None = None):
        super().__init__()
        self._committer, self._finisher = committer, finisher

    def expand(self, commits: Any) -> Any:
        # Only the fact that a range is done travels here; what was written stays where it is.
        done = commits | "Done" >> beam.CombineGlobally(beam.combiners.CountCombineFn())
        if self._finisher is not None:
            done = done | "FinishRanges" >> _FinishRanges(self._finisher)
        return done | "Commit" >> beam.Map(_commit, self._committer)


class _FinishRanges(beam.PTransform):
    """Completes the files of all ranges, each in any worker: how many there were."""

    def __init__(self, finisher: RangeFinisher):
        super().__init__()
        self._finisher = finisher

    def expand(self, done: Any) -> Any:
        return (
            done
            | "Number" >> beam.FlatMap(_numbered, self._finisher)
            | "Spread" >> beam.Reshuffle()
            | "Finish" >> beam.Map(_finish, self._finisher)
            | "Finished" >> beam.CombineGlobally(beam.combiners.CountCombineFn())
        )


def _numbered(done: int, finisher: RangeFinisher) -> Iterable[tuple[RangeCommit, Any]]:
    del done
    return finisher.commits()


def _finish(element: tuple[RangeCommit, Any], finisher: RangeFinisher) -> None:
    commit, numbers = element
    with working_on(f"{commit.range}, its numbers"):
        finisher.finish(commit, numbers)


def _commit(done: int, committer: DatasetCommitter) -> Report:
    del done
    return committer.commit()
