"""Writes episodes in any format, items as trajectory records, arrays as RLDS, and rejected records."""

from __future__ import annotations

import bisect
import dataclasses
import logging
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Unpack

import apache_beam as beam
import numpy as np
from apache_beam.pvalue import AsDict, AsSingleton
from apache_beam.transforms.util import WaitOn

from rlds_beam import storage
from rlds_beam.checking.rules import CheckOptions
from rlds_beam.checking.verdicts import Rejection
from rlds_beam.connectors.base import with_attributes
from rlds_beam.connectors.dry_run import with_given_meaning
from rlds_beam.connectors.options import ConnectorOptions
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.schema import Schema, compare_with_schema
from rlds_beam.errors import BadEpisode, UsageError
from rlds_beam.formats.options import OutputOptions
from rlds_beam.formats.outputs import configuration_for, create_output
from rlds_beam.formats.rlds.output import RldsOutput
from rlds_beam.formats.trajectories.output import TrajectoryOutput
from rlds_beam.output.commits import commit_dataset
from rlds_beam.output.files import REJECTED, is_rejected_file
from rlds_beam.output.plans import OutputPlan
from rlds_beam.output.range_conversion import NumberRanges, RangeConverter, finish_range
from rlds_beam.output.shards import RejectedWriter
from rlds_beam.processing.report import Report, check_source
from rlds_beam.reading.base import Source, WorkRange
from rlds_beam.trajectories.items import Items
from rlds_beam.trajectories.options import Images, ItemOptions
from rlds_beam.trajectories.spec import TrajectorySpec
from rlds_beam.transforms.converting import check_items, refuse_across_episodes
from rlds_beam.transforms.elements import EpisodeCoder, in_global_window, refuse_windows, report_sink
from rlds_beam.writing.keyed_parts import (
    BUCKETS,
    FROM,
    KeyedSink,
    Part,
    Place,
    StoredElement,
    check_directory,
    commit,
    name_ranges,
    place,
    read_stored,
)
from rlds_beam.writing.rlds import EpisodeSink, RldsSink, WriteOptions

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _WriteOptions(OutputOptions, ConnectorOptions, CheckOptions):
    """The options of `convert` that concern what is written."""


class WriteResult(NamedTuple):
    """The outputs of `WriteEpisodes` and `WriteToTrajectoryRecords`.

    Attributes:
      written: a PCollection of one element, once the dataset is finished: the `Report` of `WriteEpisodes`, with the
        counts of episodes and items, or the manifest of `WriteToTrajectoryRecords`, a dict.
      rejected: a PCollection of `Rejection`: episodes that break a rule, or that cannot be written.
    """

    written: beam.PCollection[Any]
    rejected: beam.PCollection[Rejection]


class _WriteKeyed(beam.PTransform[Any, Any]):
    """Writes a PCollection with a keyed sink. Without Beam: `write_all`.

    Attributes:
      written: the type of the sink's result.
    """

    written: Any

    def __init__(self, sink: KeyedSink):
        super().__init__()
        self._sink = sink

    def display_data(self) -> dict[str, Any]:
        return {"output": self._sink.directory}

    def expand(self, elements: beam.PCollection[Any]) -> Any:
        refuse_windows(type(self).__name__, elements)
        sink, root = self._sink, elements.pipeline
        # Building the graph, which may never run, writes nothing.
        opened = root | "Start" >> beam.Create([sink]) | "Open" >> beam.Map(_open)
        stored = (
            elements
            | "AfterOpen" >> WaitOn(opened)
            | "Store" >> beam.ParDo(_StoreFn(sink)).with_output_types(StoredElement)
        )
        # A sample of the keys cuts the elements into buckets of about equal numbers, which workers sort.
        bounds = (
            stored
            | "Keys" >> beam.Map(lambda stored: (stored.split, stored.key))
            | "Sample" >> beam.ApproximateQuantiles.Globally(BUCKETS + 1)
        )
        buckets = (
            stored
            | "Bucket" >> beam.Map(_find_bucket, AsSingleton(bounds)).with_output_types(tuple[Place, StoredElement])
            | "Buckets" >> beam.GroupByKey()
        )
        # Their weights say in which range each element is.
        weights = buckets | "Weigh" >> beam.MapTuple(lambda bucket, own: (bucket, sum(each.weight for each in own)))
        ranges = (
            buckets
            | "Place"
            >> beam.FlatMap(
                lambda bucket, weights: place(bucket[0], bucket[1], weights, sink), AsDict(weights)
            ).with_output_types(tuple[Place, StoredElement])
            | "Ranges" >> beam.GroupByKey()
        )
        planned = (
            ranges
            | "Numbers" >> beam.Keys()
            | "AllNumbers" >> beam.combiners.ToList()
            | "Name" >> beam.Map(name_ranges, sink)
        )
        rejected = ranges | "Write" >> beam.FlatMap(_write, AsSingleton(planned)).with_output_types(Rejection)
        finished = (
            planned
            | "AfterWrite" >> WaitOn(rejected)
            | "Indices" >> beam.FlatMap(_list_indices)
            | "Spread" >> beam.Reshuffle()
            | "Finish" >> beam.MapTuple(lambda finisher, work: finisher.process(work, {}))
        )
        result = planned | "AfterAll" >> WaitOn(finished) | "Commit" >> beam.Map(commit).with_output_types(self.written)
        return WriteResult(result, rejected)


