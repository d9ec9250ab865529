"""Writes the episodes of your pipeline in any format."""

from __future__ import annotations

import dataclasses
import functools
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import AsList, AsSingleton, TaggedOutput

from rlds_beam.checking.rules import CheckOptions
from rlds_beam.checking.verdicts import Rejection
from rlds_beam.connectors.cleaning.presets import with_preset
from rlds_beam.connectors.configuration import Configuration
from rlds_beam.connectors.given_meaning import with_attributes, with_given_meaning
from rlds_beam.connectors.options import ConnectorOptions
from rlds_beam.connectors.runner import ConnectorRunner
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.schema import Schema
from rlds_beam.errors import UsageError
from rlds_beam.formats.options import OutputOptions
from rlds_beam.formats.outputs import configuration_for, create_output, list_files
from rlds_beam.formats.rlds.output import RldsOutput
from rlds_beam.formats.trajectories.bundles import open_parts, read_rejected_list, remove_parts
from rlds_beam.output.base import Output
from rlds_beam.output.commits import RangeCommit
from rlds_beam.output.completion import GlobalIndices, RangeFinisher, with_ranges
from rlds_beam.output.directory import check_output
from rlds_beam.output.plans import OUTPUT_FORMAT, OutputPlan, add_files
from rlds_beam.output.range_conversion import DatasetCommitter
from rlds_beam.output.stored_episodes import EpisodePart, StoredEpisode, StoredRange, StoredRangeWriter, cut_ranges
from rlds_beam.processing.dataset import check_source
from rlds_beam.processing.report import Report
from rlds_beam.reading.base import Source
from rlds_beam.transforms.elements import in_global_window, refuse_windows
from rlds_beam.transforms.jobs.ranges import CommitDataset
from rlds_beam.worker_status import working_on


@dataclasses.dataclass(frozen=True, kw_only=True)
class _WriteOptions(OutputOptions, ConnectorOptions, CheckOptions):
    """The options of `convert` that concern what is written."""


@dataclasses.dataclass(frozen=True)
class _Planner:
    """Cuts the stored episodes into ranges. Picklable.

    Attributes:
      source: the dataset of the episodes.
      output: the output, which does not know its ranges yet.
      to: the name of its format.
      shards: the most ranges of a split; None chooses by size.
      check: the policy of each rule.
      report: the report on the dataset as a whole.
      plan: the `OutputPlan.digest` of the pipeline.
    """

    source: Source
    output: Output
    to: str
    shards: int | None
    check: CheckOptions
    report: Report
    plan: str

    def plan_ranges(self, stored: Iterable[StoredEpisode]) -> Iterator[StoredRange | TaggedOutput]:
        """Yields the ranges, and a `DatasetCommitter` that knows them (`committer`). Adds their files to plan.json."""
        ranges = cut_ranges(stored, [split.name for split in self.source.splits], self.shards)
        works = tuple(stored.work for stored in ranges)
        output = with_ranges(self.output, works)
        add_files(output.directory, list_files(output, works, self.to))
        # Episodes may have been dropped, so they are not compared with the counts that the source states.
        source = with_attributes(self.source, splits=())
        committer = DatasetCommitter(source, self.check, output, works, self.report, self.plan)
        yield TaggedOutput("committer", committer)
        yield from ranges


class WriteEpisodesResult(NamedTuple):
    """The outputs of `WriteEpisodes`.

    Attributes:
      report: a PCollection of one `Report`, once the dataset is finished: the counts of episodes and items.
      rejected: a PCollection of `Rejection`: episodes that break a rule, or that the format cannot hold.
    """

    report: beam.PCollection[Report]
    rejected: beam.PCollection[Rejection]


