"""The end of a job: what was expected of the data, its last lines, and its exit code."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from rlds_beam import storage
from rlds_beam.checking.rules import DATASET_RULES
from rlds_beam.errors import UsageError
from rlds_beam.processing.report import Report
from rlds_beam.terminal.options import ReportOptions, print_json
from rlds_beam.text import count
from rlds_beam.trajectories.items import REASONS
from rlds_beam.trajectories.options import ItemOptions

if TYPE_CHECKING:
    from rlds_beam.processing.job import Figures

REJECTED = 3
"""The exit code if more was rejected than allowed."""


def failure(report: Report, options: ReportOptions, place: str, unmet: Sequence[str]) -> str | None:
    """Why the exit code is 3, and which option accepts that; None if the exit code is 0.

    Args:
      report: the report of the job.
      options: its options.
      place: where the accepted episodes were written; empty if they were only read.
      unmet: the expectations that are not met (`find_unmet`).
    """
    is_written = bool(place and report.items_written)
    reasons = [f"{count(len(unmet), 'expectation')} of --expect not met"] if unmet else []
    for rule in DATASET_RULES:
        if rule in report.rules and report.rules[rule].rejected:
            reasons.append(f"{report.rules[rule].samples[0].detail} (--accept={rule} accepts that)")
    if report.rejected > options.max_rejected_of(report.records):
        were = "was" if report.rejected == 1 else "were"
        text = f"{report.rejected:,} of {count(report.records, 'record')} {were} rejected"
        if is_written:
            written = report.records - report.rejected - sum(counts.records for counts in report.dropped.values())
            text = f"{written:,} of {count(report.records, 'episode')} {'is' if written == 1 else 'are'} in {place}"
        fewer = f" (now {options.max_rejected:g})" if options.max_rejected else ""
        reasons.append(f"{text}; --max_rejected={report.rejected}{fewer} accepts that")
    if (why := empty_reason(report, options)) is not None:
        reasons.append(why)
    if not reasons:
        return None
    label = f"written, but incomplete (exit code {REJECTED})" if is_written else f"failed with exit code {REJECTED}"
    return f"{label}: {'; '.join(reasons)}"


def empty_reason(report: Report, options: Any) -> str | None:
    """Why nothing was produced, and what to do; None if items were produced or `--allow_empty` is set."""
    if report.items_written or getattr(options, "allow_empty", True):
        return None
    output = getattr(options, "to_options", options if isinstance(options, ItemOptions) else None)
    if not report.records:
        why = "the input has no episodes"
    elif not report.episodes:
        why = "all records were rejected"
    elif report.connectors and not report.connectors[-1].episodes_out:
        why = "connectors dropped all episodes"
    elif output is None:
        return None
    else:
        unused = (f"{steps}: {'; '.join(REASONS[reason])}" for reason, steps in report.unused.items())
        why = "; ".join(unused) or f"{count(report.episodes, 'episode')} gave none"
    what = "episode is in the statistics" if output is None else "item was written"
    return f"no {what}: {why} (--allow_empty accepts that)"


def figures(run: Figures | None, seconds: float) -> dict[str, Any]:
    """A run's speed with and without start-up. None: there was nothing to do."""
    steps, working, memory = run or (0, 0.0, 0)
    working = min(working, seconds)
    return {
        "seconds": round(seconds, 3),
        "working_seconds": round(working, 3),
        "steps_this_run": steps,
        "steps_per_second": round(steps / working) if working else None,
        "peak_memory_mb": round(memory / 1024) if memory else None,
    }


def check_writable(
    path: str | None,
    flag: str,
    input: str | Sequence[str] = (),
    rewritten: str | tuple[str, ...] = (),
    endings: tuple[str, ...] = (),
) -> None:
    """Checks before a job that its report can be written at the end. Buckets are not asked.

    Args:
      path: the file; None for none.
      flag: the option that names it.
      input: the datasets that are read.
      rewritten: the end of names that never hold a dataset's data: such a file in an input may be written again.
      endings: the endings that the name may have, as it is written in only this format; empty for any.

    Raises:
      UsageError: the file cannot be written, exists in an input, its name ends otherwise, or the path is a directory
        or a device.
    """
    if path is None:
        return
    storage.refuse_read_only(path, flag)
    is_local = storage.scheme(path) is None
    if is_local and os.path.exists(path) and not os.path.isfile(path):
        raise UsageError(f"{flag}={path} is not a file: name a file")
    is_new = (rewritten and path.endswith(rewritten)) or not is_local or not storage.exists(path)
    if not is_new and any(storage.is_inside(path, place) for place in storage.paths_in(input)):
        raise UsageError(f"{flag}={path} is a file in the input: choose a path outside the dataset")
    if endings and not path.lower().endswith(endings):
        raise UsageError(f"{flag}={path}: its name must end with {' or '.join(endings)}")
    if not is_local:
        return
    beside = storage.temporary_name(path)
    try:
        open(beside, "xb").close()
        os.remove(beside)
    except OSError as error:
        raise UsageError(f"{flag}={path} cannot be written to: {error.strerror}") from error


def write_report(content: Mapping[str, Any] | str, path: str | None) -> None:
    """Writes a report, a text or JSON, to the path of `--report`, from this process rather than a worker.

    Raises:
      OSError: the file cannot be written.
    """
    if path is not None:
        text = content if isinstance(content, str) else json.dumps(content, indent=2) + "\n"
        storage.write_text(path, text)


def timing_line(figures: Mapping[str, Any]) -> str:
    """The summary line with the duration and the speed."""
    speed = f", {figures['steps_per_second']:,} steps/s while working" if figures["steps_per_second"] else ""
    return f"took      {figures['seconds']:.1f} s with start-up{speed}"


def print_report(
    report: Report,
    options: ReportOptions,
    extra: dict[str, Any],
    lines: list[str],
    place: str = "",
    unmet: Sequence[str] = (),
) -> int:
    """Prints the report as JSON (with `extra`), or as a summary followed by `lines`, and why the exit code is 3.

    Returns:
      The exit code: 3 if too much was rejected, a shard does not match the metadata, there are no items, or an
      expectation is not met (`unmet`); else 0.
    """
    lines = [*lines, *unmet]
    why = failure(report, options, place, unmet)
    if why is not None:
        lines.append(why)
        if (empty := empty_reason(report, options)) is not None:
            extra = {**extra, "error": empty}
        if options.json or options.progress == "none":  # the summary is not shown
            print(f"rlds-beam: {why}", file=sys.stderr)
    if options.json:
        print_json({**msgspec.to_builtins(report), **extra})
    else:
        print("\n".join([report.summary(getattr(options, "repair", ())), *lines]))
    return 0 if why is None else REJECTED