def _open(sink: KeyedSink) -> None:
    report_sink(sink.directory)
    sink.open()


class _StoreFn(beam.DoFn):
    def __init__(self, sink: KeyedSink):
        self._sink = sink

    def start_bundle(self) -> None:
        self._part: Part | None = None

    def process(self, element: Any) -> None:
        if self._part is None:
            self._part = Part(self._sink)
        self._part.add(element)

    def finish_bundle(self) -> Iterator[Any]:
        if self._part is not None:
            yield from map(in_global_window, self._part.finish())


def _find_bucket(stored: StoredElement, bounds: Sequence[tuple[str, Any]]) -> tuple[Place, StoredElement]:
    return (stored.split, bisect.bisect_right(bounds, (stored.split, stored.key))), stored


def _write(group: tuple[Place, Iterable[StoredElement]], sink: KeyedSink) -> Iterator[Rejection]:
    work, in_order = sink.ranges[group[0]], sorted(group[1], key=lambda each: each.order)
    _log.info("Writing %s of %s: %d elements", work, sink.directory, len(in_order))
    yield from sink.write_range(work, in_order)
    _log.info("Wrote %s of %s", work, sink.directory)


def _list_indices(sink: KeyedSink) -> Iterator[tuple[NumberRanges, Any]]:
    """What each range of an output with global indices still needs (`GlobalIndices`)."""
    if isinstance(sink, EpisodeSink) and (finisher := sink.committer.finisher) is not None:
        for work in finisher.ranges({}):
            yield finisher, work


class _EpisodeSink(EpisodeSink):
    """Stores episodes as Beam does."""

    def pack(self, episode: Episode) -> tuple[str, Any, Any, int]:
        # The size of its record, or of its arrays if it was not read from a file. Sizes of pickles differ by process.
        columns = [column for column in episode.steps.values() if isinstance(column, np.ndarray)]
        weight = len(episode.payload) or sum(column.nbytes for column in columns)
        return episode.key.split, episode.key, EpisodeCoder().encode(episode), weight

    def write_range(self, work: WorkRange, elements: Sequence[StoredElement]) -> list[Rejection]:
        rejections = list[Rejection]()

        def reject(writer: RejectedWriter, rejection: Rejection) -> None:
            rejections.append(rejection)

        self.converter.convert(work, self._read(elements), edited=True, reject=reject)
        return rejections

    def _read(self, elements: Sequence[StoredElement]) -> Iterator[Episode]:
        schema = self.converter.connecting.probed.given
        for episode in map(EpisodeCoder().decode, read_stored(elements)):
            if not episode.faults:
                schema.check(episode)
                if faults := compare_with_schema(episode, schema):
                    episode = episode.replace(faults=tuple(faults))
            yield episode
            del episode


