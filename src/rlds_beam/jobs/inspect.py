"""Surveys a dataset: its schema, shards, and episodes, what a conversion would write, and the next command."""

from __future__ import annotations

import dataclasses
import functools
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from rlds_beam import storage
from rlds_beam.checking.duplicates import find_duplicates, mark_duplicate
from rlds_beam.checking.rules import CheckOptions
from rlds_beam.checking.verdicts import IgnoredValues
from rlds_beam.connectors.base import Batch
from rlds_beam.connectors.cleaning.presets import PRESETS, suggest_presets
from rlds_beam.connectors.runner import ConnectorRunner
from rlds_beam.episodes.schema import schema_tree
from rlds_beam.errors import UsageError
from rlds_beam.formats.merged.comparison import compare
from rlds_beam.formats.merged.source import MergedSource
from rlds_beam.formats.outputs import configuration_for, create_output
from rlds_beam.formats.registry import LEROBOT, MERGED, RLDS, TRAJECTORIES
from rlds_beam.jobs.card import card_lines
from rlds_beam.jobs.overview import Overview, OverviewBuilder
from rlds_beam.jobs.plan_text import record_lines
from rlds_beam.options import options_given
from rlds_beam.output.base import Output
from rlds_beam.output.completion import with_ranges
from rlds_beam.processing.ranges import Duplicates, check_and_connect
from rlds_beam.processing.report import Report
from rlds_beam.reading.base import Shard, Source
from rlds_beam.reading.framing import Framing
from rlds_beam.reading.meaning import LastSteps, find_last_steps, is_action
from rlds_beam.reading.plan import WorkRange, plan_ranges
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.terminal.tables import table_lines
from rlds_beam.text import format_size, join_lines

