"""Statistics and quality signals as tables for a terminal."""

from __future__ import annotations

import fnmatch
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from rlds_beam.checking.signals.base import SIGNALS
from rlds_beam.checking.signals.dataset import DatasetFinding
from rlds_beam.checking.signals.results import group_reasons
from rlds_beam.episodes.columns import below
from rlds_beam.episodes.schema import MAX_UNFOLDED, named_dimension, shown_dimensions
from rlds_beam.terminal.tables import sparkline, table_lines
from rlds_beam.text import count, shorten

Row: TypeAlias = "tuple[str, ...]"
"""The cells of a dimension: its name, `_COLUMNS`, and a histogram."""

OF_EPISODES = ("episode_length", "episode_return")
"""The names of the statistics that are not those of a field."""

_COLUMNS = ("mean", "std", "min", "q01", "q50", "q99", "max")
_DEVIATION = 4
"""Calibration deviations up to this are attributed to chance; for one action, chance exceeds it once in 750 cases."""

_MAX_ROWS = 28  # of a table, so that it fits a screen

_ALWAYS = 6
"""Fields that are printed whole on any screen: lengths, returns, and for example an action and three states."""


def statistics_lines(content: Mapping[str, Any], fields: Sequence[str] = ()) -> list[str]:
    """A table of at most a screen: a line for each dimension of a field, and for the episodes' lengths and returns.

    Args:
      content: `DatasetStatistics.to_json()`.
      fields: patterns of the fields to print, with all of their dimensions; empty for as many as fit a screen.
    """
    if not content["episodes"]:
        return ["episodes  none, so there are no statistics"]
    leaves = {**content["fields"], **{name: content[name] for name in OF_EPISODES if content[name]}}
    groups = {path: _rows(path, leaf) for path, leaf in leaves.items() if not fields or is_chosen(path, fields)}
    numbers = {path: len(rows) for path, rows in groups.items()}
    taken = numbers if fields else _fitting(numbers)
    rows = [row for path, number in taken.items() for row in groups[path][:number]]
    return [
        f"episodes  {content['episodes']:,}, {content['transitions']:,} transitions",
        *(table_lines(["", *_COLUMNS, "histogram"], rows) if rows else ()),
        *_left_out_line(numbers, taken),
        *_exactness(content),
        *_propensity_lines(content.get("propensities")),
    ]


def _rows(path: str, leaf: Mapping[str, Any]) -> list[Row]:
    """The rows of a field, one for each dimension; the last cell is a histogram from the minimum to the maximum."""
    values = [np.reshape(leaf[name], -1) for name in _COLUMNS]
    shape = np.shape(leaf["mean"])
    names = [named_dimension(path, shape, i, leaf.get("names", ())) for i in range(len(values[0]))]
    bars = [""] * len(names)
    if "histogram" in leaf:
        counts = np.asarray(leaf["histogram"])
        bars = [_bars(row) for row in counts.reshape(len(names), counts.shape[-1])]
    return [(name, *(f"{column[i]:.4g}" for column in values), bars[i]) for i, name in enumerate(names)]


def _bars(counts: np.ndarray[Any, Any]) -> str:
    """A histogram as a line of text: a bin without values is the lowest bar."""
    return sparkline([0, *counts], len(counts) + 1)[1:] if counts.any() else ""


def is_chosen(path: str, fields: Sequence[str]) -> bool:
    """Whether a field matches one of the patterns; a pattern without `/` or `*` also names all fields below it."""
    return any(fnmatch.fnmatchcase(path, pattern) or below(path, pattern) for pattern in fields)


def _fitting(numbers: Mapping[str, int]) -> dict[str, int]:
    """The number of rows of each field to print: no field of up to `MAX_UNFOLDED` dimensions is cut.

    Lengths, returns, and the first fields are always printed, the others if a screen has room; of a field with more
    dimensions the first ones, in the room that is left.
    """
    room = _MAX_ROWS
    taken = dict.fromkeys(numbers, 0)
    order = sorted(numbers, key=lambda path: (path not in OF_EPISODES, numbers[path] > MAX_UNFOLDED))
    for place, path in enumerate(order):
        rows = shown_dimensions(numbers[path])
        if numbers[path] > MAX_UNFOLDED:
            rows = max(min(rows, room), 0)
        if rows <= room or place < _ALWAYS:
            taken[path] = rows
            room -= rows
    return taken


def _left_out_line(numbers: Mapping[str, int], taken: Mapping[str, int]) -> list[str]:
    """The line on rows that are not in the table, and how to see them."""
    cut_short = [path for path, number in numbers.items() if taken[path] < number]
    if not cut_short:
        return []
    shown = f"{sum(taken.values()):,} of {count(sum(numbers.values()), 'row')}"
    return [
        f"shown     {shown}; --fields={shlex.quote(cut_short[0])} prints a whole field, --output=FILE has everything"
    ]


