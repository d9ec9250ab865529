"""Writes items as trajectory records in your pipeline, episodes as RLDS, and rejected records."""

from __future__ import annotations

import dataclasses
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
import msgspec

from rlds_beam import naming, storage
from rlds_beam.checking.verdicts import Rejection
from rlds_beam.encoding.metadata import encode
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.schema import Schema
from rlds_beam.errors import BadEpisode, UsageError
from rlds_beam.formats.trajectories.output import TrajectoryOutput
from rlds_beam.output.commits import commit_dataset
from rlds_beam.output.directory import check_output
from rlds_beam.output.files import REJECTED, REJECTED_LIST, is_rejected_file
from rlds_beam.output.plans import OutputPlan, check_files
from rlds_beam.output.range_conversion import finish_range
from rlds_beam.output.shards import RejectedWriter
from rlds_beam.processing.report import Report
from rlds_beam.reading.base import Source, WorkRange
from rlds_beam.trajectories.items import Items
from rlds_beam.trajectories.options import FrameOptions, Images, ItemOptions
from rlds_beam.trajectories.spec import TrajectorySpec
from rlds_beam.transforms.converting import check_items, choose_input
from rlds_beam.transforms.keyed_sink import PipelineSink, RejectedList, WriteKeyed, read_rejected_list
from rlds_beam.writing.arrays import ImageEncoding
from rlds_beam.writing.keyed_parts import KeyedSink, PackedElement, PlacedElement, read_stored
from rlds_beam.writing.rlds import RldsSink, check_directory


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

    The items are written in the order of their episodes' keys, so any number of workers writes the same bytes. Workers
    store them in the output directory, which they must share, until all keys are known: for that time the disk needs
    room for them twice. A pipeline that was killed starts over; `rlds_beam.pipelines.convert` cuts the input itself,
    and resumes. Both end with commits that hold checksums and predicted counts, and then the manifest. Use this
    transform if your pipeline edits episodes in a way that a connector cannot.

    Args:
      output: a new or empty directory.
      spec: the spec of the items (`ConvertToTrajectories(...).spec`, with `spec.with_columns(...)` for added leaves),
        or the schema of the episodes.
      frames, items, keep: how episodes are converted, as in `ConvertToTrajectories`; only with a schema.
      images: as in `ConvertConfig`.
      source: the dataset that the items are made from (`ReadFromRlds(...).source`, `ConnectEpisodes(...).source`): the
        output gets its name, rate, and robot.
      name: the name of the output, if another; without a source, `trajectories`.
      num_shards: files per split, at most; by size if not given.
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
        num_shards: int | None = None,
        overwrite: bool = False,
    ):
        super().__init__()
        if num_shards is not None and num_shards < 1:
            raise UsageError(f"num_shards={num_shards}: must be at least 1")
        name = name or ("trajectories" if source is None else source.name)
        if not naming.is_file_name(name):
            raise UsageError(f"name={name!r}: expected a name without path separators; it becomes part of file names")
        self._spec, self._convert = choose_input(spec, frames, items, keep)
        self.with_input_types(Items if self._convert is None else Episode)
        writes = TrajectoryOutput.of(output, name, self._spec, images, source)
        # The pipeline may change its episodes in unknown ways, so every run is a new plan.
        plan = OutputPlan.of({"to": "trajectories", "pipeline": uuid.uuid4().hex})
        check_output(output, plan, overwrite=overwrite)
        self._sink = _ItemSink(
            directory=output,
            shards=num_shards,
            output=writes,
            spec=self._spec,
            output_plan=plan,
            overwrite=overwrite,
            listed=read_rejected_list(output).id,
        )

    def display_data(self) -> dict[str, Any]:
        return {"output": self._sink.directory}

    def expand(self, items: beam.PCollection[Any]) -> WriteToTrajectoryRecordsResult:
        rejected: tuple[beam.PCollection[Rejection], ...] = ()
        if self._convert is not None:
            converted = items | self._convert
            items, rejected = converted.items, (converted.rejected,)
        written = items | "Write" >> WriteKeyed(self._sink, "WriteToTrajectoryRecords", dict[str, Any])
        rejections = (*rejected, written.rejected) | "Rejected" >> beam.Flatten()
        return WriteToTrajectoryRecordsResult(written.result, rejections)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _ItemSink(PipelineSink):
    """Writes items as trajectory records.

    Attributes:
      output: the output.
      spec: the spec of the items.
    """

    output: TrajectoryOutput
    spec: TrajectorySpec

    splits = ()
    unique = False  # a step may have made several elements of an episode

    def packer(self) -> Callable[[Items], PackedElement]:
        return self._pack

    def _pack(self, items: Items) -> PackedElement:
        check_items(items, self.spec)
        split = naming.check_name(items.key.split, "the split of an episode")
        return PackedElement(split, items.key, items, len(items.payload) or 1)

    def plan(self, ranges: Sequence[WorkRange]) -> Sequence[WorkRange]:
        check_files(name for work in ranges for name in self.output.files(work))
        return tuple(ranges)

    def write_range(self, work: WorkRange, placed: Sequence[PlacedElement], plan: object) -> list[Rejection]:
        del plan
        rejections, writer = list[Rejection](), self.output.open_range(work)
        try:
            for items in read_stored(placed):
                try:
                    writer.write_items(items)
                except BadEpisode as bad:
                    rejections.append(Rejection.of(items, bad))
                del items
            finish_range(self.output, work, writer, Report(), None, self.output_plan.digest)
            return rejections
        finally:
            writer.abort()

    def commit(self, plan: Sequence[WorkRange]) -> dict[str, Any]:
        return commit_dataset(self.directory, self.output.name, plan, self.output.complete, self.output_plan.digest)


