"""`rlds-beam stats`: means, standard deviations and quantiles of a dataset, in one pass."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rlds_beam import storage
from rlds_beam.checking.rules import CheckOptions
from rlds_beam.connectors.options import ConnectorOptions
from rlds_beam.connectors.statistics.statistics_formats import Format, find_leaf, statistics_in
from rlds_beam.errors import UsageError
from rlds_beam.formats.options import InputOptions
from rlds_beam.options import option
from rlds_beam.platforms import process_seconds
from rlds_beam.runners.base import RunOptions
from rlds_beam.terminal.options import ReportOptions
from rlds_beam.text import did_you_mean, some

if TYPE_CHECKING:
    from rlds_beam.episodes.schema import Schema
    from rlds_beam.formats.inputs import OpenedInput
    from rlds_beam.jobs.summary import RangeSummary
    from rlds_beam.processing.job import Job
    from rlds_beam.processing.report import Report
    from rlds_beam.reading.base import Source

__all__ = ["StatsConfig", "StatsOutcome", "stats"]

USAGE = "INPUT..."
EXAMPLES = """
    rlds-beam stats /data/bridge_dataset/1.0.0 --preset=bridge_dataset
    rlds-beam stats /data/toy/1.0.0 --fields=action,observation --output=stats.json
    rlds-beam stats /data/toy/1.0.0 --output=dataset_statistics.json --format=openvla --proprio=observation/state
