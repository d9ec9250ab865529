"""`rlds-beam report`: one HTML file that shows a dataset, or what a conversion did."""

from __future__ import annotations

import dataclasses
import shlex
from typing import TYPE_CHECKING, Any

import msgspec

from rlds_beam import storage
from rlds_beam.checking.rules import CheckOptions
from rlds_beam.connectors.options import ConnectorOptions
from rlds_beam.formats.options import InputOptions
from rlds_beam.options import option
from rlds_beam.pipelines.base import measured_parts, run_over
from rlds_beam.platforms import process_seconds
from rlds_beam.runners.base import RunOptions
from rlds_beam.terminal.options import PrintOptions, format_flags, print_json

if TYPE_CHECKING:
    from rlds_beam.connectors.pipeline import ConnectorRunner
    from rlds_beam.formats.inputs import OpenedInput
    from rlds_beam.viewing.report.dataset import Settings
    from rlds_beam.viewing.report.report_file import ConversionView, ReportOutcome, ReportWriter

__all__ = ["ReportConfig", "report"]

USAGE = "INPUT"
ENDINGS = (".html", ".htm")
"""The endings of the file's name."""

EXAMPLES = """
    rlds-beam report data/point_mass/1.0.0 --output=report.html
    rlds-beam report out --output=conversion.html
"""


@dataclasses.dataclass(frozen=True)
class ReportConfig(RunOptions, PrintOptions, ConnectorOptions, CheckOptions, InputOptions):
    """Write an HTML file that shows a dataset, or what a conversion did."""

    input: str = option(dataclasses.MISSING, "dataset directory, or a directory that convert wrote", positional=True)
    _: dataclasses.KW_ONLY
    output: str = option("report.html", "file to write the report to", metavar="FILE", short=("-o",))
    samples: int = option(6, "sample episodes to show", least=0)
    worst: int = option(5, "worst episodes to list for each signal", least=0)
    threshold: tuple[str, ...] = option(
        (), "other thresholds than the defaults, for example jump=6,idle_share=0.8", metavar="SIGNAL=NUMBER"
    )
    decode: int = option(3, "images to decode of each camera and episode, for signals; 0 for none", least=0)


def prepare(config: ReportConfig) -> tuple[ReportWriter, OpenedInput | None]:
    """Opens the dataset. Reads only metadata.

    Returns:
      What writes the report; and the input, unless it is an output whose rows are not episodes.

    Raises:
      UsageError: the dataset cannot be opened, or an option cannot be used.
    """
    from rlds_beam.formats.inputs import prepare_input
    from rlds_beam.viewing.report.report_file import Input, ReportWriter

    conversion = _conversion(config)
    if conversion is not None and not conversion.is_read:
        return ReportWriter(None, config.output, _command(config), conversion), None
    own = dataclasses.replace(config, input=storage.pin(config.input))
    opened = prepare_input(own)
    shown = Input(opened.source, _settings(own, own.source_format, opened.connecting), opened.report)
    return ReportWriter(shown, config.output, _command(config), conversion), opened


def report(config: ReportConfig) -> ReportOutcome:
    """Runs the job.

    Raises:
      NotVerifiedError: an input file changed during the run.
      RldsBeamError: a dataset cannot be read at all, the pipeline failed, or the report cannot be written.
    """
    from rlds_beam.runners import check
    from rlds_beam.terminal import outcome

    check(config)
    outcome.check_writable(config.output, "--output", config.input, rewritten=ENDINGS, endings=ENDINGS)
    writer, opened = prepare(config)
    with measured_parts(config.output) as parts:
        stages = writer.stages(None if opened is None else opened.connecting, parts)
        written: ReportOutcome = run_over("report", config, [] if opened is None else [opened], stages, parts)
    if written.report is not None:
        written.report.check()
    return written


def main(config: ReportConfig) -> int:
    """Runs the command: prints the counts of the records read and the file's name, and returns 0."""

    done = report(config)
    seconds = round(process_seconds(), 3)
    if config.json:
        read = None if done.report is None else msgspec.to_builtins(done.report)
        print_json({"report": read, "path": done.path, "bytes": done.bytes, "seconds": seconds})
    else:
        lines = [
            *([] if done.report is None else [done.report.line()]),
            str(done),
            f"took      {seconds:.1f} s with start-up",
        ]
        print("\n".join(lines))
    return 0


def _conversion(config: ReportConfig) -> ConversionView | None:
    """The output directory that the input is, if `convert` or `record` wrote it.

    Raises:
      UsageError: it is not finished.
    """
    from rlds_beam.formats.registry import find_readable
    from rlds_beam.output.commits import read_manifest
    from rlds_beam.output.directory import holding
    from rlds_beam.viewing.report.report_file import ConversionView

    held = holding(config.input) if config.from_ is None else None
    if held is None:
        return None
    read_manifest(config.input)
    readable = find_readable(held.to) is not None
    return ConversionView(config.input, held, ("rlds-beam", "convert", "INPUT", "OUTPUT"), readable)


def _settings(config: ReportConfig, format_: str, connecting: ConnectorRunner) -> Settings:
    from rlds_beam.checking.signals.results import parse_thresholds
    from rlds_beam.viewing.report.dataset import Settings

    options = {"--from": config.from_, "--split": config.split, "--features": config.features}
    given = [f"{flag}={value}" for flag, value in options.items() if value is not None]
    after = "distributions are those after the connectors; frames, curves, and signals are those of the records read"
    return Settings(
        config.input,
        format_,
        CheckOptions.from_options(config),
        config.samples,
        config.worst,
        config.decode,
        thresholds=parse_thresholds(config.threshold),
        convert=("rlds-beam", "convert", config.input, "OUTPUT", *given),
        list_command=("rlds-beam", "check", config.input, *given),
        notes=(after,) if connecting.connectors else (),
    )


def _command(config: ReportConfig) -> str:
    """The command that makes the report again, without options that do not change it."""
    of_runs: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(RunOptions) if f.name != "_"}
    plain = dataclasses.replace(config, **of_runs, json=False, progress="auto")
    groups = [getattr(plain, field) for field in plain.format_options()]
    flags = [flag for options in (plain, *groups) for flag in format_flags(options, type(options))]
    return shlex.join(["rlds-beam", "report", config.input, *flags])
