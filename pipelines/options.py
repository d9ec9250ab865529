"""What counts as success, and what a command prints: the options."""

from __future__ import annotations

import dataclasses
from typing import Literal

from rlds_beam.errors import UsageError
from rlds_beam.options import Options, option


def parse_max_rejected(text: str) -> int | float:
    """Reads `--max_rejected`: `12` is a count; `0.05` and `5%` are a fraction of the records read.

    Raises:
      UsageError: it is neither, or is negative, or a fraction above 1.
    """
    try:
        if text.strip().isdecimal():
            return int(text)
        fraction = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        fraction = -1.0
    if not 0 <= fraction <= 1:
        raise UsageError(f"--max_rejected={text}: expected a count (12) or a share of the records (0.05 or 5%)")
    return fraction


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrintOptions(Options):
    """What is printed."""

    json: bool = option(False, "print the report, and errors, as JSON")
    progress: Literal["auto", "plain", "none"] = option(
        "auto", "on standard error: a live line on a terminal, or a plain line every 30 seconds"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportOptions(PrintOptions):
    """What counts as success."""

    max_rejected: int | float = option(
        0, "episodes that may be rejected without exit code 3: a count, or a fraction (0.01)",
        parse=parse_max_rejected,
    )  # fmt: skip
