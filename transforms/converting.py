"""Converts episodes to training items in your pipeline."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import TaggedOutput

from rlds_beam.checking.verdicts import Rejection
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.schema import Schema
from rlds_beam.errors import BadEpisode, UsageError
from rlds_beam.trajectories.frames import to_frames
from rlds_beam.trajectories.items import ItemMaker, Items
from rlds_beam.trajectories.options import FrameOptions, ItemOptions
from rlds_beam.trajectories.spec import TrajectorySpec, trajectory_spec


class ConvertToTrajectoriesResult(NamedTuple):
    """The outputs of `ConvertToTrajectories`.

    Attributes:
      items: a PCollection of `Items`, one for each episode: its K items by column (`items.gather("observation")` is
        [K, L, ...]). K is 0 for an episode too short for an item.
      rejected: a PCollection of `Rejection`: episodes too long for an item, or with values that a cast would change.
    """

    items: beam.PCollection[Items]
    rejected: beam.PCollection[Rejection]


@beam.typehints.with_input_types(Episode)
class ConvertToTrajectories(beam.PTransform[Episode, Items]):
    """Converts checked episodes to step pairs, sequences, whole episodes, or single frames.

    An element holds all items of an episode as whole columns, and overlapping windows as views, so a step is never a
    Python object. Edit items with `items.with_columns`; `WriteToTrajectoryRecords` and `WriteToReverb` write them.
    Without Beam: `to_frames` and `windows`.

    Args:
      schema: the schema of the episodes (`ReadFromRlds(...).schema`, with `schema.with_columns(...)` for added
        columns).
      frames: how steps become TF-Agents frames.
      items: which frames make one item.
      keep: the fields that items carry besides the trajectory, as in `ConvertConfig`.

    Attributes:
      spec: the `TrajectorySpec` of the items, for what writes them.

    Raises:
      UsageError: on construction, if an option or the schema cannot be used. This includes `across_episodes`: a
        PCollection has no order, so only `pipelines.convert`, which reads shard by shard, writes sequences across
        episode boundaries. While running, if an episode has a column that is not in the schema.
    """

    def __init__(
        self,
        schema: Schema,
        frames: FrameOptions | None = None,
        items: ItemOptions | None = None,
        *,
        keep: Sequence[str] = (),
    ):
        super().__init__()
        items = items or ItemOptions()
        refuse_across_episodes(items)
        self._schema = schema
        self.spec = trajectory_spec(schema, frames or FrameOptions(), items, keep)

    def display_data(self) -> dict[str, Any]:
        assert self.spec.items is not None
        return {"items": self.spec.items.items}

    def expand(self, episodes: beam.PCollection[Episode]) -> ConvertToTrajectoriesResult:
        converted = episodes | "Convert" >> (
            beam.ParDo(_ConvertFn(self._schema, self.spec))
            .with_output_types(Items, rejected=Rejection)
            .with_outputs("rejected", main="items")
        )
        return ConvertToTrajectoriesResult(converted.items, converted.rejected)


class _ConvertFn(beam.DoFn):
    def __init__(self, schema: Schema, spec: TrajectorySpec):
        assert spec.frames is not None and spec.items is not None
        self._schema, self._frames, self._keep, self._maker = schema, spec.frames, spec.keep, ItemMaker(spec.items)

    def process(self, episode: Episode) -> Iterator[Items | TaggedOutput]:
        self._schema.check(episode)
        try:
            items = self._maker.push(to_frames(episode, self._frames, self._keep))
        except BadEpisode as bad:
            yield TaggedOutput("rejected", Rejection.from_bad_episode(episode, bad))
            return
        yield dataclasses.replace(items, payload=episode.payload)


def check_items(items: Items, spec: TrajectorySpec) -> None:
    """Raises UsageError for items that are not of this spec."""
    if more := sorted(path for path in items.frames.columns if path not in spec):
        raise UsageError(
            f"{items.key}: {', '.join(more)} is not in the spec, so it would not be written: pass "
            f"spec.with_columns(Field({more[0]!r}, dtype, shape)), or remove the column from the items"
        )
    if less := [kept.field.path for kept in spec.keep if kept.field.path not in items.frames.kept]:
        raise UsageError(f"{items.key}: the spec keeps {', '.join(less)}, but the items do not carry it")
    spec.check(items.frames)


def refuse_across_episodes(items: ItemOptions) -> None:
    """Raises UsageError for sequences across episodes."""
    if items.across_episodes:
        raise UsageError("across_episodes needs the order of a shard, but a PCollection is unordered")
