"""Converts episodes to training items in your pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import TaggedOutput

from rlds_beam.checking.verdicts import Rejection
from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import BadEpisode, UsageError
from rlds_beam.trajectories.frames import to_frames
from rlds_beam.trajectories.items import ItemMaker, Items
from rlds_beam.trajectories.options import FrameOptions, ItemOptions


class ConvertToTrajectoriesResult(NamedTuple):
    """The outputs of `ConvertToTrajectories`.

    Attributes:
      items: a PCollection of `Items`: the items of one episode, by column (`items.gather("observation")` is
        [K, L, ...]). Episodes without items have no element.
      rejected: a PCollection of `Rejection`: episodes too long for an item.
    """

    items: Any
    rejected: Any


class ConvertToTrajectories(beam.PTransform):
    """Converts checked episodes to step pairs, sequences, whole episodes, or single frames.

    Without Beam: `to_frames` and `windows`.

    Args:
      frames: how steps become TF-Agents frames.
      items: which frames make one item.

    Raises:
      UsageError: on construction, for `across_episodes`: a PCollection has no order, so only `pipelines.convert`, which
        reads shard by shard, writes sequences across episode boundaries.
    """

    def __init__(self, frames: FrameOptions | None = None, items: ItemOptions | None = None):
        super().__init__()
        self._frames, self._items = frames or FrameOptions(), items or ItemOptions()
        if self._items.across_episodes:
            raise UsageError("across_episodes needs the order of a shard, but a PCollection is unordered")

    def expand(self, episodes: Any) -> ConvertToTrajectoriesResult:
        converted = episodes | "Convert" >> beam.ParDo(_ConvertFn(self._frames, self._items)).with_outputs(
            "rejected", main="items"
        )
        return ConvertToTrajectoriesResult(converted.items, converted.rejected)


class _ConvertFn(beam.DoFn):
    def __init__(self, frames: FrameOptions, items: ItemOptions):
        self._frames, self._maker = frames, ItemMaker(items)

    def process(self, episode: Episode) -> Iterator[Items | TaggedOutput]:
        try:
            items = self._maker.push(to_frames(episode, self._frames))
        except BadEpisode as bad:
            yield TaggedOutput("rejected", Rejection.of(episode, bad))
            return
        if len(items):
            yield items
