"""`rlds-beam check`: checks every episode against the rules, measures quality signals, and lists the worst."""

from __future__ import annotations

import dataclasses
import functools
import operator
import re
import shlex
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from rlds_beam import storage
from rlds_beam.checking.rules import CheckOptions
from rlds_beam.connectors.options import ConnectorOptions
from rlds_beam.errors import UsageError
from rlds_beam.formats.options import InputOptions
from rlds_beam.options import option
from rlds_beam.platforms import process_seconds
from rlds_beam.runners.base import RunOptions
from rlds_beam.terminal.options import ReportOptions
from rlds_beam.text import count

if TYPE_CHECKING:
    import tempfile

    import pyarrow as pa

    from rlds_beam.checking.signals.results import DatasetFinding, SignalsWriter
    from rlds_beam.formats.inputs import OpenedInput
    from rlds_beam.jobs.summary import RangeSummary
    from rlds_beam.processing.job import Job
    from rlds_beam.processing.report import Report
    from rlds_beam.reading.base import Source

__all__ = ["CheckConfig", "CheckOutcome", "check"]

USAGE = "INPUT..."
EXAMPLES = """
    rlds-beam check data/point_mass/1.0.0
    rlds-beam check data/point_mass/1.0.0 --rules --repair=missing_is_last --connectors=clean.yaml
    rlds-beam check data/point_mass/1.0.0 --signal=jump --output=signals.parquet
    rlds-beam check data/point_mass/1.0.0 --reject='jump > 6, steps < 5' --write_exclude=exclude.txt
    rlds-beam convert data/point_mass/1.0.0 data/pairs --exclude=exclude.txt
"""


_OF_SIGNALS = ("output", "signal", "threshold", "reject", "write_exclude")


