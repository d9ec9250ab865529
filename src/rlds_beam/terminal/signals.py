"""Quality signals as tables for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from rlds_beam.checking.signals.base import SIGNALS
from rlds_beam.checking.signals.dataset import DatasetFinding
from rlds_beam.checking.signals.results import grouped
from rlds_beam.terminal.tables import table_lines
from rlds_beam.text import count, shortened

_WIDTH = 80
Summary = Mapping[str, Any]


def signal_lines(signals: Mapping[str, Summary]) -> list[str]:
    """A line for each signal beyond its threshold, the one with the most episodes first; then the names of the others.

    Args:
      signals: the result of `checking.signals.results.summarize`.
    """
    found = sorted((name for name, one in signals.items() if one["beyond"]), key=lambda name: -signals[name]["beyond"])
    rows = []
    for name in found:
        one, worst = signals[name], signals[name]["worst"][0]
        rows.append(
            (name, threshold_of(name, one), f"{one['beyond']:,}", _number(worst["value"]), _place(worst), worst["key"])
        )
    lines = table_lines(("signal", "threshold", "episodes", "worst", "step", "worst episode"), rows) if rows else []
    reasons = {name: one["unmeasured"] for name, one in signals.items() if one["unmeasured"]}
    return [
        *lines,
        *_names("within    ", [name for name, one in signals.items() if one["measured"] and not one["beyond"]]),
        *(line for label, text in grouped(reasons) for line in _filled(f"{label:<10}", text)),
        *(["details   --signal=NAME shows the worst episodes of a signal"] if found else []),
    ]


def worst_lines(name: str, summary: Summary) -> list[str]:
    """What a signal means, and its worst episodes.

    Args:
      name: the signal.
      summary: its entry in the result of `summarize`.
    """
    signal = SIGNALS[name]
    lines = [
        *_filled("signal    ", f"{name}: {signal.summary} ({signal.unit})"),
        f"threshold {threshold_of(name, summary)}: {summary['beyond']:,} of {count(summary['measured'], 'episode')}",
        *_filled("remedy    ", signal.remedy),
    ]
    if not summary["measured"]:
        label, _, need = summary["unmeasured"].partition(": ")
        return [*lines, f"{label:<10}{need}"]
    rows = [
        (_number(one["value"]), one["field"] or "", _place(one), one["key"], shortened(one["instruction"] or "", 40))
        for one in summary["worst"]
    ]
    return [*lines, *table_lines(("value", "field", "step", "episode", "instruction"), rows)]


def finding_lines(findings: Sequence[DatasetFinding]) -> list[str]:
    """A line for each check of the whole dataset that found something: its first field, and how many others."""
    if not findings:
        return []
    checks: dict[str, list[DatasetFinding]] = {}
    for one in findings:
        checks.setdefault(one.check, []).append(one)
    rows = [
        (name, shortened(first.field, 30) + (f" and {len(others)} more" if others else ""), first.detail)
        for name, (first, *others) in checks.items()
    ]
    table = table_lines(("dataset", "field", "found"), rows, _WIDTH)
    return [*table, "details   --json lists what was found in the dataset, and what to do"]


def threshold_of(name: str, summary: Summary) -> str:
    """`> 0.2`: which values are beyond the threshold."""
    return f"{'<' if SIGNALS[name].below else '>'} {_number(summary['threshold'])}"


def _number(value: float) -> str:
    return f"{value:.3g}"


def _place(worst: Summary) -> str:
    """`12`, or `12-17`; empty if the signal is about the whole episode."""
    if worst["step"] is None:
        return ""
    last = worst["step"] if worst["stop"] is None else worst["stop"] - 1
    return f"{worst['step']}-{last}" if last > worst["step"] else str(worst["step"])


def _names(title: str, names: list[str]) -> list[str]:
    return _filled(title, ", ".join(names)) if names else []


def _filled(title: str, text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=title, subsequent_indent=" " * len(title), break_on_hyphens=False)
