"""Computes statistics of episodes in one pass."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator

import apache_beam as beam
from apache_beam.utils.windowed_value import WindowedValue

from rlds_beam.connectors.statistics.dataset_statistics import DatasetStatistics, Groups
from rlds_beam.episodes.episode import Episode
from rlds_beam.transforms.elements import in_global_window
from rlds_beam.transforms.jobs.shared_values import Shared


@beam.typehints.with_input_types(Episode)
class ComputeStatistics(beam.PTransform[Episode, DatasetStatistics]):
    """Computes one `DatasetStatistics` from a PCollection of `Episode`. Without Beam: `DatasetStatistics.of`.

    Means and standard deviations may differ in their last bits from run to run, because they depend on how the runner
    bundles the episodes; all other statistics do not. The command `stats` computes them by range, and merges the ranges
    in order: its results are equal for any number of workers.

    Args:
      by: a field; each of its values gets its own statistics (see `DatasetStatistics`).
      target_propensity_fn: a `module:function` that returns the propensities of a target policy. They replace the step
        field `target_propensity`.
      directory: a directory that all workers share, for temporary files; None if there is none.
    """

    def __init__(self, by: str | None = None, target_propensity_fn: str | None = None, directory: str | None = None):
        super().__init__()
        self._groups, self._directory = functools.partial(Groups, by, target_propensity_fn), directory

    def expand(self, episodes: beam.PCollection[Episode]) -> beam.PCollection[DatasetStatistics]:
        parts = episodes | "Count" >> beam.ParDo(_CountFn(self._groups, self._directory))
        merged = parts | "Merge" >> beam.CombineGlobally(_merge, self._directory)
        return merged | "Load" >> beam.Map(_value).with_output_types(DatasetStatistics)


def _merge(parts: Iterable[Shared[DatasetStatistics]], directory: str | None) -> Shared[DatasetStatistics]:
    return Shared(DatasetStatistics().merge(*(part.value for part in parts)), directory)


def _value(shared: Shared[DatasetStatistics]) -> DatasetStatistics:
    return shared.value


class _CountFn(beam.DoFn):
    def __init__(self, new_groups: Callable[[], Groups], directory: str | None):
        self._new_groups, self._directory = new_groups, directory

    def start_bundle(self) -> None:
        self._groups = self._new_groups()

    def process(self, episode: Episode) -> None:
        self._groups.add(episode)

    def finish_bundle(self) -> Iterator[WindowedValue]:
        yield in_global_window(Shared(self._groups.finish(), self._directory))
