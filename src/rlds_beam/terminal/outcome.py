"""The end of a job: its last lines, and its exit code."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlds_beam import storage
from rlds_beam.checking.rules import DATASET_RULES, POLICIES, REPAIRABLE
from rlds_beam.connectors.cleaning.presets import with_preset
from rlds_beam.errors import UsageError
from rlds_beam.options import flag_name
from rlds_beam.processing.report import Report
from rlds_beam.terminal.options import GateOptions, ReportOptions, print_json
from rlds_beam.text import count, join_lines, without_secrets
from rlds_beam.trajectories.items import REASONS
from rlds_beam.trajectories.options import ItemOptions
from rlds_beam.user_functions import ByValue

if TYPE_CHECKING:
    from rlds_beam.processing.job import Figures
    from rlds_beam.terminal.gate import Gate

REJECTED = 3
"""The exit code if more was rejected than allowed."""


def exit_code(report: Report, options: ReportOptions, gate: Gate | None = None) -> int:
    """0, or 3 if too much was rejected, a shard does not match the metadata, there are no items, or a gate fails."""
    return REJECTED if failure(report, options, gate=gate) else 0


def failure(report: Report, options: ReportOptions, place: str = "", gate: Gate | None = None) -> str | None:
    """Why the exit code is 3, and which option accepts that; None if the exit code is 0.

    Args:
      report: the report of the job.
      options: its options.
      place: where the accepted episodes were written; empty if they were only read.
      gate: what else may fail.
    """
    broken = {
        rule: report.rules[rule] for rule in DATASET_RULES if rule in report.rules and report.rules[rule].rejected
    }
    reasons = [] if gate is None else gate.reasons()
    reasons += [f"{counts.samples[0][1]} (--accept={rule} accepts that)" for rule, counts in broken.items()]
    reasons += [_too_many(report, options, place)] if report.exceeds(options.max_rejected) else []
    if (why := empty_reason(report, options)) is not None:
        reasons.append(why)
    if not reasons:
        return None
    is_written = place and report.items_written
    label = f"written, but incomplete (exit code {REJECTED})" if is_written else f"failed with exit code {REJECTED}"
    return f"{label}: {'; '.join(reasons)}"


def _too_many(report: Report, options: ReportOptions, place: str) -> str:
    """The number of rejected records, and the options that allow or repair them."""
    broken = [r for r, counts in report.rules.items() if counts.rejected and r not in DATASET_RULES]
    given = getattr(with_preset(options), "repair", ())
    repaired = [rule for rule in broken if rule in REPAIRABLE and rule not in given]
    accepted = [rule for rule in broken if "accept" in POLICIES[rule]]
    if place and report.items_written:
        written = report.records - report.rejected - sum(counts.records for counts in report.dropped.values())
        text = f"{written:,} of {count(report.records, 'episode')} {'is' if written == 1 else 'are'} in {place}"
    else:
        were = "was" if report.rejected == 1 else "were"
        text = f"{report.rejected:,} of {count(report.records, 'record')} {were} rejected"
    text += f"; --max_rejected={options.max_rejected} allows fewer rejected ones" if options.max_rejected else ""
    as_they_are = f", or --accept={','.join(accepted)} for such episodes as they are" if accepted else ""
    repair = f" Repair: --repair={','.join(repaired)}." if repaired else ""
    return f"{text}. Accept: --max_rejected={report.rejected}{as_they_are}.{repair}"


def empty_reason(report: Report, options: Any) -> str | None:
    """Why nothing was produced, and what to do; None if items were produced or `--allow_empty` is set."""
    if report.items_written or getattr(options, "allow_empty", True):
        return None
    output = getattr(options, "to_options", options if isinstance(options, ItemOptions) else None)
    what = "episode is in the statistics" if output is None else "item was written"
    if not report.records:
        return f"no {what}: the input has no episodes (--allow_empty accepts that)"
    if not report.episodes:
        return f"no {what}: all records were rejected (--allow_empty accepts that)"
    if report.connectors and not sum(connector.episodes_out for connector in report.connectors[-1:]):
        by = "; ".join(f"{count(dropped.episodes, 'episode')} by {name}" for name, dropped in report.dropped.items())
        return f"no {what}: connectors dropped all episodes: {by} (--allow_empty accepts that)"
    if output is None:
        return None
    reasons, length = [], getattr(output, "length", None)
    for reason, steps in report.unused.items():
        size = f"{count(steps.longest, 'step')}" + (" at most" if steps.episodes > 1 else "")
        what = f"an item has {count(length, 'frame')}" if length else REASONS[reason][0]
        reasons.append(f"{count(steps.episodes, 'episode')} of {size}, and {what}: {REASONS[reason][1]}")
    why = "; ".join(reasons) or f"{count(report.episodes, 'episode')} gave none"
    return f"no item was written: {why} (--allow_empty accepts that)"


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
    if is_local:
        _check_place(path, flag, input, rewritten)
    if endings and not path.lower().endswith(endings):
        raise UsageError(f"{flag}={path}: its name must end with {' or '.join(endings)}")
    if not is_local:
        return
    beside = storage.temporary_name(path)
    try:
        with storage.open_write(beside):
            pass
        storage.remove(beside)
    except OSError as error:
        raise UsageError(f"{flag}={path} cannot be written to: {error.strerror}") from error


def _check_place(path: str, flag: str, input: str | Sequence[str], rewritten: str | tuple[str, ...]) -> None:
    """Raises UsageError if a local path is a file of an input, a directory, or a device."""
    ours = bool(rewritten) and path.endswith(rewritten)
    if not ours and storage.exists(path) and any(storage.is_inside(path, place) for place in storage.paths_in(input)):
        raise UsageError(f"{flag}={path} is a file in the input: choose a path outside the dataset")
    if storage.isdir(path):
        raise UsageError(f"{flag}={path} is a directory: name a file")
    if storage.is_special(path):
        raise UsageError(f"{flag}={path} is not a regular file: name a file")


def check_gate(options: GateOptions, input: str) -> None:
    """Checks before a job that its gate can be evaluated and its files written.

    Raises:
      UsageError: an expectation is malformed, or a file cannot be read or written.
    """
    from rlds_beam.terminal.gate import parse_expect

    check_writable(options.report, "--report", input)
    parse_expect(options.expect)


def write_gate(gate: Gate | None, report: Report, options: GateOptions, extra: Mapping[str, Any] = {}) -> None:
    """Writes the report of a job to the path of `--report`: as JSON (with `extra`), or as JUnit XML.

    Raises:
      RldsBeamError: the file cannot be written.
    """
    content: Any = {**report.to_json(), **extra, **(gate.to_json() if gate is not None else {})}
    write_report(_junit(gate, options) or content, options.report)


def _junit(gate: Gate | None, options: Any) -> str | None:
    """The findings as JUnit XML if that is the format."""
    from rlds_beam.terminal.junit import format_junit

    return format_junit(gate) if gate is not None and options.format == "junit" else None


def write_report(content: Mapping[str, Any] | str, path: str | None) -> None:
    """Writes a report, a text or JSON, to the path of `--report`, from this process rather than a worker.

    Raises:
      RldsBeamError: the file cannot be written.
    """
    if path is not None:
        text = content if isinstance(content, str) else json.dumps(content, indent=2) + "\n"
        storage.write_given(path, text, "--report")


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
    gate: Gate | None = None,
) -> None:
    """Prints the report as JSON (with `extra`), as JUnit XML, or as a summary followed by `lines`, and why
    the exit code is 3.
    """
    text = None
    if gate is not None:
        text = _junit(gate, options) if getattr(options, "report", None) is None else None
        lines, extra = [*lines, *gate.lines()], {**extra, **gate.to_json()}
    if (why := failure(report, options, place, gate)) is not None:
        lines = [*lines, why]
        if (empty := empty_reason(report, options)) is not None:
            extra = {**extra, "error": empty}
        if options.json or options.progress == "none" or text is not None:  # the summary is not shown
            print(f"rlds-beam: {why}", file=sys.stderr)
    if options.json:
        print_json({**report.to_json(), **extra})
    elif text is not None:
        print(text, end="")
    else:
        repair = getattr(with_preset(options), "repair", ())
        print("\n".join([report.summary(repair), join_lines(lines)]))


def repair_lines(job: str, config: Any, report: Report) -> list[str]:
    """The summary line with the command; empty if no rejected record can be repaired.

    Args:
      job: the command's name: `convert`.
      config: the config of the job that rejected records.
      report: the report of that job.
    """
    repaired = with_preset(config).repair
    rules = [r for r in REPAIRABLE if r in report.rules and report.rules[r].rejected and r not in repaired]
    if not rules:
        return []
    changes: dict[str, Any] = {"repair": (*config.repair, *rules)}
    if hasattr(config, "overwrite"):
        changes["overwrite"] = True  # the output already has the accepted episodes, written by another plan
    arguments = format_flags(dataclasses.replace(config, **changes))
    return [] if arguments is None else [f"repair    {shlex.join(['rlds-beam', job, *arguments])}"]


def format_flags(config: Any) -> list[str] | None:
    """A config as command-line arguments, without secrets; None if it holds a function that has no name."""
    own = [(field, getattr(config, field.name)) for field in dataclasses.fields(config)]
    arguments = [value for field, value in own if field.metadata.get("positional") and value is not None]
    for group in config.groups(vars(config)):
        options = getattr(config, group.field)
        own += [(f, getattr(options, f.name)) for f in dataclasses.fields(options) if not hasattr(config, f.name)]
    for field, value in own:
        if any(isinstance(entry, ByValue) for entry in (value if isinstance(value, tuple) else [value])):
            return None
        if value == field.default or field.metadata.get("positional") or field.metadata.get("hidden"):
            continue
        flag = f"--{flag_name(field.name)}"
        if field.metadata.get("repeated"):
            arguments += [f"{flag}={item}" for item in value]
            continue
        text = ",".join(value) if isinstance(value, tuple) else str(value)
        arguments.append(flag if value is True else f"{flag}={text}")
    beam_options = getattr(config, "beam_options", ())
    arguments = [*arguments, "--", *beam_options] if beam_options else arguments
    return [without_secrets(argument) for argument in arguments]