@beam.typehints.with_input_types(Rejection)
class WriteRejected(beam.PTransform[Rejection, dict[str, Any]]):
    """Writes rejected records to `output/rejected/`: their original bytes, and a JSON line for each.

    The records are in the order of their keys. Replaces those that are there. The result is a PCollection of one dict,
    the content of `rejected/rejected.json`.
    """

    def __init__(self, output: str):
        super().__init__()
        self._sink = _RejectedSink(storage.join(output, REJECTED), uuid.uuid4().hex)

    def expand(self, rejected: beam.PCollection[Rejection]) -> beam.PCollection[dict[str, Any]]:
        return (rejected | "Write" >> WriteKeyed(self._sink, "WriteRejected", dict[str, Any])).result


@dataclasses.dataclass(frozen=True)
class _RejectedSink(KeyedSink):
    """Writes rejected records.

    Attributes:
      directory: the directory `rejected` of an output.
      id: names the pipeline in `rejected.json`.
    """

    directory: str
    id: str
    unique = False  # a step may reject a record that another one made several of

    def open(self) -> None:
        if read_rejected_list(storage.split(self.directory)[0]).id != self.id:
            storage.makedirs(self.directory)
            storage.remove_files(self.directory, filter(is_rejected_file, storage.listdir(self.directory)))
            self._write_list(RejectedList(self.id))

    def packer(self) -> Callable[[Rejection], PackedElement]:
        return self._pack

    def _pack(self, rejection: Rejection) -> PackedElement:
        split = naming.check_name(rejection.key.split, "the split of an episode")
        return PackedElement(split, rejection.key, rejection, len(rejection.payload))

    def plan(self, ranges: Sequence[WorkRange]) -> Sequence[WorkRange]:
        return tuple(ranges)

    def write_range(self, work: WorkRange, placed: Sequence[PlacedElement], plan: object) -> list[Rejection]:
        with RejectedWriter(storage.below(self.directory, str(work))) as writer:
            for rejection in read_stored(placed):
                writer.add(rejection)
            writer.commit()
        return []

    def commit(self, plan: Sequence[WorkRange]) -> dict[str, Any]:
        records = 0
        for work in plan:
            with storage.open_read(storage.below(self.directory, f"{work}.jsonl")) as lines:
                records += sum(1 for _ in lines)
        content = RejectedList(self.id, records, tuple(f"{work}.tfrecord" for work in plan))
        self._write_list(content)
        listed: dict[str, Any] = msgspec.to_builtins(content)
        return listed

    def _write_list(self, content: RejectedList) -> None:
        storage.write_text(storage.below(self.directory, REJECTED_LIST), encode(content))


class WriteToRlds(beam.PTransform):
    """Checks episodes of arrays and writes them as an RLDS dataset: a PCollection of one `Report`.

        keyed = root | beam.Create(paths) | beam.Map(lambda path: (path, load(path)))
        keyed | WriteToRlds("data/my_robot/1.0.0", like=load(paths[0]))

    The input is a PCollection of (key, episode), or a dict of them, by split. Keys are texts or integers; episodes are
    dicts as `rlds_beam.write_rlds` takes them. The shards hold the episodes in the order of their keys, so any number
    of workers writes the same bytes, which are those of `write_rlds`; but it does not search for episodes with equal
    bytes (`rlds-beam check` finds them). Workers write parts in the directory, which they must share, and then copy the
    records into shards: the disk needs room for the dataset twice. The dataset exists only when all of it is written; a
    pipeline that was killed starts over.

    Args:
      directory: the dataset's directory, best `NAME/1.0.0`: its name and version.
      like: an episode whose fields, dtypes, and shapes all others have.
      split: the name of the split, if the input is not a dict.
      strict: end the pipeline at a bad episode. Otherwise it is kept in `directory/rejected`, with its key.
      images, schema, overwrite: as in `write_rlds`.
      options: `description`, `fps`, `robot_type`, `names`, `check`, `format`, `shard_bytes`: as in
        `write_rlds`.

    Raises:
      UsageError: on construction, if the directory or an argument cannot be used; while running, if keys are equal.
      FailedRuleError: on construction, if `like` is no episode; while running, with `strict`.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        like: Any,
        *,
        split: str = "train",
        strict: bool = False,
        images: ImageEncoding | Mapping[str, ImageEncoding] = "png",
        schema: Schema | None = None,
        overwrite: bool = False,
        **options: Any,
    ):
        super().__init__()
        path = os.fspath(directory)
        sink = RldsSink.create(path, images=images, schema=schema, strict=strict, **options)
        check_directory(path, overwrite=overwrite)
        self._sink, self._split = sink.like(like, split, "like"), split

    def display_data(self) -> dict[str, Any]:
        return {"output": self._sink.directory, "dataset": self._sink.dataset}

    def expand(self, episodes: Any) -> Any:
        by_split = (
            {str(name): own for name, own in episodes.items()}
            if isinstance(episodes, dict)
            else {self._split: episodes}
        )
        if not by_split:
            raise UsageError("WriteToRlds needs a PCollection of episodes for at least one split")
        sink = dataclasses.replace(self._sink, splits=tuple(by_split))
        named = [own | f"Split {split}" >> beam.Map(_with_split, split) for split, own in by_split.items()]
        written = named | beam.Flatten() | "Write" >> WriteKeyed(sink, "WriteToRlds", Report)
        return written.result


def _with_split(element: tuple[Any, Any], split: str) -> tuple[str, Any, Any]:
    if not isinstance(element, tuple) or len(element) != 2:
        raise UsageError(f"WriteToRlds: an element is a {type(element).__name__}: expected (key, episode)")
    return split, *element
