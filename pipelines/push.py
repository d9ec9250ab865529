"""`rlds-beam push`: fills Reverb tables with a dataset, or with the output of `convert`."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from rlds_beam.errors import UsageError
from rlds_beam.jobs.options import PushOptions
from rlds_beam.options import option
from rlds_beam.runners.base import RunOptions
from rlds_beam.terminal.options import ReportOptions, print_json

if TYPE_CHECKING:
    from rlds_beam.jobs.push import PushInput
    from rlds_beam.processing.job import Figures
    from rlds_beam.processing.report import Report
    from rlds_beam.reverb.pushers import Verified
    from rlds_beam.reverb.serving import EmbeddedServer

__all__ = ["PushConfig", "PushOutcome", "push"]

USAGE = "INPUT... --reverb=HOST:PORT --table=NAMES"
EXAMPLES = """
    rlds-beam push data/point_mass/1.0.0 --reverb=127.0.0.1:8000 --table=replay
    rlds-beam push data/point_mass/1.0.0 --reverb=embedded --table=replay --keep_serving
    rlds-beam push data/pairs --reverb=a:8000,b:8000 --table=replay
"""

EMBEDDED = "embedded"
"""Given instead of a server's address: a server that runs inside the job."""

_LOOK_SECONDS = 0.2


@dataclasses.dataclass(frozen=True)
class PushConfig(RunOptions, ReportOptions, PushOptions):
    """Push a dataset, or the output of convert, into Reverb tables, each item once."""

    _: dataclasses.KW_ONLY
    report: str | None = option(None, "file to write the report to, as JSON", metavar="FILE")
    dry_run: bool = option(False, "check everything, including the tables, and print the plan, but write nothing")
    keep_serving: bool = option(False, "keep the embedded server running after the push, until Ctrl-C")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep_serving and not self.embedded:
            raise UsageError("--keep_serving needs --reverb=embedded: rlds-beam does not control other servers")

    @property
    def embedded(self) -> bool:
        return self.reverb == (EMBEDDED,)


@dataclasses.dataclass(frozen=True)
class PushOutcome:
    """A finished job.

    Attributes:
      verified: what was pushed, and what the tables hold.
      report: the report on the dataset.
      run: how this run went.
      seconds: the duration of this run, including start-up.
      has_ended: whether the server has ended with the job, and the items with it.
    """

    verified: Verified
    report: Report
    run: Figures
    seconds: float
    has_ended: bool = False

    def __repr__(self) -> str:
        return f"<PushOutcome: {self.report.line()}; {'; '.join(map(str, self.verified.checks))}>"

    def __str__(self) -> str:
        """The text that the command prints."""
        return "\n".join([self.report.summary(), *self.lines()])

    def lines(self) -> list[str]:
        """The lines printed after the report."""
        from rlds_beam.terminal import outcome

        lines = [*self.verified.lines(), outcome.timing_line(self.to_json())]
        if self.has_ended:
            lines.append("ended     the embedded server, and its items with it: --keep_serving keeps it running")
        return lines

    def to_json(self) -> dict[str, Any]:
        """The content of `--json` and `--report`."""
        from rlds_beam.terminal import outcome

        tables = msgspec.to_builtins(self.verified.checks)
        figures = outcome.figures(self.run, self.seconds)
        return {**msgspec.to_builtins(self.report), "tables": tables, **figures}


def push(config: PushConfig) -> PushOutcome:
    """Runs the job; running it again writes no item twice (`writer=stream`).

    Raises:
      UsageError: the input, the options, or the tables cannot be used; nothing was written.
      FailedRuleError: a rule of `fail` was broken.
      NotVerifiedError: the tables' content differs from the prediction.
      RldsBeamError: the pipeline failed.
    """
    return _push(config, _end)


