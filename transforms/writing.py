"""Writes items as trajectory records in your pipeline, and rejected records."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import AsList, TaggedOutput
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
from rlds_beam.reading.base import Source
from rlds_beam.trajectories.items import Items
from rlds_beam.trajectories.options import FrameOptions, Images, ItemOptions
from rlds_beam.trajectories.spec import TrajectorySpec
from rlds_beam.transforms.converting import check_items, choose_input
from rlds_beam.transforms.elements import in_global_window, refuse_windows


class WriteToTrajectoryRecordsResult(NamedTuple):
    """The outputs of `WriteToTrajectoryRecords`.

    Attributes:
      written: a PCollection of one dict, the manifest of the finished dataset.
      rejected: a PCollection of `Rejection`: episodes that could not be written (with an image that cannot be decoded;
        if they are converted here, also too long for an item).
    """

    written: beam.PCollection[dict[str, Any]]
    rejected: beam.PCollection[Rejection]


class WriteToTrajectoryRecords(beam.PTransform[Items, Any]):
    """Writes items as trajectory TFRecords for TF-Agents and TFDS.

        convert = ConvertToTrajectories(read.schema, frames, items)
        converted = checked.accepted | convert
        converted.items | WriteToTrajectoryRecords("pairs", convert.spec, source=read.source)

    With the schema of episodes instead of a spec, the input is a PCollection of checked episodes, which are converted
    first: `checked.accepted | WriteToTrajectoryRecords("pairs", read.schema, frames, items)`.

    Writes one shard per bundle of episodes and split; episodes are not shuffled. The runner chooses the bundles, so a
    pipeline that was killed starts over. `rlds_beam.pipelines.convert` cuts the input itself, so it writes the same
    shards on every run, commits each of them, and resumes. Both end with commits that hold checksums and predicted
    counts, and then the manifest. Use this transform if your pipeline edits episodes in a way that a connector cannot.

    Args:
      output: a new or empty directory.
      spec: the spec of the items (`ConvertToTrajectories(...).spec`, with `spec.with_columns(...)` for added leaves),
        or the schema of the episodes.
      frames, items, keep: how episodes are converted, as in `ConvertToTrajectories`; only with a schema.
      images: as in `ConvertConfig`.
      source: the dataset that the items are made from (`ReadFromRlds(...).source`, `ConnectEpisodes(...).source`): the
        output gets its name, rate, and robot.
      name: the name of the output, if another; without a source, `trajectories`.
      overwrite: replaces what rlds-beam wrote there before.

    Raises:
      UsageError: on construction, if the output or an option cannot be used; while running, if an item or episode has a
        column that is not in the spec or schema.
    """

    def __init__(
        self,
        output: str,
        spec: TrajectorySpec | Schema,
        frames: FrameOptions | None = None,
        items: ItemOptions | None = None,
        *,
        images: Images = "raw",
        keep: Sequence[str] = (),
        source: Source | None = None,
        name: str | None = None,
        overwrite: bool = False,
    ):
        super().__init__()
        name = name or ("trajectories" if source is None else source.name)
        if not naming.is_file_name(name):
            raise UsageError(f"name={name!r}: expected a name without path separators; it becomes part of file names")
        self._spec, self._convert = choose_input(spec, frames, items, keep)
        self.with_input_types(Items if self._convert is None else Episode)
        self._output = TrajectoryOutput.of(output, name, self._spec, images, source)
        # The pipeline may change its episodes in unknown ways, so every run is a new plan.
        self._plan = OutputPlan.of({"to": "trajectories", "pipeline": uuid.uuid4().hex}, self._output.metadata, name)
        check_output(output, self._plan, overwrite=overwrite)
        self._open = functools.partial(
            open_parts, output, self._plan, overwrite=overwrite, rejected=read_rejected_list(output).id
        )

    def expand(self, items: beam.PCollection[Any]) -> WriteToTrajectoryRecordsResult:
        refuse_windows(self, items)
        rejected: tuple[beam.PCollection[Rejection], ...] = ()
        if self._convert is not None:
            converted = items | self._convert
            items, rejected = converted.items, (converted.rejected,)
        # Building the graph, which may never run, removes nothing.
        opened = items.pipeline | "Start" >> beam.Create([None]) | "Open" >> beam.Map(_open, self._open)
        parts = items | "Write" >> (
            beam.ParDo(_WritePartsFn(self._output, self._spec), AsList(opened))
            .with_output_types(BundleFile, rejected=Rejection)
            .with_outputs("rejected", main="parts")
        )
        commit = beam.Map(_commit_parts, self._output, self._plan.digest, AsList(opened))
        written = (
            parts.parts
            | "All" >> beam.CombineGlobally(beam.combiners.ToListCombineFn())
            | "Commit" >> commit.with_output_types(dict[str, Any])
        )
        return WriteToTrajectoryRecordsResult(written, (*rejected, parts.rejected) | "Rejected" >> beam.Flatten())


@beam.typehints.with_input_types(Rejection)
class WriteRejected(beam.PTransform[Rejection, dict[str, Any]]):
    """Writes rejected records to `output/rejected/`: their original bytes, and a JSON line for each.

    The result is a PCollection of one dict, the content of `rejected/rejected.json`.
    """

    def __init__(self, output: str):
        super().__init__()
        self._output = output

    def expand(self, rejected: beam.PCollection[Rejection]) -> beam.PCollection[dict[str, Any]]:
        refuse_windows(self, rejected)
        return (
            rejected
            | "Write" >> beam.ParDo(_WriteRejectedFn(self._output))
            | "All" >> beam.CombineGlobally(beam.combiners.ToListCombineFn())
            | "Commit" >> beam.Map(_commit_rejections, self._output).with_output_types(dict[str, Any])
        )


class _WritePartsFn(beam.DoFn):
    def __init__(self, output: TrajectoryOutput, spec: TrajectorySpec):
        self._output, self._spec = output, spec
        self._writer: BundleWriter | None = None

    def start_bundle(self) -> None:
        self.teardown()  # if the last bundle failed
        self._writer = BundleWriter(self._output)

    def process(self, items: Items, opened: object) -> Iterator[TaggedOutput]:
        del opened  # only a signal that the directory is ready
        assert self._writer is not None
        check_items(items, self._spec)
        try:
            self._writer.add(items)
        except BadEpisode as bad:
            yield TaggedOutput("rejected", Rejection.of(items, bad))

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


def _open(start: None, open_output: Callable[[], None]) -> None:
    open_output()


def _commit_parts(parts: Iterable[BundleFile], output: TrajectoryOutput, plan: str, opened: object) -> dict[str, Any]:
    del opened
    return commit_parts(output, list(parts), plan)


def _commit_rejections(parts: Iterable[BundleFile], output: str) -> dict[str, Any]:
    return commit_rejections(output, list(parts))
