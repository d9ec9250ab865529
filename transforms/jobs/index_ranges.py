"""Builds the index of the steps of each input range."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import apache_beam as beam

from rlds_beam.datasets.index_parts import IndexParts
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.processing.ranges import RangeFitter
from rlds_beam.reading.framing import Framing
from rlds_beam.reading.plan import WorkRange
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.transforms.duplicates import FindDuplicateEpisodes, as_side_input
from rlds_beam.transforms.jobs.fitted_connectors import FitConnectors, as_results
from rlds_beam.worker_status import working_on


class BuildIndexParts(beam.PTransform):
    """Builds the index of each range: a PCollection of one `IndexedRanges`. Without Beam: `IndexParts.build`.

    Args:
      parts: the ranges, and where their indexes go.
    """

    def __init__(self, parts: IndexParts):
        super().__init__()
        self._parts = parts

    def expand(self, root: Any) -> Any:
        parts, recipe, fitted = self._parts, self._parts.recipe, None
        look = recipe.check.policy("duplicate_episode") != "accept"
        duplicates = root | FindDuplicateEpisodes(recipe.source, Framing(recipe.source)) if look else None
        if recipe.connecting.unfitted:
            ignored = recipe.connecting.ignored_values()
            fitter = RangeFitter(EpisodeReader(recipe.source), recipe.check, recipe.connecting, ignored)
            fitted = root | FitConnectors(fitter, parts.ranges, duplicates)
        return (
            root
            | "Ranges" >> beam.Create(parts.ranges, reshuffle=True)
            | "Build" >> beam.Map(_build, parts, as_side_input(duplicates), as_results(fitted))
            | "Count" >> beam.CombineGlobally(beam.combiners.CountCombineFn())
            | "Done" >> beam.Map(IndexedRanges)
        )


def _build(
    work: WorkRange, parts: IndexParts, duplicates: Mapping[EpisodeKey, EpisodeKey], fitted: Sequence[Any]
) -> None:
    with working_on(work):
        parts.build(work, duplicates, fitted)


@dataclasses.dataclass(frozen=True)
class IndexedRanges:
    """The number of ranges that were indexed."""

    ranges: int

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)
