"""Writes the episodes of your pipeline in any format."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np

from rlds_beam.checking.rules import CheckOptions
from rlds_beam.checking.verdicts import Rejection, count_verdict
from rlds_beam.connectors.base import Batch, with_attributes
from rlds_beam.connectors.configuration import Configuration
from rlds_beam.connectors.dry_run import with_given_meaning
from rlds_beam.connectors.options import ConnectorOptions
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.schema import Schema, compare_with_schema
from rlds_beam.errors import UsageError
from rlds_beam.formats.options import OutputOptions
from rlds_beam.formats.outputs import check_files, configuration_for, create_output
from rlds_beam.formats.rlds.output import RldsOutput
from rlds_beam.output.base import Output, with_ranges
from rlds_beam.output.directory import check_output
from rlds_beam.output.plans import OUTPUT_FORMAT, OutputPlan
from rlds_beam.output.range_conversion import DatasetCommitter, finish_range
from rlds_beam.processing.ranges import check_and_connect
from rlds_beam.processing.report import Report, check_source
from rlds_beam.reading.base import Source, WorkRange
from rlds_beam.transforms.elements import EpisodeCoder
from rlds_beam.transforms.keyed_sink import PipelineSink, WriteKeyed, read_rejected_list
from rlds_beam.writing.keyed_parts import PackedElement, PlacedElement, read_stored


@dataclasses.dataclass(frozen=True, kw_only=True)
class _WriteOptions(OutputOptions, ConnectorOptions, CheckOptions):
    """The options of `convert` that concern what is written."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _EpisodeSink(PipelineSink):
    """Checks the episodes of each range, and writes them as a conversion does.

    Attributes:
      splits: as in `KeyedSink`.
      source: the dataset of the episodes, without its splits.
      output: the output, which does not know its ranges yet.
      to: the name of its format.
      check: the policy of each rule.
      connecting: the connectors that run over the accepted episodes.
      report: the report on the dataset as a whole.
    """

    splits: tuple[str, ...]
    source: Source
    output: Output
    to: str
    check: CheckOptions
    connecting: ConnectorRunner
    report: Report

    def packer(self) -> Callable[[Episode], PackedElement]:
        coder = EpisodeCoder()
        return lambda episode: PackedElement(episode.key.split, episode.key, coder.encode(episode), _weight(episode))

    def plan(self, ranges: Sequence[WorkRange]) -> DatasetCommitter:
        output = with_ranges(self.output, ranges)
        check_files(output, ranges, self.to)
        return DatasetCommitter(self.source, self.check, output, tuple(ranges), self.report, self.output_plan.digest)

    def write_range(self, work: WorkRange, placed: Sequence[PlacedElement], plan: DatasetCommitter) -> list[Rejection]:
        output, report, rejections = plan.output, Report(), list[Rejection]()
        schema, ignored = self.connecting.probed.given, self.connecting.ignored_values(output.ignored_values)
        writer = output.open_range(work)

        def write(batch: Batch) -> None:
            writer.write(batch.replace(read=None))  # the record as read may have other values

        try:
            for episode in map(EpisodeCoder().decode, read_stored(placed)):
                if not episode.faults:
                    schema.check(episode)
                    if faults := compare_with_schema(episode, schema):
                        episode = episode.replace(faults=tuple(faults))
                record = check_and_connect(episode, self.check, self.connecting, ignored, write, sound=episode.sound)
                report.add(record)
                count_verdict(record.verdict)
                if record.verdict.rejected is not None:
                    rejections.append(record.verdict.rejected)
                del episode, record
            finish_range(output, work, writer, report, None, self.output_plan.digest)
            return rejections
        finally:
            writer.abort()

    def commit(self, plan: DatasetCommitter) -> Report:
        return plan.commit()


def _weight(episode: Episode) -> int:
    """The size of its record, or of its arrays if it was not read from a file. Sizes of pickles differ by process."""
    columns = episode.steps.values()
    return len(episode.payload) or sum(column.nbytes for column in columns if isinstance(column, np.ndarray))


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
        given = _WriteOptions.create(to=to, **{**(vars(check) if check else {}), **options})
        check = CheckOptions.of(given)
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
        plan = _plan(to, described, check, configuration, writes)
        check_output(output, plan, overwrite=overwrite)
        self._sink = _EpisodeSink(
            directory=output,
            splits=tuple(split.name for split in described.splits),
            # Without shards, of which there may be many; their counts do not hold if episodes were dropped.
            source=with_attributes(described, splits=()),
            output=writes,
            to=to,
            shards=shards,
            check=check,
            connecting=connecting,
            report=check_source(source, check),
            output_plan=plan,
            overwrite=overwrite,
            listed=read_rejected_list(output).id,
        )

    def display_data(self) -> dict[str, Any]:
        return {"output": self._sink.directory, "to": self._sink.to}

    def expand(self, episodes: beam.PCollection[Episode]) -> WriteEpisodesResult:
        written = episodes | "Write" >> WriteKeyed(self._sink, "WriteEpisodes", Report)
        return WriteEpisodesResult(written.result, written.rejected)


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
    return OutputPlan.of(content)
