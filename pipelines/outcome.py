"""How a job ends: what it prints, and its exit code."""

from __future__ import annotations

import json
from typing import Any

from rlds_beam.errors import RejectedError
from rlds_beam.options import ReportOptions
from rlds_beam.report import Report
from rlds_beam.rules import DATASET_RULES


def exit_code(report: Report, options: ReportOptions) -> int:
    """0, or 3 where more was rejected than allowed, or a shard is not what the dataset says."""
    broken = any(report.rules[rule].rejected for rule in DATASET_RULES if rule in report.rules)
    return RejectedError.exit_code if broken or report.exceeds(options.max_rejected) else 0


def show(report: Report, options: ReportOptions, extra: dict[str, Any], lines: list[str]) -> None:
    """Prints the report: as JSON (with `extra`), or as a summary with `lines` behind it."""
    if options.json:
        print(json.dumps({**report.to_json(), **extra}, indent=2))
    else:
        print("\n".join([report.summary(), *lines]))
