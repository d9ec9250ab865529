"""Computes statistics of episodes in one pass."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import apache_beam as beam

from rlds_beam.connectors.statistics.episode_statistics import DatasetStatistics, Groups
from rlds_beam.episodes.episode import Episode
from rlds_beam.transforms.elements import combine_windows


@beam.typehints.with_input_types(Episode)
class ComputeStatistics(beam.PTransform[Episode, DatasetStatistics]):
    """Computes one `DatasetStatistics` from a PCollection of `Episode`, or one for each window of it.

    Without Beam: `DatasetStatistics.of`.

    Means and standard deviations may differ in their last bits from run to run, because they depend on how the runner
    bundles the episodes; all other statistics do not. The command `stats` computes them by range, and merges the ranges
    in order: its results are equal for any number of workers.

    Args:
      by: a field; each of its values gets its own statistics (see `DatasetStatistics`).
      target_propensity_fn: a `module:function` that returns the propensities of a target policy. They replace the step
        field `target_propensity`.
    """

    def __init__(self, by: str | None = None, target_propensity_fn: str | None = None):
        super().__init__()
        self._new_groups = functools.partial(Groups, by, target_propensity_fn)

    def expand(self, episodes: beam.PCollection[Episode]) -> beam.PCollection[DatasetStatistics]:
        combine = combine_windows(_StatisticsCombineFn(self._new_groups), episodes)
        return episodes | "Compute" >> combine.with_output_types(DatasetStatistics)


Accumulator = tuple[DatasetStatistics, Groups]
"""Finished statistics, and those of the episodes that were added since."""


class _StatisticsCombineFn(beam.CombineFn):
    def __init__(self, new_groups: Callable[[], Groups]):
        self._new_groups = new_groups

    def create_accumulator(self) -> Accumulator:
        return DatasetStatistics(), self._new_groups()

    def add_input(self, accumulator: Accumulator, episode: Episode) -> Accumulator:
        accumulator[1].add(episode)
        return accumulator

    def compact(self, accumulator: Accumulator) -> Accumulator:
        return self.extract_output(accumulator), self._new_groups()

    def merge_accumulators(self, accumulators: Iterable[Accumulator]) -> Accumulator:
        return DatasetStatistics().merge(*map(self.extract_output, accumulators)), self._new_groups()

    def extract_output(self, accumulator: Accumulator) -> DatasetStatistics:
        finished, groups = accumulator
        return finished.merge(groups.finish())
