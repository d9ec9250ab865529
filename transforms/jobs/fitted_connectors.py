"""Fits connectors to the whole dataset before it is converted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import apache_beam as beam

from rlds_beam.connectors.fitted_connector import Accumulator
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.processing.ranges import RangeFitter
from rlds_beam.reading.plan import WorkRange
from rlds_beam.transforms.duplicates import as_side_input
from rlds_beam.worker_status import working_on

Results = Sequence[Any]
"""One result per fitted connector, in order (`ConnectorRunner.fit`)."""


class FitConnectors(beam.PTransform):
    """Reads the dataset once for each connector that needs fitting: a PCollection of one `Results`.

    The result does not depend on the number of workers, because accumulators are merged in the order of the ranges.

    Args:
      fitter: fits connectors to ranges.
      ranges: all ranges, including those already converted.
      duplicates: the result of `FindDuplicateEpisodes`; None skips the search for duplicates.
      keep: called with the results, to save them for another run.
    """

    def __init__(
        self,
        fitter: RangeFitter,
        ranges: Iterable[WorkRange],
        duplicates: Any = None,
        keep: Callable[[Any], None] | None = None,
    ):
        super().__init__()
        self._fitter, self._ranges, self._duplicates, self._keep = fitter, list(ranges), duplicates, keep

    def expand(self, root: Any) -> Any:
        results = root | "Nothing" >> beam.Create([()])
        for i in range(self._fitter.connecting.unfitted):
            gathered = (
                root
                | f"Ranges {i}" >> beam.Create(self._ranges, reshuffle=True)
                | f"Gather {i}"
                >> beam.Map(_gather, self._fitter, as_side_input(self._duplicates), beam.pvalue.AsSingleton(results))
                | f"All {i}" >> beam.CombineGlobally(beam.combiners.ToListCombineFn())
            )
            results = gathered | f"Fit {i}" >> beam.Map(_append, beam.pvalue.AsSingleton(results))
        return results if self._keep is None else results | "Keep" >> beam.Map(_keep, self._keep)


def as_results(fitted: Any) -> Any:
    """The result of `FitConnectors` as an argument of a ParDo; None means no results."""
    return () if fitted is None else beam.pvalue.AsSingleton(fitted)


def _gather(
    work: WorkRange, fitter: RangeFitter, duplicates: Mapping[EpisodeKey, EpisodeKey], results: Results
) -> tuple[str, Accumulator]:
    with working_on(work):
        return str(work), fitter.gather(work, duplicates, results)


def _append(gathered: Sequence[tuple[str, Accumulator]], results: Results) -> Results:
    first, *others = [accumulator for _, accumulator in sorted(gathered, key=lambda entry: entry[0])]
    return (*results, first.merge(*others).finish())


def _keep(results: Results, keep: Callable[[Any], None]) -> Results:
    keep(results)
    return results