def _exactness(content: Mapping[str, Any]) -> list[str]:
    error = max((leaf["quantile_error"] for leaf in content["fields"].values()), default=0.0)
    return [f"quantiles are within {error:.3%} of their value"] if error else []


def _propensity_lines(content: Mapping[str, Any] | None) -> list[str]:
    """Lines on whether the data allows off-policy evaluation (`PropensityStatistics.to_json`)."""
    if content is None:
        return []
    lines = [f"propensity      of {content['transitions']:,} transitions, the smallest {content['smallest']:.4g}"]
    if "calibration" in content:
        worst = content["calibration"]["largest_deviation"]
        fit = "fit" if worst <= _DEVIATION else "DO NOT FIT"
        chance = f"deviation {worst:.1f}; up to {_DEVIATION} is chance"
        lines.append(f"calibration     propensities {fit} how often actions occur ({chance})")
    if "support" in content:
        support, sizes = content["support"], content["effective_sample_size"]
        lines.append(f"support         mean ratio {support['mean']:.4f} +- {support['error']:.4f}; 1 is full support")
        lines.append(
            f"effective size  {sizes['transitions']:,.1f} of {sizes['of_transitions']:,} transitions, "
            f"{sizes['episodes']:,.1f} of {sizes['of_episodes']:,} episodes"
        )
    return lines


_WIDTH = 80
Summary = Mapping[str, Any]


def signal_lines(signals: Mapping[str, Summary]) -> list[str]:
    """A line for each signal beyond its threshold, the one with the most episodes first; then the names of the others.

    Args:
      signals: the result of `checking.signals.results.summarize`.
    """
    found = sorted(
        (name for name, signal in signals.items() if signal["beyond"]), key=lambda name: -signals[name]["beyond"]
    )
    rows = []
    for name in found:
        signal, worst = signals[name], signals[name]["worst"][0]
        rows.append(
            (
                name,
                format_threshold(name, signal),
                f"{signal['beyond']:,}",
                _number(worst["value"]),
                _place(worst),
                worst["key"],
            )
        )
    lines = table_lines(("signal", "threshold", "episodes", "worst", "step", "worst episode"), rows) if rows else []
    reasons = {name: signal["unmeasured"] for name, signal in signals.items() if signal["unmeasured"]}
    return [
        *lines,
        *_names(
            "within    ", [name for name, signal in signals.items() if signal["measured"] and not signal["beyond"]]
        ),
        *(line for label, text in group_reasons(reasons) for line in _fill(f"{label:<10}", text)),
        *(["details   --signal=NAME shows the worst episodes of a signal"] if found else []),
    ]


def worst_lines(name: str, summary: Summary) -> list[str]:
    """The meaning of a signal, and its worst episodes.

    Args:
      name: the signal.
      summary: its entry in the result of `summarize`.
    """
    signal, threshold = SIGNALS[name], format_threshold(name, summary)
    lines = [
        *_fill("signal    ", f"{name}: {signal.summary} ({signal.unit})"),
        f"threshold {threshold}: {summary['beyond']:,} of {count(summary['measured'], 'episode')}",
        *_fill("remedy    ", signal.remedy),
    ]
    if not summary["measured"]:
        label, _, need = summary["unmeasured"].partition(": ")
        return [*lines, f"{label:<10}{need}"]
    rows = [
        (
            _number(episode["value"]),
            episode["field"] or "",
            _place(episode),
            episode["key"],
            shorten(episode["instruction"] or "", 40),
        )
        for episode in summary["worst"]
    ]
    return [*lines, *table_lines(("value", "field", "step", "episode", "instruction"), rows)]


def finding_lines(findings: Sequence[DatasetFinding]) -> list[str]:
    """A line for each check of the whole dataset that found something: its first field, and how many others."""
    if not findings:
        return []
    checks: dict[str, list[DatasetFinding]] = {}
    for finding in findings:
        checks.setdefault(finding.check, []).append(finding)
    rows = [
        (name, shorten(first.field, 30) + (f" and {len(others)} more" if others else ""), shorten(first.detail, 80))
        for name, (first, *others) in checks.items()
    ]
    return [
        *table_lines(("dataset", "field", "found"), rows),
        "details   --json lists what was found in the dataset, and what to do",
    ]


def format_threshold(name: str, summary: Summary) -> str:
    """`> 0.2`: which values are beyond the threshold."""
    return f"> {_number(summary['threshold'])}"


def _number(value: float) -> str:
    return f"{value:.3g}"


def _place(worst: Summary) -> str:
    """`12`, or `12-17`; empty if the signal is about the whole episode."""
    if worst["step"] is None:
        return ""
    last = worst["step"] if worst["stop"] is None else worst["stop"] - 1
    return f"{worst['step']}-{last}" if last > worst["step"] else str(worst["step"])


def _names(title: str, names: list[str]) -> list[str]:
    return _fill(title, ", ".join(names)) if names else []


def _fill(title: str, text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=title, subsequent_indent=" " * len(title), break_on_hyphens=False)
