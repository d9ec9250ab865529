"""Builds the index of the steps of each input range."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam

from rlds_beam import storage
from rlds_beam.datasets.index_builder import Recipe, build_part, join_parts
from rlds_beam.datasets.step_index import CHECKSUMS, StepIndex
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.output.scratch import ScratchDirectory
from rlds_beam.processing.ranges import RangeFitter
from rlds_beam.reading.framing import Framing
from rlds_beam.reading.plan import WorkRange, plan_ranges
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.transforms.duplicates import FindDuplicateEpisodes, as_side_input
from rlds_beam.transforms.jobs.fitted_connectors import FitConnectors, as_results
from rlds_beam.worker_status import working_on

_COPIED = 8 << 20
"""Bytes copied at once."""


@dataclasses.dataclass(frozen=True)
class IndexParts:
    """The indexes of the ranges of a dataset, in a directory that all workers share. Picklable.

    Attributes:
      recipe: what to index.
      digest: the digest of the recipe.
      directory: the directory, local or in a bucket.
      ranges: all ranges.
    """

    recipe: Recipe
    digest: str
    directory: str
    ranges: tuple[WorkRange, ...]

    @classmethod
    def plan(cls, recipe: Recipe, digest: str, directory: str) -> IndexParts:
        """Plans the ranges, and looks at what workers need not look at again."""
        _ = recipe.last_steps
        ranges = plan_ranges(recipe.source, starts=Framing(recipe.source).record_starts)
        return cls(recipe, digest, directory, ranges)

    def path(self, work: WorkRange) -> str:
        """The directory of a range's index."""
        return storage.join(self.directory, f"{self.ranges.index(work):06}", self.digest)

    def build(self, work: WorkRange, duplicates: Mapping[EpisodeKey, EpisodeKey], fitted: Sequence[Any]) -> None:
        """Builds the index of a range, unless it is there."""
        target = self.path(work)
        if storage.exists(storage.join(target, CHECKSUMS)):
            return
        with ScratchDirectory() as scratch:
            build_part(self.recipe, scratch, self.digest, work, duplicates, fitted)
            storage.makedirs(target)
            for name in sorted(os.listdir(scratch), key=lambda name: name == CHECKSUMS):  # written last
                _copy(os.path.join(scratch, name), storage.join(target, name))

    def join(self, directory: str) -> None:
        """Joins the indexes of all ranges in an empty local directory, and removes them."""
        join_parts(self.recipe, directory, self.digest, self._open())
        storage.rmtree(self.directory)

    def _open(self) -> Iterator[StepIndex]:
        for work in self.ranges:
            path = self.path(work)
            if storage.scheme(path) is None:
                yield StepIndex(path)
                continue
            with ScratchDirectory() as scratch:
                local = os.path.join(scratch, self.digest)
                os.mkdir(local)
                for name in storage.sizes(path):
                    _copy(storage.join(path, name), storage.below(local, name))
                yield StepIndex(local)


def _copy(source: str, target: str) -> None:
    with storage.open_read(source) as read, storage.open_write(target) as written:
        for data in iter(functools.partial(read.read, _COPIED), b""):
            written.write(data)


class BuildIndexParts(beam.PTransform):
    """Builds the index of each range: a PCollection of one `IndexedRanges`.

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
