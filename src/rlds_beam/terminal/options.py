"""Options for what a command prints and what counts as success."""

from __future__ import annotations

import dataclasses
import datetime
import json
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from rlds_beam._version import __version__
from rlds_beam.errors import UsageError
from rlds_beam.options import Options, flag_name, option
from rlds_beam.platforms import process_seconds
from rlds_beam.text import without_secrets


def parse_max_rejected(text: str) -> int | float:
    """Parses `--max_rejected`: `12` is a count; `0.05` and `5%` are fractions of the records read.

    Raises:
      UsageError: the text is neither, or the number is negative, or the fraction is above 1.
    """
    try:
        if text.strip().isdecimal():
            return int(text)
        fraction = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        fraction = -1.0
    if not 0 <= fraction <= 1:
        raise UsageError(f"--max_rejected={text}: expected a count (12) or a fraction of the records (0.05 or 5%)")
    return fraction


def now() -> str:
    """The time as ISO 8601 in UTC: `2026-11-25T18:07:38Z`."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


_run: dict[str, str] = {}
"""The command line that this process runs, and when it started."""


_started = time.monotonic()


def begin(arguments: Sequence[str], of_this_process: bool = False) -> None:
    """Notes the command line, without secrets, for `print_json`, and when it started, for `elapsed`.

    Args:
      arguments: the command line.
      of_this_process: whether it is that of this process, which began before it imported anything.
    """
    global _started
    _started = time.monotonic() - (process_seconds() if of_this_process else 0.0)
    _run.update(command=shlex.join(["rlds-beam", *map(without_secrets, arguments)]), start=now())


def elapsed() -> float:
    """The seconds since the command started."""
    return time.monotonic() - _started


def print_json(content: Mapping[str, Any]) -> None:
    """Prints the result of a command as JSON, with the version, the command line, and its start and end in UTC."""
    print(json_text({"version": __version__, **_run, "end": now(), **content}))


def format_flags(options: Any, group: type[Any]) -> Iterator[str]:
    """The options of a group that differ from their defaults, as flags without secrets."""
    for field in dataclasses.fields(group):
        value, flag = getattr(options, field.name), flag_name(field.name)
        if value == field.default or field.metadata.get("positional") or field.metadata.get("hidden"):
            continue
        if isinstance(value, bool):
            yield f"--{flag}" if value else f"--no_{flag}"
            continue
        texts = [*map(str, value)] if isinstance(value, tuple) else [str(value)]
        if not field.metadata.get("repeated"):
            texts = [",".join(texts)]
        yield from (without_secrets(f"--{flag}={text}") for text in texts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrintOptions(Options):
    """Output on the terminal."""

    json: bool = option(False, "print the report and errors as JSON")
    progress: Literal["auto", "plain", "none"] = option(
        "auto", "progress on stderr: a bar on a terminal, elsewhere (and with plain) a line every 30 seconds"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportOptions(PrintOptions):
    """What counts as success."""

    max_rejected: int | float = option(
        0,
        "rejected episodes to allow before exiting with code 3: a count or a fraction (0.01)",
        parse=parse_max_rejected,
    )


def json_text(content: Any) -> str:
    """JSON for a terminal: the values are exact, and every character is visible."""
    return json.dumps(content, indent=2).replace("\x7f", "\\u007f")
