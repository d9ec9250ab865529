"""Computes statistics of episodes in one pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.utils.windowed_value import WindowedValue

from rlds_beam.checking.propensities import propensities_of
from rlds_beam.connectors.statistics.dataset_statistics import DatasetStatistics, Groups
from rlds_beam.connectors.statistics.propensity_statistics import TARGET
from rlds_beam.episodes.episode import Episode
from rlds_beam.processing.report import Report
from rlds_beam.transforms.elements import check_element, in_global_window
from rlds_beam.transforms.jobs.sharing import Shared


class ComputeStatistics(beam.PTransform[Episode, DatasetStatistics]):
    """Computes one `DatasetStatistics` from a PCollection of `Episode`. Without Beam: `DatasetStatistics.of`.

    The result is bit-identical for any number of workers and any bundling, because sums are exact
    (`connectors.statistics.exact_sums`).

    Args:
      by: a field; each of its values gets its own statistics (see `DatasetStatistics`).
      target_propensity_fn: a `module:function` that returns the propensities of a target policy. They replace the step
        field `target_propensity`.
      directory: a directory that all workers share, for temporary files; None if there is none.
    """

    def __init__(self, by: str | None = None, target_propensity_fn: str | None = None, directory: str | None = None):
        super().__init__()
        self._by, self._directory = by, directory
        self._target = target_propensity_fn

    def expand(self, episodes: beam.PCollection[Episode]) -> beam.PCollection[DatasetStatistics]:
        if self._target is not None:
            episodes = episodes | "AddTargetPropensities" >> beam.Map(_with_target, self._target)
        parts = episodes | "Count" >> beam.ParDo(_CountFn(self._by, self._directory))
        merged = parts | "Merge" >> beam.CombineGlobally(_merge, self._directory)
        return merged | "Load" >> beam.Map(_value)


class CheckedStatistics(NamedTuple):
    """Statistics, and the report on the records read."""

    statistics: DatasetStatistics
    report: Report

    def to_json(self) -> dict[str, Any]:
        return {"statistics": self.statistics.to_json(), "report": self.report.to_json()}


class WithReport(beam.PTransform):
    """Combines one `DatasetStatistics` with its report into one `CheckedStatistics`.

    Args:
      report: a PCollection of one `Report`, from `ValidateEpisodes`.
    """

    def __init__(self, report: Any):
        super().__init__()
        self._report = report

    def expand(self, statistics: Any) -> Any:
        return statistics | beam.Map(CheckedStatistics, beam.pvalue.AsSingleton(self._report))


def _with_target(episode: Episode, function: str) -> Episode:
    return episode.with_columns({TARGET: propensities_of(function, episode, "--target_propensity_fn")})


def _merge(parts: Iterable[Shared[DatasetStatistics]], directory: str | None) -> Shared[DatasetStatistics]:
    return Shared(DatasetStatistics().merge(*(part.value for part in parts)), directory)


def _value(shared: Shared[DatasetStatistics]) -> DatasetStatistics:
    return shared.value


class _CountFn(beam.DoFn):
    def __init__(self, by: str | None, directory: str | None):
        self._by, self._directory = by, directory

    def start_bundle(self) -> None:
        self._groups = Groups(self._by)

    def process(self, episode: Episode) -> None:
        self._groups.add(check_element("ComputeStatistics", episode, Episode))

    def finish_bundle(self) -> Iterator[WindowedValue]:
        yield in_global_window(Shared(self._groups.finish(), self._directory))
