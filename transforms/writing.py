"""Writes checked episodes in your pipeline."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import AsList, TaggedOutput
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import MIN_TIMESTAMP
from apache_beam.utils.windowed_value import WindowedValue

from rlds_beam import naming
from rlds_beam.checking.verdicts import Rejection
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.schema import Schema
from rlds_beam.errors import BadEpisode, UsageError
from rlds_beam.formats.trajectories.bundles import (
    BundleFile,
    BundleWriter,
    commit_parts,
    commit_rejections,
    open_parts,
    read_rejected_list,
    write_rejections,
)
from rlds_beam.formats.trajectories.output import TrajectoryOutput
from rlds_beam.output.directory import check_output
from rlds_beam.output.plans import OutputPlan
from rlds_beam.trajectories.converter import Conversion
from rlds_beam.trajectories.keeping import keep_fields
from rlds_beam.trajectories.options import FrameOptions, Images, ItemOptions
from rlds_beam.trajectories.spec import trajectory_spec


class WriteToTrajectoryRecordsResult(NamedTuple):
    """The outputs of `WriteToTrajectoryRecords`.

    Attributes:
      written: a PCollection of one dict, the manifest of the finished dataset.
      rejected: a PCollection of `Rejection`: episodes that could not be written (too long for an item, or with an image
        that cannot be decoded).
    """

    written: Any
    rejected: Any


class WriteToTrajectoryRecords(beam.PTransform):
    """Writes checked episodes as trajectory TFRecords for TF-Agents and TFDS.

    Writes one shard per bundle of episodes and split; episodes are not shuffled. The runner chooses the bundles, so a
    pipeline that was killed starts over. `rlds_beam.pipelines.convert` cuts the input itself, so it writes the same
    shards on every run, commits each of them, and resumes. Both end with commits that hold checksums and predicted
    counts, and then the manifest. Use this transform if your pipeline edits episodes in a way that a connector cannot.

    Args:
      output: a new or empty directory.
      schema: the schema of the episodes (`ReadFromRlds(...).source.schema`, with `schema.with_columns(...)` for added
        columns).
      frames, items, images, keep: as in `ConvertConfig`.
      name: the name of the dataset.
      overwrite: replaces what rlds-beam wrote there before.

    Raises:
      UsageError: on construction, if the output or an option cannot be used; while running, if an episode has a column
        that is not in the schema.
    """

    def __init__(
        self,
        output: str,
        schema: Schema,
        frames: FrameOptions | None = None,
        items: ItemOptions | None = None,
        *,
        images: Images = "raw",
        keep: Sequence[str] = (),
        name: str = "trajectories",
        overwrite: bool = False,
    ):
        super().__init__()
        frames, items = frames or FrameOptions(), items or ItemOptions()
        if items.across_episodes:
            raise UsageError("across_episodes needs the order of a shard, but a PCollection is unordered")
        if not naming.is_file_name(name):
            raise UsageError(f"name={name!r}: expected a name without path separators; it becomes part of file names")
        spec = trajectory_spec(schema, frames, items)
        kept = keep_fields(keep, schema, (leaf.path for leaf in spec.leaves))
        conversion = Conversion(frames, items, spec, images, kept)
        self._output, self._schema = TrajectoryOutput(output, name, conversion), schema
        # The pipeline may change its episodes in unknown ways, so every run is a new plan.
        self._plan = OutputPlan.of({"to": "trajectories", "pipeline": uuid.uuid4().hex}, self._output.metadata, name)
        check_output(output, self._plan, overwrite=overwrite)
        self._open = functools.partial(
            open_parts, output, self._plan, overwrite=overwrite, rejected=read_rejected_list(output).id
        )

    def expand(self, episodes: Any) -> WriteToTrajectoryRecordsResult:
        # Building the graph, which may never run, removes nothing.
        opened = episodes.pipeline | "Start" >> beam.Create([None]) | "Open" >> beam.Map(_open, self._open)
        parts = episodes | "Write" >> beam.ParDo(
            _WritePartsFn(self._output, self._schema), AsList(opened)
        ).with_outputs("rejected", main="parts")
        written = (
            parts.parts
            | "All" >> beam.CombineGlobally(beam.combiners.ToListCombineFn())
            | "Commit" >> beam.Map(_commit_parts, self._output, self._plan.digest, AsList(opened))
        )
        return WriteToTrajectoryRecordsResult(written, parts.rejected)


class WriteRejected(beam.PTransform):
    """Writes rejected records to `output/rejected/`: their original bytes, and a JSON line for each.

    The result is a PCollection of one dict, the content of `rejected/rejected.json`.
    """

    def __init__(self, output: str):
        super().__init__()
        self._output = output

    def expand(self, rejected: Any) -> Any:
        return (
            rejected
            | "Write" >> beam.ParDo(_WriteRejectedFn(self._output))
            | "All" >> beam.CombineGlobally(beam.combiners.ToListCombineFn())
            | "Commit" >> beam.Map(_commit_rejections, self._output)
        )


class _WritePartsFn(beam.DoFn):
    def __init__(self, output: TrajectoryOutput, schema: Schema):
        self._output, self._schema = output, schema
        self._writer: BundleWriter | None = None

    def start_bundle(self) -> None:
        self.teardown()  # if the last bundle failed
        self._writer = BundleWriter(self._output)

    def process(self, episode: Episode, opened: object) -> Iterator[TaggedOutput]:
        del opened  # only a signal that the directory is ready
        assert self._writer is not None
        self._schema.check(episode)
        try:
            self._writer.add(episode)
        except BadEpisode as bad:
            yield TaggedOutput("rejected", Rejection.of(episode, bad))

    def finish_bundle(self) -> Iterator[WindowedValue]:
        assert self._writer is not None
        yield from map(in_global_window, self._writer.finish())

    def teardown(self) -> None:
        if self._writer is not None:
            self._writer.abort()


class _WriteRejectedFn(beam.DoFn):
    def __init__(self, output: str):
        self._output = output

    def start_bundle(self) -> None:
        self._rejections: list[Rejection] = []

    def process(self, rejection: Rejection) -> None:
        self._rejections.append(rejection)

    def finish_bundle(self) -> Iterator[WindowedValue]:
        yield from map(in_global_window, write_rejections(self._output, self._rejections))


def in_global_window(value: Any) -> WindowedValue:
    """A value that `finish_bundle` yields."""
    return WindowedValue(value, MIN_TIMESTAMP, [GlobalWindow()])


def _open(start: None, open_output: Callable[[], None]) -> None:
    open_output()


def _commit_parts(parts: Iterable[BundleFile], output: TrajectoryOutput, plan: str, opened: object) -> dict[str, Any]:
    del opened
    return commit_parts(output, list(parts), plan)


def _commit_rejections(parts: Iterable[BundleFile], output: str) -> dict[str, Any]:
    return commit_rejections(output, list(parts))