"""


@dataclasses.dataclass(frozen=True)
class StatsOutcome:
    """The result of a `stats` run.

    Attributes:
      report: the report on all records read.
      statistics: the statistics of the accepted episodes, as JSON (`DatasetStatistics.to_json`).
    """

    report: Report
    statistics: dict[str, Any]

    def __repr__(self) -> str:
        return f"<StatsOutcome: {self.report.line()}>"

    def __str__(self) -> str:
        """The text that the command prints."""
        return "\n".join([self.report.summary(), *self.lines()])

    def lines(self, fields: Sequence[str] = ()) -> list[str]:
        """The table printed after the report: of the chosen fields, or of as many rows as fit a screen."""
        from rlds_beam.terminal.statistics_tables import statistics_lines

        return statistics_lines(self.statistics, fields)


@dataclasses.dataclass(frozen=True)
class StatsConfig(RunOptions, ReportOptions, ConnectorOptions, CheckOptions, InputOptions):
    """Compute the mean, standard deviation, range, and quantiles of each field, after any connectors."""

    _: dataclasses.KW_ONLY
    output: str | None = option(None, "file to write the statistics to, as JSON (.json)", metavar="FILE")
    fields: tuple[str, ...] = option(
        (), "fields to print with all dimensions, by name or pattern; files and --json have all", metavar="FIELDS"
    )
    format: Format = option("own", "format of the output file")
    action: str = option("action", "action field, for the formats of other projects", metavar="FIELD")
    proprio: str | None = option(None, "robot state field, for the formats of other projects", metavar="FIELD")
    allow_empty: bool = option(False, "exit with 0, not 3, even if no episode is accepted")
    by: str | None = option(
        None, "also compute statistics for each value of this field, e.g. language_instruction", metavar="FIELD"
    )
    target_propensity_fn: str | None = option(
        None,
        "module:function that takes the steps of an episode (columns by name) and returns the propensity of each "
        "recorded action under the policy to evaluate; adds its support and effective sample size",
        metavar="FUNCTION",
    )


def stages(config: StatsConfig, opened: OpenedInput) -> Job:
    """The stages of the job: the report on the records, and the statistics of the accepted episodes as JSON."""
    from rlds_beam.connectors.statistics.episode_statistics import Groups
    from rlds_beam.jobs.summary import Summarize
    from rlds_beam.reading.changes import Snapshot
    from rlds_beam.reading.reader import EpisodeReader

    groups = functools.partial(Groups, config.by, config.target_propensity_fn)
    reader = EpisodeReader(opened.source, Snapshot(opened.source))
    return Summarize(reader, opened.check, opened.connecting, _finish, groups=groups).job(opened.source)


def _finish(summary: RangeSummary) -> tuple[Report, dict[str, Any]]:
    return summary.report, summary.statistics.to_json()


def stats(config: StatsConfig) -> StatsOutcome:
    """Runs the job.

    Raises:
      NotVerifiedError: an input file changed during the run.
      RldsBeamError: the dataset cannot be read at all, the pipeline failed, or the output cannot be written.
    """
    from rlds_beam.pipelines.base import merge_reports, run_over
    from rlds_beam.runners import check
    from rlds_beam.terminal import outcome

    check(config)
    outcome.check_writable(config.output, "--output", config.input, endings=(".json",))
    opened = prepare(config)
    source, connecting = opened.source, opened.connecting
    _check_fields(config, connecting.probed.schema)
    _check_format(config, connecting.probed.schema)
    dataset = opened.report  # raises before the dataset is read
    records, computed = run_over("stats", config, [opened], stages(config, opened))
    report = merge_reports(dataset, opened, records)
    statistics = {"dataset": source.dataset, **computed}
    for path, names in connecting.schema.names.items():
        if path in statistics["fields"]:
            statistics["fields"][path]["names"] = [*names]
    if config.output is not None and statistics["episodes"]:
        written = statistics_in(config.format, statistics, action=config.action, proprio=config.proprio)
        storage.write_text(config.output, json.dumps(written, indent=2) + "\n")
    return StatsOutcome(report, statistics)


def prepare(config: StatsConfig) -> OpenedInput:
    """Opens the input; without its images, unless connectors, rules, or the user's functions need them.

    Raises:
      UsageError: the input or a connector cannot be used; or the connectors add columns, which have no statistics.
    """
    from rlds_beam.connectors.configuration import Configuration
    from rlds_beam.formats.inputs import open_input, prepare_input

    source, configuration = open_input(config), Configuration.from_options(config)
    if config.target_propensity_fn is None:
        source = without_images(source, config, configuration.connectors, (config.by or "",))
    opened = prepare_input(config, source, configuration)
    opened.connecting.refuse_columns("convert --to=columns")
    return opened


def without_images(
    source: Source, options: CheckOptions, connectors: Iterable[object], wanted: Collection[str] = ()
) -> Source:
    """The dataset without its images, for a job that does not need them; the dataset itself if something does.

    Args:
      source: the dataset.
      options: the rules; some of them, if asked for, need images.
      connectors: the connectors; only classes with `reads_images=False` need no images (a subclass
        may do more than its base).
      wanted: the fields to keep.
    """
    if options.needs_images or any(getattr(connector, "reads_images", True) for connector in connectors):
        return source
    images = [path for path, field in source.schema.steps.items() if field.holds_image_files and path not in wanted]
    return source.without(images, "not needed, so not read; --check_unused checks it") if images else source


def _check_fields(config: StatsConfig, schema: Schema) -> None:
    """Raises UsageError for a pattern that matches no field with statistics, before the dataset is read."""
    from rlds_beam.terminal.statistics_tables import OF_EPISODES, is_chosen

    known = [
        *(path for path, field in schema.steps.items() if not field.holds_image_files and field.encoding != "text"),
        *OF_EPISODES,
    ]
    for pattern in config.fields:
        if not any(is_chosen(path, [pattern]) for path in known):
            hint = did_you_mean(pattern, known, otherwise=f"there are {some(known)}")
            raise UsageError(f"--fields={pattern}: no field with statistics has this name{hint}")


def _check_format(config: StatsConfig, schema: Schema) -> None:
    """Raises UsageError for options that `statistics_in` cannot write, before the dataset is read."""
    if config.format == "own":
        return
    if config.output is None:
        raise UsageError(f"--format={config.format} is a file format: name the file with --output=FILE")
    fields = schema.steps.values()
    numbers = {f.path: {"mean": [0.0] if f.shape else 0.0} for f in fields if f.numpy_dtype.kind in "fiuV"}
    named = (config.action, "--action"), (config.proprio, "--proprio")
    for path, flag in named if config.format != "lerobot" else ():
        if path is not None:
            find_leaf({"fields": numbers}, path, flag)
    if config.format == "openpi" and config.proprio is None:
        raise UsageError("--format=openpi: norm_stats.json needs the robot's state: name its field with --proprio=PATH")


def main(config: StatsConfig) -> int:
    """Runs the command: prints the statistics and returns the exit code."""
    from rlds_beam.terminal import outcome

    done = stats(config)
    seconds = process_seconds()
    extra = {"seconds": round(seconds, 3), "statistics": done.statistics}
    lines = [f"took      {seconds:.1f} s with start-up"]
    return outcome.print_report(done.report, config, extra, [*done.lines(config.fields), *lines])