def _push(config: PushConfig, filled: Callable[[EmbeddedServer, Verified], None]) -> PushOutcome:
    """Runs the job; calls `filled` once the embedded server has all items, before it ends."""
    from rlds_beam.jobs.push import open_input
    from rlds_beam.output.directory import check_apart
    from rlds_beam.reverb.serving import EmbeddedServer, parse_tables
    from rlds_beam.runners import check
    from rlds_beam.terminal import outcome
    from rlds_beam.terminal.job_progress import Progress

    began = time.monotonic()
    check(config)
    outcome.check_writable(config.report, "--report", config.input)
    check_apart(config.rejected, config.input, "--rejected")
    with Progress("push", config.progress).show():
        source = open_input(config)
    if not config.embedded:
        return _keep(config, PushOutcome(*_fill(config, source), time.monotonic() - began))
    with EmbeddedServer(parse_tables(config.table), source.spec) as server:
        names = tuple(table.split(":")[0] for table in config.table)
        own = dataclasses.replace(config, reverb=(server.address,), table=names, keep_serving=False)
        verified, report, figures = _fill(own, source)
        filled(server, verified)
    return _keep(config, PushOutcome(verified, report, figures, time.monotonic() - began, has_ended=True))


def _keep(config: PushConfig, done: PushOutcome) -> PushOutcome:
    """Writes the report if `--report` is given."""
    from rlds_beam.terminal import outcome

    outcome.write_report(done.to_json(), config.report)
    return done


def _fill(config: PushConfig, source: PushInput) -> tuple[Verified, Report, Figures]:
    """Fills the tables of running servers; returns the tables' content, the report, and how the job ran."""
    from rlds_beam.jobs.push import prepare
    from rlds_beam.processing.report import check_counts
    from rlds_beam.runners import run
    from rlds_beam.terminal.job_progress import Progress

    target, baseline, fits = prepare(config, source, on_wait=_on_wait)
    if not fits:
        # The tables may be too small for all items, so count them first.
        progress = Progress("count", config.progress, bytes=source.size)
        counted, _ = run(source.count_stages(target), config, source.input_bytes, progress)
        target, baseline, _ = prepare(config, source, counted.predicted)
    progress = Progress("push", config.progress, ranges=len(source.ranges), bytes=source.size)
    stages = source.stages(target, baseline, config.rejected)
    verified, figures = run(stages, config, source.input_bytes, progress)
    report = source.dataset_report.merge(verified.pushed.report)
    report.left_out = dict(source.spec.left_out)
    if source.source is not None:
        report = report.merge(check_counts(source.source, report.shards, config))
        report.check()
    return verified, report, figures


def main(config: PushConfig) -> int:
    """Runs the command: prints the summary and returns the exit code."""
    from rlds_beam.terminal import outcome

    if config.dry_run:
        return _plan(config)
    done = _push(config, _serve_on if config.keep_serving else _end)
    return outcome.print_report(done.report, config, done.to_json(), done.lines(), "the tables")


def _plan(config: PushConfig) -> int:
    """Prints the plan, without starting an embedded server."""
    from rlds_beam.jobs.push import open_input, prepare
    from rlds_beam.runners import check
    from rlds_beam.terminal.tables import NOTHING_WRITTEN, record_lines
    from rlds_beam.text import format_size

    check(config)
    source = open_input(config)
    if not config.embedded:
        prepare(config, source, on_wait=_on_wait)
    if config.json:
        plan = {
            "input": source.dataset,
            "bytes": source.size,
            "ranges": len(source.ranges),
            "frame": [dataclasses.asdict(leaf) for leaf in source.spec.leaves],
            "left_out": dict(source.spec.left_out),
        }
        print_json(plan | {"servers": config.reverb, "tables": config.table})
        return 0
    lines = [f"input     {source.dataset}: {format_size(source.size)}", f"ranges    {len(source.ranges):,}"]
    lines += [f"output    {', '.join(config.reverb)}: {', '.join(config.table)}"]
    lines += record_lines(map(str, source.spec.leaves), source.spec.left_out)
    print("\n".join([*lines, NOTHING_WRITTEN]))
    return 0


def _on_wait(text: str) -> None:
    """Prints a message that cannot wait until the job's end."""
    print(f"rlds-beam: {text}", file=sys.stderr, flush=True)


def _end(server: EmbeddedServer, verified: Verified) -> None:
    """Lets the embedded server end with the job."""


def _serve_on(server: EmbeddedServer, verified: Verified) -> None:
    """Keeps the embedded server running until Ctrl-C."""
    lines = [
        *verified.lines(),
        f"serving   {server.address}, for every client that can reach this machine; press Ctrl-C to stop",
    ]
    print("\n".join(lines), file=sys.stderr, flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(_LOOK_SECONDS)
            server.check()
