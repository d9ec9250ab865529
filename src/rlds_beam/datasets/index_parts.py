"""The index of a large dataset in parts: one of each range, which any worker builds, and one process joins.

DIRECTORY/000017/DIGEST/    the index of a range (`step_index`); checksums.bin is written last
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlds_beam import storage
from rlds_beam.datasets.index_builder import Recipe, build_part, join_parts
from rlds_beam.datasets.step_index import CHECKSUMS, StepIndex
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.output.scratch import ScratchDirectory
from rlds_beam.reading.framing import Framing
from rlds_beam.reading.plan import WorkRange, plan_ranges

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