@dataclasses.dataclass(frozen=True)
class CheckConfig(RunOptions, ReportOptions, ConnectorOptions, CheckOptions, InputOptions):
    """Check every episode against the rules, and measure quality signals: frozen cameras, jumps, dropped frames, ..."""

    _: dataclasses.KW_ONLY
    report: str | None = option(None, "file to write the report to, as JSON", metavar="FILE", short=("-o",))
    expect: tuple[str, ...] = option(
        (), "what the dataset must have: episodes=50,steps>=10000,fps=30", metavar="CONDITIONS"
    )
    rules: bool = option(False, "check the rules only, and measure no signals: faster")
    output: str | None = option(
        None, "file to write all signals of all episodes to, as Parquet (.parquet)", metavar="FILE"
    )
    signal: str | None = option(None, "show the worst episodes of this signal", metavar="NAME")
    threshold: tuple[str, ...] = option(
        (), "other thresholds than the defaults, for example jump=6,idle_share=0.8", metavar="SIGNAL=NUMBER"
    )
    decode: int = option(3, "images to decode of each camera and episode; 0 for none", least=0)
    reject: str | None = option(
        None,
        "choose episodes to leave out by their signals, for example 'jump > 6, steps < 5'",
        metavar="CONDITIONS",
    )
    write_exclude: str | None = option(
        None,
        "text file (.txt) to list the episodes in that --reject chooses, for --exclude of other commands",
        metavar="FILE",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [name for name in _OF_SIGNALS if getattr(self, name)]
        if self.rules and given:
            raise UsageError(f"--rules measures no signals: leave out --{given[0]}")

    def check_reject(self) -> None:
        """Raises UsageError if `reject` is malformed. It may compare episodes, as the whole dataset is read."""
        if self.reject is not None:
            from rlds_beam.checking.signals.conditions import parse_reject

            parse_reject(self.reject)


@dataclasses.dataclass(frozen=True)
class CheckOutcome:
    """The result of a `check` run.

    Attributes:
      report: the report on all records read.
      signals: for each signal its `threshold`, `measured` (the number of episodes with a value), `beyond` (the number
        beyond the threshold), `median`, and `worst`: the worst episodes. Empty with `rules`.
      findings: what only the whole dataset shows, each with its `check`, `field`, `detail`, and `remedy`.
      rows: the number of rows of the table.
      chosen: the number of episodes that `reject` chose.
      path: the Parquet file; None if the table was not written.
      unmet: the expectations of `expect` that the dataset does not meet.
    """

    report: Report
    signals: dict[str, dict[str, Any]]
    findings: tuple[DatasetFinding, ...]
    rows: int
    chosen: int
    path: str | None
    temporary: tempfile.TemporaryDirectory[str] | None = dataclasses.field(default=None, repr=False, compare=False)
    unmet: tuple[str, ...] = ()

    @functools.cached_property
    def table(self) -> pa.Table:
        """The table: one row for each record, sorted by key. `table.to_pandas()` is a data frame.

        Raises:
          UsageError: it was not written.
          RldsBeamError: it is damaged.
        """
        from rlds_beam.checking.signals.table import read_table

        if self.path is None:
            raise UsageError("rules=True measures no signals")
        return read_table(self.path)

    def __repr__(self) -> str:
        beyond = [f"{signal['beyond']:,} {name}" for name, signal in self.signals.items() if signal["beyond"]]
        return f"<CheckOutcome: {self.report.line()}; beyond the threshold: {', '.join(beyond) or 'none'}>"

    def __str__(self) -> str:
        """The text that the command prints."""
        return "\n".join(filter(None, [self.report.summary(), *self.lines()]))

    def to_json(self) -> dict[str, Any]:
        """The unmet expectations, and the numbers of the signals unless `rules`, as JSON, without the report."""
        if not self.signals:
            return {"unmet": list(self.unmet)}
        return {
            "unmet": list(self.unmet),
            "rows": self.rows,
            "chosen": self.chosen,
            "output": self.path if self.temporary is None else None,
            "signals": self.signals,
            "findings": [dataclasses.asdict(finding) for finding in self.findings],
        }

    def lines(self, signal: str | None = None) -> list[str]:
        """The table of signals and the findings about the dataset, or the worst episodes of one signal."""
        from rlds_beam.terminal.statistics_tables import finding_lines, signal_lines, worst_lines

        if not self.signals:
            return []
        if signal is not None:
            return worst_lines(signal, self.signals[signal])
        return [*signal_lines(self.signals), *finding_lines(self.findings)]


def stages(config: CheckConfig, opened: OpenedInput, writer: SignalsWriter, parts: str = "") -> Job:
    """The stages of the job: the summary of the signals of every episode, unless `config.rules`, and the report.

    Args:
      config: the job's config.
      opened: the input.
      writer: writes the results.
      parts: the directory for the signals, a file for each range.
    """
    from rlds_beam.checking.signals.episodes import Context
    from rlds_beam.checking.signals.table import EpisodeTable
    from rlds_beam.jobs.summary import Summarize
    from rlds_beam.reading.changes import Snapshot
    from rlds_beam.reading.reader import EpisodeReader

    source, rules = opened.source, dataclasses.replace(opened.check, reject=None)  # here, --reject only lists
    measured = None
    if not config.rules:
        measured = EpisodeTable(Context.from_schema(source.schema, fps=source.fps, decoded=config.decode))
    reader, finish = EpisodeReader(source, Snapshot(source)), functools.partial(_finish, writer)
    return Summarize(reader, rules, opened.connecting, finish, measured, parts).job(source)


def _finish(writer: SignalsWriter, summary: RangeSummary) -> tuple[dict[str, Any], Report]:
    """Writes the signals of all records, in any worker: their summary (empty if unmeasured), and the report."""
    return {} if summary.signals is None else writer.write(summary.signals), summary.report


def check(config: CheckConfig) -> CheckOutcome:
    """Runs the job.

    Raises:
      UsageError: workers on other machines need `output`, next to which they write what they measure.
      NotVerifiedError: an input file changed during the run.
      RldsBeamError: the dataset cannot be read at all, the pipeline failed, or a file cannot be written.
    """
    from rlds_beam.checking.signals.results import DatasetFinding
    from rlds_beam.formats.inputs import prepare_input
    from rlds_beam.pipelines.base import measured_parts, merge_reports, run_over
    from rlds_beam.runners import check as check_runner
    from rlds_beam.terminal import outcome

    check_runner(config)
    outcome.check_writable(config.report, "--report", config.input)
    parse_expect(config.expect)
    outcome.check_writable(config.output, "--output", config.input, rewritten="signals.parquet", endings=(".parquet",))
    outcome.check_writable(config.write_exclude, "--write_exclude", config.input, endings=(".txt",))
    writer, temporary = _writer(config), None
    if config.output is None and not config.rules:
        import tempfile

        if config.runner not in ("local", "direct", "prism"):
            raise UsageError("workers write signals next to --output: add --output=FILE, or check only the --rules")
        temporary = tempfile.TemporaryDirectory(prefix="rlds-beam-", ignore_cleanup_errors=True)
        writer = dataclasses.replace(writer, output=storage.join(temporary.name, "signals.parquet"))
    opened = prepare_input(config)
    dataset = opened.report  # raises before the dataset is read
    with measured_parts(writer.output) as parts:
        content, records = run_over("check", config, [opened], stages(config, opened, writer, parts), parts)
    report = merge_reports(dataset, opened, records)
    findings = tuple(DatasetFinding(**item) for item in content.get("findings", ()))
    signals = content.get("signals", {})
    unmet = tuple(find_unmet(config.expect, report, opened.source, config.input))
    done = CheckOutcome(
        report, signals, findings, content.get("rows", 0), content.get("chosen", 0), writer.output, temporary, unmet
    )
    outcome.write_report({**msgspec.to_builtins(report), **done.to_json()}, config.report)
    return done


def _writer(config: CheckConfig) -> SignalsWriter:
    """The last step: the writer of the result. Raises UsageError if an option names no signal, or is of no use."""
    from rlds_beam.checking.signals.results import SignalsWriter, check_signal, parse_thresholds

    if config.signal is not None:
        check_signal(config.signal, f"--signal={config.signal}")
    if config.write_exclude is not None and config.reject is None:
        raise UsageError("--write_exclude lists the episodes that --reject chooses: add --reject='CONDITIONS'")
    thresholds = parse_thresholds(config.threshold)
    return SignalsWriter(config.output, config.reject, config.write_exclude, thresholds)


def main(config: CheckConfig) -> int:
    """Runs the command: prints the signals, worst first, and returns the exit code."""
    from rlds_beam.terminal import outcome

    done = check(config)
    seconds = process_seconds()
    extra = {"seconds": round(seconds, 3), **done.to_json()}
    lines = [*done.lines(config.signal), *_written_lines(config, done)]
    lines.append(f"took      {seconds:.1f} s with start-up")
    return outcome.print_report(done.report, config, extra, lines, unmet=done.unmet)


def _written_lines(config: CheckConfig, done: CheckOutcome) -> list[str]:
    """The written files, and the command that uses them."""
    lines = [] if config.output is None else [f"written   {config.output}: {count(done.rows, 'row')}"]
    if config.reject is None:
        return lines
    chosen = f"chosen    {done.chosen:,} of {count(done.rows, 'episode')} by --reject={shlex.quote(config.reject)}"
    if config.write_exclude is None:
        return [*lines, f"{chosen}; --write_exclude=FILE lists them"]
    use = ["rlds-beam", "convert", *config.input.split(","), "OUTPUT", f"--exclude={config.write_exclude}"]
    return [*lines, f"{chosen}, listed in {config.write_exclude}", f"use       {shlex.join(use)}"]


_COMPARE = {">=": operator.ge, "<=": operator.le, "=": operator.eq, ">": operator.gt, "<": operator.lt}
_EXPECTED = re.compile(r"\s*(episodes|steps|fps)\s*(>=|<=|=|>|<)\s*(\d+(?:\.\d+)?)\s*")


def parse_expect(texts: Iterable[str]) -> list[tuple[str, str, float]]:
    """Parses `--expect`: names, how to compare, and numbers. Raises UsageError if a text is malformed."""
    expected = []
    for text in texts:
        match = _EXPECTED.fullmatch(text)
        if match is None:
            raise UsageError(f"--expect={text}: expected episodes, steps, or fps, for example episodes=50,steps>=10000")
        expected.append((match[1], match[2], float(match[3])))
    return expected


def find_unmet(texts: Iterable[str], report: Report, source: Source, where: str) -> list[str]:
    """The expectations (`--expect`) that a dataset does not meet, each with what was expected, found, and where."""
    unmet = []
    lost = f" ({report.rejected:,} of {count(report.records, 'record')} rejected)" if report.rejected else ""
    numbers = {"episodes": report.episodes, "steps": report.steps, "fps": source.fps}
    for name, compare, expected in parse_expect(texts):
        number = numbers[name]
        if number is None or not _COMPARE[compare](number, expected):
            found = "none" if number is None else f"{number:g}" if name == "fps" else f"{number:,}{lost}"
            unmet.append(f"expected {name}{compare}{expected:.15g}, found {found}, in {where}")
    return unmet