@beam.typehints.with_input_types(Episode)
class WriteEpisodes(beam.PTransform[Episode, Any]):
    """Checks episodes and writes them in any format of `convert`.

        read = ReadFromRlds("data/point_mass/1.0.0")
        checked = root | read | ValidateEpisodes()
        written = checked.accepted | WriteEpisodes("for_lerobot", read.source, to="lerobot", fps=20)
        (checked.rejected, written.rejected) | beam.Flatten() | WriteRejected("for_lerobot")

    The episodes are written in the order of their keys, so any number of workers writes the same bytes, and unedited
    episodes become what `convert` writes. Workers store episodes in the output directory, which they must share, until
    all keys are known: for that time the disk needs room for the episodes twice more. The dataset exists only when all
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
      overwrite: replaces what rlds-beam wrote there before.
      options: other options of `convert` for what is written: those of the format (`fps=20`), `connectors`, `names`,
        `robot_type`, `task`.

    Raises:
      UsageError: on construction, if the format cannot hold the episodes, the output or an option cannot be used, or a
        connector needs the whole dataset. `rlds` cannot hold fields that only TFDS decodes: `convert` copies their
        bytes, which an edited episode does not have. While running, if two episodes have the same key, the split of a
        key is not one of the source, or an episode has a column that is not in the schema.
      FailedRuleError: while running, at the first violation of a rule whose policy is `fail`.
    """

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
        super().__init__()
        if shards is not None and shards < 1:
            raise UsageError(f"shards={shards}: must be at least 1")
        given = with_preset(_WriteOptions.create(to=to, **{**(vars(check) if check else {}), **options}))
        check = CheckOptions.of(given)
        described = with_given_meaning(with_attributes(source, schema=schema or source.schema), given)
        configuration = configuration_for(given, described.schema)
        connecting = ConnectorRunner.for_source(configuration, described)
        if connecting.unfitted:
            raise UsageError("a connector needs the whole dataset: use pipelines.convert, which reads it twice")
        self._output = create_output(with_attributes(described, schema=source.schema), connecting, output, given)
        if self._output.whole_shards:
            raise UsageError("across_episodes needs the order of a shard, but a PCollection is unordered")
        if isinstance(self._output, RldsOutput) and (field := self._output.schema.recorded.slow_reason):
            raise UsageError(
                f"to='rlds': {field}, whose bytes can only be copied from a record, but episodes of a pipeline may be "
                "edited: use convert, or remove it with connectors=[DropFields([...])]"
            )
        plan = _plan(to, described, check, configuration, self._output)
        check_output(output, plan, overwrite=overwrite)
        report = check_source(source, check)
        self._planner = _Planner(described, self._output, to, shards, check, report, plan.digest)
        self._writer = StoredRangeWriter(check, connecting, plan.digest)
        self._open = functools.partial(
            open_parts, output, plan, overwrite=overwrite, rejected=read_rejected_list(output).id
        )

    def expand(self, episodes: beam.PCollection[Episode]) -> WriteEpisodesResult:
        refuse_windows(self, episodes)
        directory = self._output.directory
        # Building the graph, which may never run, writes nothing.
        opened = episodes.pipeline | "Start" >> beam.Create([None]) | "Open" >> beam.Map(_open, self._open)
        planned = (
            episodes
            | "Store" >> beam.ParDo(_StoreFn(directory), AsList(opened))
            | "All" >> beam.CombineGlobally(beam.combiners.ToListCombineFn())
            | "Plan" >> beam.FlatMap(self._planner.plan_ranges).with_outputs("committer", main="ranges")
        )
        committer = AsSingleton(planned.committer)
        write = beam.ParDo(_WriteRangeFn(self._writer), committer).with_output_types(RangeCommit, rejected=Rejection)
        written = (
            planned.ranges | "Spread" >> beam.Reshuffle() | "Write" >> write.with_outputs("rejected", main="commits")
        )
        finisher = None
        if isinstance(self._output, GlobalIndices):
            finisher = AsSingleton(planned.committer | "Finisher" >> beam.Map(_find_finisher))
        report = written.commits | "Commit" >> CommitDataset(committer, finisher)
        end = beam.Map(_end, directory).with_output_types(Report)
        return WriteEpisodesResult(report | "RemoveParts" >> end, written.rejected)


def _plan(to: str, source: Source, check: CheckOptions, configuration: Configuration, output: Output) -> OutputPlan:
    """The plan of a pipeline. It may change its episodes in unknown ways, so every run is a new plan."""
    checked = dataclasses.asdict(check)
    del checked["fail"]  # it may end a job, but does not change what is written
    content = {
        "format": OUTPUT_FORMAT,
        "from": "pipeline",
        "to": to,
        "dataset": source.dataset,
        "splits": {split.name: {"slice": [split.start, split.stop], "shards": []} for split in source.splits},
        "check": checked,
        **output.plan(),
        "connectors": configuration.plan(),
        "pipeline": uuid.uuid4().hex,
    }
    return OutputPlan.of(content, output.all_files(()))


class _StoreFn(beam.DoFn):
    def __init__(self, directory: str):
        self._directory = directory
        self._part: EpisodePart | None = None

    def start_bundle(self) -> None:
        self.teardown()  # if the last bundle failed

    def process(self, episode: Episode, opened: object) -> None:
        del opened  # only a signal that the directory is ready
        if self._part is None:
            self._part = EpisodePart(self._directory)
        self._part.add(episode)

    def finish_bundle(self) -> Iterator[Any]:
        part, self._part = self._part, None
        if part is not None:
            yield from map(in_global_window, part.finish())

    def teardown(self) -> None:
        if self._part is not None:
            self._part.abort()
            self._part = None


class _WriteRangeFn(beam.DoFn):
    def __init__(self, writer: StoredRangeWriter):
        self._writer = writer

    def process(self, stored: StoredRange, committer: DatasetCommitter) -> Iterator[Any]:
        with working_on(stored.work):
            commit, rejections = self._writer.write(stored, committer.output)
        for rejection in rejections:
            yield TaggedOutput("rejected", rejection)
        yield commit


def _open(start: None, open_output: Callable[[], None]) -> None:
    open_output()


def _find_finisher(committer: DatasetCommitter) -> RangeFinisher | None:
    return committer.finisher


def _end(report: Report, directory: str) -> Report:
    remove_parts(directory)
    return report