@beam.typehints.with_input_types(Episode)
class WriteEpisodes(_WriteKeyed):
    """Checks episodes and writes them in any format of `convert`.

        read = ReadFromRlds("data/point_mass/1.0.0")
        checked = root | read | ValidateEpisodes()
        written = checked.accepted | WriteEpisodes("for_lerobot", read.source, to="lerobot", fps=20)
        (checked.rejected, written.rejected) | beam.Flatten() | WriteRejected("for_lerobot")

    The episodes are written in the order of their keys, so any number of workers writes the same bytes, and unedited
    episodes become what `convert` writes. Workers store episodes in the output directory, which they must share, until
    all keys are known: for that time the disk needs room for the episodes once more. The dataset exists only when all
    of it is written and counted; a pipeline that was killed starts over.

    Args:
      output: a new or empty directory.
      source: the dataset of the episodes (`ReadFromRlds(...).source`, `ConnectEpisodes(...).source`). The output gets
        its name, rate, and robot.
      schema: the schema of the episodes, if another than the source's (`ConnectEpisodes(...).schema`, or
        `read.schema.with_columns(...)` for added columns).
      to: the format, as in `convert`: `lerobot`, `columns`, `zarr`, `rlds`, ..., or `module:Class`.
      check: the policy of each rule; that of `ValidateEpisodes`, if it accepts episodes that break one.
      shards: output files per split, at most; by size if not given.
      overwrite: replaces what rlds-beam wrote there before; `rejected/` only if `WriteRejected` does.
      options: other options of `convert` for what is written: those of the format (`fps=20`), `connectors`, `names`,
        `robot_type`, `task`.

    Raises:
      UsageError: on construction, if the format cannot hold the episodes, the output or an option cannot be used, or a
        connector needs the whole dataset. `rlds` cannot hold fields that only TFDS decodes: `convert` copies their
        bytes, which an edited episode does not have. While running, if two episodes have the same key, or an episode
        has a column that is not in the schema.
      FailedRuleError: while running, at the first violation of a rule whose policy is `fail`.
    """

    written = Report

    def __init__(
        self,
        output: str,
        source: Source,
        schema: Schema | None = None,
        *,
        to: str,
        check: CheckOptions | None = None,
        shards: int | None = None,
        overwrite: bool = False,
        **options: Any,
    ):
        given = _WriteOptions.create(to=to, **{**(vars(check) if check else {}), **options})
        check = CheckOptions.from_options(given)
        described = with_given_meaning(with_attributes(source, schema=schema or source.schema), given)
        configuration = configuration_for(given, described.schema)
        connecting = ConnectorRunner.for_source(configuration, described)
        if connecting.unfitted:
            raise UsageError("a connector needs the whole dataset: use pipelines.convert, which reads it twice")
        writes = create_output(with_attributes(described, schema=source.schema), connecting, output, given)
        if writes.whole_shards:
            raise UsageError("across_episodes needs the order of a shard, but a PCollection is unordered")
        if isinstance(writes, RldsOutput) and (field := writes.schema.recorded.slow_reason):
            raise UsageError(
                f"to='rlds': {field}, whose bytes can only be copied from a record, but episodes of a pipeline may be "
                "edited: use convert, or remove it with connectors=[DropFields([...])]"
            )
        check_directory(output, overwrite=overwrite)
        # The pipeline may change its episodes in unknown ways, so every run is a new plan.
        more = {"connectors": configuration.plan(), "pipeline": uuid.uuid4().hex}
        converter, report = RangeConverter(check, connecting, writes), check_source(source, check)
        super().__init__(
            _EpisodeSink.from_source(described, to, converter, report, more, overwrite=overwrite, shards=shards)
        )


@beam.typehints.with_input_types(Items)
class WriteToTrajectoryRecords(_WriteKeyed):
    """Writes items as trajectory TFRecords for TF-Agents and TFDS.

        convert = ConvertToTrajectories(read.schema, frames, items)
        converted = checked.accepted | convert
        converted.items | WriteToTrajectoryRecords("pairs", convert.spec, source=read.source)

    The items are written as `WriteEpisodes` writes episodes: in the order of their keys, when all are known.
    `rlds_beam.pipelines.convert` cuts the input itself, and resumes. Use this transform if your pipeline edits episodes
    in a way that a connector cannot.

    Args:
      output: a new or empty directory.
      spec: the spec of the items (`ConvertToTrajectories(...).spec`, with `spec.with_columns(...)` for added leaves).
      images: as in `ConvertConfig`.
      source: the dataset that the items are made from (`ReadFromRlds(...).source`, `ConnectEpisodes(...).source`): the
        output gets its name, rate, and robot.
      num_shards: files per split, at most; by size if not given.
      overwrite: as in `WriteEpisodes`.

    Raises:
      UsageError: on construction, if the output or an option cannot be used; while running, if an item has a column
        that is not in the spec.
    """

    written = dict[str, Any]

    def __init__(
        self,
        output: str,
        spec: TrajectorySpec,
        *,
        images: Images = "raw",
        source: Source | None = None,
        num_shards: int | None = None,
        overwrite: bool = False,
    ):
        name = "trajectories" if source is None else source.name
        refuse_across_episodes(spec.items or ItemOptions())
        check_directory(output, overwrite=overwrite)
        sink = _ItemSink(
            directory=output,
            # The pipeline may change its items in unknown ways, so every run is a new plan.
            output_plan=OutputPlan.from_content({"from": FROM, "to": "trajectories", "pipeline": uuid.uuid4().hex}),
            overwrite=overwrite,
            shards=num_shards,
            output=TrajectoryOutput.from_options(output, name, spec, images, source),
        )
        super().__init__(sink)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _ItemSink(KeyedSink):
    """Writes items as trajectory records."""

    output: TrajectoryOutput

    unique = False  # a step may have made several elements of an episode

    def pack(self, items: Items) -> tuple[str, Any, Any, int]:
        check_items(items, self.output.conversion.spec)
        return items.key.split, items.key, items, len(items.payload)

    def write_range(self, work: WorkRange, elements: Sequence[StoredElement]) -> list[Rejection]:
        rejections, writer = list[Rejection](), self.output.open_range(work)
        try:
            for items in read_stored(elements):
                try:
                    writer.write_items(items)
                except BadEpisode as bad:
                    rejections.append(Rejection.from_bad_episode(items, bad))
                del items
            finish_range(self.output, work, writer, Report(), None, self.output_plan.digest)
            return rejections
        finally:
            writer.abort()

    def commit(self) -> dict[str, Any]:
        output, ranges = self.output, tuple(self.ranges.values())
        return commit_dataset(self.directory, output.name, ranges, output.complete, self.output_plan.digest)