_REMOTE_SHARE = 1000
"""A survey of a large dataset in a remote store reads one byte in so many, besides metadata and windows of reads."""
_REMOTE_BYTES = 4 << 20
"""The fewest bytes that it may read."""
_REMOTE_RANGES = 16
"""The most ranges that it reads."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Survey:
    """A description of a dataset, and a prediction of its conversion.

    Attributes:
      source: the dataset.
      output: the output that a conversion would write; None if the dataset cannot be converted.
      error: why it cannot be converted.
      sampled: the report on the records read.
      complete: whether all records were read. Only then are duplicates found.
      ranges: the number of ranges that the dataset is cut into.
      items: the predicted number of items: exact if `complete`, else an estimate.
      steps: the number of steps of the accepted episodes: exact if `complete`, else an estimate.
      plan: the plan as flags, `--items=sequences --sequence_length=8`.
      repair: the rules that the plan repairs.
      last_steps: what last steps are; None if there are no actions, or if a remote dataset does not say it.
      format: the format of the dataset, with what tells it: `minari (data/metadata.json)`; empty if unknown.
      overview: the card of the dataset.
      next: the next command for this dataset; empty if unknown.
    """

    source: Source
    output: Output | None
    error: str | None
    sampled: Report
    complete: bool
    ranges: int
    items: int
    steps: int
    overview: Overview
    plan: str = ""
    repair: tuple[str, ...] = ()
    last_steps: LastSteps | None = None
    format: str = ""
    next: str = ""

    def __str__(self) -> str:
        return _text(self)

    def __repr__(self) -> str:
        about = "" if self.complete else "about "
        return f"<Survey of {self.source.dataset}: {about}{self.items:,} items of {about}{self.steps:,} steps>"

    def to_json(self) -> dict[str, Any]:
        """The survey as JSON."""
        source = self.source
        return {
            "dataset": source.dataset,
            "format": self.format,
            "name": source.name,
            "robot": source.robot,
            "last_action": source.last_action,
            "card": self.overview.to_json(),
            "next": self.next,
            "file_format": source.files.name,
            "schema": {path: field.to_json() for path, field in sorted(source.schema.steps.items())},
            "metadata": {path: field.to_json() for path, field in sorted(source.schema.metadata.items())},
            "splits": {
                split.name: {
                    "episodes": split.episodes,
                    "bytes": split.size,
                    "shards": [{"path": s.path, "bytes": s.size, "episodes": s.records} for s in split.shards],
                }
                for split in source.splits
            },
            "last_steps": None if self.last_steps is None else dataclasses.asdict(self.last_steps),
            "ranges": self.ranges,
            "problems": [str(violation) for violation in source.violations],
            "notes": list(source.notes),
            "sampled": self.sampled.to_json(),
            "complete": self.complete,
            "steps": self.steps,
            "items": self.items,
            "error": self.error,
            **({"presets": presets} if (presets := suggest_presets(source.dataset, source.schema)) else {}),
        }


def survey(source: Source, check: CheckOptions, options: Any, sample_bytes: int) -> Survey:
    """Reads about `sample_bytes` of the records and predicts the conversion.

    The sample is spread over the ranges of the dataset, so that an estimate does not depend on the first shard alone.
    If all records are read, duplicates are found as well, and the prediction is exact.

    Args:
      source: the dataset.
      check: the policy of each rule.
      options: the job's config, with the options of the output.
      sample_bytes: the most bytes to read.
    """
    connecting, output, error = _output(source, options)
    whole_shards = output is not None and output.whole_shards
    small, framing = source.size <= sample_bytes, Framing(source)
    # For a large dataset even the framing is not read completely: an estimate may start anywhere.
    starts = framing.record_starts if small else _as_they_are
    ranges = plan_ranges(source, whole_shards=whole_shards, starts=starts)
    output = None if output is None else with_ranges(output, ranges)
    sampled = ranges
    if not small and any(storage.scheme(shard.path) for split in source.splits for shard in split.shards):
        sampled = ranges[:: -(-len(ranges) // _REMOTE_RANGES)]
        sample_bytes = min(sample_bytes, max(_REMOTE_BYTES, source.size // _REMOTE_SHARE))
    segments = [(work.split, segment) for work in ranges for segment in work.segments]
    look = small and check.policy("duplicate_episode") != "accept"
    duplicates = find_duplicates(source, framing, segments) if look else {}
    ignored = connecting.ignored_values(None if output is None else output.ignored_values)
    connecting = connecting.as_probed()
    most = sample_bytes if small else max(1, sample_bytes // max(1, len(sampled)))
    about = OverviewBuilder(source.schema, source.fps)
    sample, predicted = _Sample(EpisodeReader(source), check, connecting, ignored, duplicates, most, about, output), 0
    for work in sampled:
        batches = sample.read(work)
        predicted += 0 if output is None else output.predict(batches)
        for _ in batches:  # those that the output did not read
            pass
    report = dataclasses.replace(sample.report, notes=connecting.notes)
    complete = sample.complete and len(sampled) == len(ranges)
    scale = _scale(source, report) if not complete else 1.0
    return Survey(
        source=source,
        output=output,
        error=error,
        sampled=report,
        complete=complete,
        ranges=len(ranges),
        items=round(predicted * scale),
        steps=round(report.steps * scale),
        overview=dataclasses.replace(
            about.finish(source, report, complete=complete, scale=scale),
            gives_task=options.task is not None or options.task_file is not None,
        ),
        last_steps=_last_steps(source),
    )


def _text(survey: Survey) -> str:
    """The text of `inspect`: the card, the schema, and the items that a conversion would write."""
    source = survey.source
    lines = [*compare(source.inputs), ""] if isinstance(source, MergedSource) else []
    lines += [*card_lines(source, survey.overview, survey.format, survey.last_steps, survey.next), ""]
    lines += schema_tree(source.schema).splitlines()
    if source.schema.slow_reason:
        lines.append(f"({source.schema.slow_reason}, so TFDS decodes the dataset)")
    lines += ["", *_split_lines(source), *(f"problem: {violation}" for violation in source.violations)]
    lines += [f"note: {note}" for note in source.notes]
    lines += [
        f"ranges    {survey.ranges:,}",
        "",
        "all episodes were read" if survey.complete else "a sample was read; duplicates were not checked",
        *survey.sampled.summary(survey.repair).split("\n"),
        "",
        *conversion_lines(survey),
    ]
    return join_lines(lines)


def conversion_lines(survey: Survey) -> list[str]:
    """The items that a conversion would write, or why it cannot."""
    estimated = "" if survey.complete else "about "
    lines = [f"{survey.plan} gives {estimated}{survey.items:,} items of {estimated}{survey.steps:,} steps"]
    if survey.output is not None:
        lines += record_lines(*survey.output.describe())
    else:
        lines += f"cannot be converted: {survey.error}".split("\n")
    names = suggest_presets(survey.source.dataset, survey.source.schema)
    return lines + [f"--preset={name} fixes it: {PRESETS[name].fault}" for name in names]


def _split_lines(source: Source) -> list[str]:
    """A table of the splits."""
    rows = [
        (
            split.name,
            f"{len(split.shards):,}",
            "unknown" if split.episodes is None else f"{split.episodes:,}",
            format_size(split.size),
        )
        for split in source.splits
    ]
    return table_lines(("split", "shards", "episodes", "size"), rows)


def _last_steps(source: Source) -> LastSteps | None:
    """The kind of last steps; None if it would take a look at more of a remote dataset, or if there are no actions."""
    remote = any(storage.scheme(shard.path) for split in source.splits for shard in split.shards)
    if not any(map(is_action, source.schema.steps)) or (remote and source.last_action == "unknown"):
        return None
    return find_last_steps(source)


@dataclasses.dataclass
class _Sample:
    """Reads and checks the first `most` bytes of each range."""

    reader: EpisodeReader
    check: CheckOptions
    connecting: ConnectorRunner
    ignored: IgnoredValues
    duplicates: Duplicates
    most: int
    about: OverviewBuilder
    output: Output | None
    report: Report = dataclasses.field(default_factory=Report)
    complete: bool = True

    def read(self, work: WorkRange) -> Iterator[Batch]:
        """The accepted episodes of a range after connectors, from at least one record."""
        size, began = 0, False
        for episode in (e for segment in work.segments for e in self.reader.read(work.split, segment)):
            size += len(episode.payload)
            if size > self.most and began:
                self.complete = False
                return
            batches: list[Batch] = []
            episode = mark_duplicate(episode, self.duplicates)
            self.about.add(episode)
            keep = functools.partial(self._keep, batches)
            self.report.add(check_and_connect(episode, self.check, self.connecting, self.ignored, keep))
            began = began or bool(batches)
            yield from batches

    def _keep(self, batches: list[Batch], batch: Batch) -> None:
        if self.output is not None:
            self.output.check_batch(batch)
        batches.append(batch)


def _as_they_are(shard: Shard, positions: Sequence[int]) -> Sequence[int]:
    """Replaces `Framing.record_starts`."""
    return positions


def _output(source: Source, options: Any) -> tuple[ConnectorRunner, Output | None, str | None]:
    """The connectors, the output, and why there is none; raises UsageError for connectors that cannot be used."""
    try:
        connecting = ConnectorRunner.for_source(configuration_for(options, source.schema), source)
    except UsageError as error:
        if options.connectors is not None:
            raise
        return ConnectorRunner.for_reading(source), None, str(error)
    try:
        return connecting, create_output(source, connecting, "", options), None
    except UsageError as error:
        return ConnectorRunner.for_reading(source), None, str(error)


def _scale(source: Source, sampled: Report) -> float:
    """Ratio of dataset to sample: by episodes if their number is known, else by bytes."""
    if source.episodes is not None:
        return source.episodes / max(1, sampled.records)
    return source.size / max(1, sampled.bytes)


_OF_INPUT = ("split", "features", "task", "task_file", "robot_type", "exclude", "only")
_ROBOTS = ("hdf5", "ros2", "zarr")
"""Formats of recorded robots, whose users train with LeRobot."""


def output_for(source_format: str, source: Source) -> str:
    """The output that a dataset is most often converted to."""
    if source_format == LEROBOT:
        return RLDS
    cameras = any(field.holds_images for field in source.schema.steps.values())
    return LEROBOT if source_format in _ROBOTS or (source_format in (RLDS, MERGED, "npz") and cameras) else TRAJECTORIES


def next_command(config: Any, survey: Survey) -> str:
    """The command that converts a dataset, with the options that it was read with."""
    source, to = survey.source, config.to
    inputs = [config.input] if isinstance(config.input, str) else list(config.input)
    words = ["rlds-beam", "convert", *inputs, f"{source.name}_{to}"]
    words += [] if config.from_ is None else [f"--from={config.from_}"]
    words += [_flag(name, value) for name in _OF_INPUT if (value := getattr(config, name)) is not None]
    words += [f"--names={names}" for names in config.names]
    if config.from_options is not None:
        given = options_given(config.from_options, type(config.from_options))
        words += [_flag(name, getattr(config.from_options, name)) for name in given]
    presets = suggest_presets(source.dataset, source.schema) if config.preset is None else [config.preset]
    words += [f"--preset={name}" for name in presets]
    needs_end = "missing_is_last" in survey.sampled.rules and not presets
    words += ["--repair=missing_is_last"] if needs_end else []
    words += [] if config.connectors is None else [f"--connectors={config.connectors}"]
    words += [] if to == TRAJECTORIES else [f"--to={to}"]
    given = options_given(config.to_options, type(config.to_options))
    words += [_flag(name, getattr(config.to_options, name)) for name in given if name != "fps" or source.fps]
    rate = " --fps=RATE" if to == LEROBOT and source.fps is None else ""
    return shlex.join(words) + rate


def _flag(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no_{name}"
    return f"--{name}={','.join(map(str, value)) if isinstance(value, (list, tuple)) else value}"
