"""Options for what a command prints and what counts as success."""

from __future__ import annotations

import dataclasses
from typing import Literal

from rlds_beam.errors import UsageError
from rlds_beam.options import Options, option


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrintOptions(Options):
    """Output on the terminal."""

    json: bool = option(False, "print the report and errors as JSON")
    progress: Literal["auto", "plain", "none"] = option(
        "auto", "progress on stderr: a bar on a terminal, or a plain line every 30 seconds"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportOptions(PrintOptions):
    """What counts as success."""

    max_rejected: int | float = option(
        0, "rejected episodes to allow before exiting with code 3: a count or a fraction (0.01)",
        parse=parse_max_rejected,
    )  # fmt: skip