@beam.typehints.with_input_types(Rejection)
class WriteRejected(_WriteKeyed):
    """Writes rejected records to `output/rejected/`: their original bytes, and a JSON line for each.

    The records are in the order of their keys. Replaces those that are there. The result is a PCollection of one list,
    the names of the files.
    """

    written = list[str]

    def __init__(self, output: str):
        super().__init__(_RejectedSink(directory=storage.join(output, REJECTED)))

    def expand(self, rejected: beam.PCollection[Rejection]) -> Any:
        return super().expand(rejected).written


class _RejectedSink(KeyedSink):
    """Writes rejected records to the directory `rejected` of an output."""

    unique = False  # a step may reject a record that another one made several of

    def open(self) -> None:
        storage.makedirs(self.directory)
        storage.remove_files(self.directory, [*filter(is_rejected_file, storage.listdir(self.directory))])

    def pack(self, rejection: Rejection) -> tuple[str, Any, Any, int]:
        return rejection.key.split, rejection.key, rejection, len(rejection.payload)

    def write_range(self, work: WorkRange, elements: Sequence[StoredElement]) -> list[Rejection]:
        with RejectedWriter(storage.below(self.directory, str(work))) as writer:
            for rejection in read_stored(elements):
                writer.add(rejection)
            writer.commit()
        return []

    def commit(self) -> list[str]:
        return [f"{work}.tfrecord" for work in self.ranges.values()]


class WriteToRlds(_WriteKeyed):
    """Checks episodes of arrays and writes them as an RLDS dataset: a PCollection of one `Report`.

        keyed = root | beam.Create(paths) | beam.Map(lambda path: (path, load(path)))
        keyed | WriteToRlds("data/my_robot/1.0.0", like=load(paths[0]))

    The input is a PCollection of (key, episode), or a dict of them, by split. Keys are texts or integers; episodes are
    dicts as `rlds_beam.write_rlds` takes them. They are written as `WriteEpisodes` writes episodes: in the order of
    their keys, when all are known. The bytes are those of `write_rlds(..., strict=False)`: a bad episode is kept in
    `directory/rejected`, with its key, unless `check` names its rule as one that fails.

    Args:
      directory: the dataset's directory, best `NAME/1.0.0`: its name and version.
      like: an episode whose fields, dtypes, and shapes all others have.
      split: the name of the split, if the input is not a dict.
      options: those of `write_rlds`.

    Raises:
      UsageError: on construction, if the directory or an argument cannot be used; while running, if keys are equal.
      FailedRuleError: on construction, if `like` is no episode.
    """

    written = Report

    def __init__(
        self,
        directory: str | os.PathLike[str],
        like: Any,
        *,
        split: str = "train",
        **options: Unpack[WriteOptions],
    ):
        super().__init__(RldsSink.create(os.fspath(directory), like, "like", strict=False, **options))
        self._split = split
        check_directory(self._sink.directory, overwrite=self._sink.overwrite)

    def expand(self, episodes: Any) -> Any:
        by_split = episodes if isinstance(episodes, dict) else {self._split: episodes}
        named = [own | f"Split {split}" >> beam.Map(_with_split, split) for split, own in by_split.items()]
        return super().expand(named | beam.Flatten()).written


def _with_split(element: tuple[Any, Any], split: str) -> tuple[str, Any, Any]:
    if not isinstance(element, tuple) or len(element) != 2:
        raise UsageError(f"WriteToRlds: an element is a {type(element).__name__}: expected (key, episode)")
    return split, *element
