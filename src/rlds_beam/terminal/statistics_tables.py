"""Statistics and quality signals as tables for a terminal."""

from __future__ import annotations

import fnmatch
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam.checking.signals.base import SIGNALS
from rlds_beam.checking.signals.results import DatasetFinding, group_reasons
from rlds_beam.episodes.columns import below
from rlds_beam.episodes.schema import named_dimension, shown_dimensions
from rlds_beam.terminal.tables import sparkline, table_lines
from rlds_beam.text import count, shorten

OF_EPISODES = ("episode_length", "episode_return")
"""The names of the statistics that are not those of a field."""

_COLUMNS = ("mean", "std", "min", "q01", "q50", "q99", "max")
_DEVIATION = 4  # calibration deviations up to this are chance, which exceeds it for one action in 750 cases
_MAX_ROWS = 60
_WIDTH = 80

Summary = Mapping[str, Any]


def statistics_lines(content: Mapping[str, Any], fields: Sequence[str] = ()) -> list[str]:
    """A table with a line for each dimension of a field, and for the episodes' lengths and returns.

    Args:
      content: `DatasetStatistics.to_json()`.
      fields: patterns of the fields to print, with all of their dimensions; empty for the first ones.
    """
    if not content["episodes"]:
        return ["episodes  none, so there are no statistics"]
    rows: list[tuple[str, ...]] = []
    left_out: list[str] = []
    total = 0
    for path, leaf in [*content["fields"].items(), *((name, content[name]) for name in OF_EPISODES if content[name])]:
        if fields and not is_chosen(path, fields):
            continue
        own = _field_rows(path, leaf)
        shown = own if fields else own[: shown_dimensions(len(own))]
        if not fields and path not in OF_EPISODES and len(rows) + len(shown) > _MAX_ROWS:
            shown = []
        total += len(own)
        rows += shown
        left_out += [path] if len(shown) < len(own) else []
    lines = [f"episodes  {content['episodes']:,}, {content['transitions']:,} transitions"]
    lines += table_lines(["", *_COLUMNS, "histogram"], rows) if rows else []
    if left_out:
        whole = f"--fields={shlex.quote(left_out[0])} prints a whole field, --output=FILE has everything"
        lines.append(f"shown     {len(rows):,} of {count(total, 'row')}; {whole}")
    if error := max((leaf["quantile_error"] for leaf in content["fields"].values()), default=0.0):
        lines.append(f"quantiles are within {error:.3%} of their value")
    return [*lines, *_propensity_lines(content.get("propensities"))]


def _field_rows(path: str, leaf: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The rows of a field, one for each dimension; the last cell is a histogram from the minimum to the maximum."""
    values = [np.reshape(leaf[name], -1) for name in _COLUMNS]
    shape = np.shape(leaf["mean"])
    names = [named_dimension(path, shape, i, leaf.get("names", ())) for i in range(len(values[0]))]
    counts: Any = np.reshape(leaf.get("histogram", []), (len(names), -1)) if names else []
    # The zero makes a bin without values the lowest bar.
    bars = [sparkline([0, *row], len(row) + 1)[1:] if row.any() else "" for row in counts]
    return [(name, *(f"{column[i]:.4g}" for column in values), bars[i]) for i, name in enumerate(names)]


def is_chosen(path: str, fields: Sequence[str]) -> bool:
    """Whether a field matches one of the patterns; a pattern without `/` or `*` also names all fields below it."""
    return any(fnmatch.fnmatchcase(path, pattern) or below(path, pattern) for pattern in fields)


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


def signal_lines(signals: Mapping[str, Summary]) -> list[str]:
    """A line for each signal beyond its threshold, the one with the most episodes first; then the names of the others.

    Args:
      signals: the result of `checking.signals.results.summarize`.
    """
    found = [(name, signal) for name, signal in signals.items() if signal["beyond"]]
    found.sort(key=lambda item: -item[1]["beyond"])
    rows = [
        (name, f"> {signal['threshold']:.3g}", f"{signal['beyond']:,}", f"{e['value']:.3g}", _place(e), e["key"])
        for name, signal in found
        for e in signal["worst"][:1]
    ]
    lines = table_lines(("signal", "threshold", "episodes", "worst", "step", "worst episode"), rows) if rows else []
    within = [name for name, signal in signals.items() if signal["measured"] and not signal["beyond"]]
    lines += _fill("within", ", ".join(within)) if within else []
    reasons = {name: signal["unmeasured"] for name, signal in signals.items() if signal["unmeasured"]}
    for label, text in group_reasons(reasons):
        lines += _fill(label, text)
    return [*lines, *(["details   --signal=NAME shows the worst episodes of a signal"] if found else [])]


def worst_lines(name: str, summary: Summary) -> list[str]:
    """The meaning of a signal, and its worst episodes.

    Args:
      name: the signal.
      summary: its entry in the result of `summarize`.
    """
    signal = SIGNALS[name]
    lines = [
        *_fill("signal", f"{name}: {signal.summary} ({signal.unit})"),
        f"threshold > {summary['threshold']:.3g}: {summary['beyond']:,} of {count(summary['measured'], 'episode')}",
        *_fill("remedy", signal.remedy),
    ]
    if not summary["measured"]:
        label, _, need = summary["unmeasured"].partition(": ")
        return [*lines, f"{label:<10}{need}"]
    rows = [
        (f"{e['value']:.3g}", e["field"] or "", _place(e), e["key"], shorten(e["instruction"] or "", 40))
        for e in summary["worst"]
    ]
    return [*lines, *table_lines(("value", "field", "step", "episode", "instruction"), rows)]


def finding_lines(findings: Sequence[DatasetFinding]) -> list[str]:
    """A line for each check of the whole dataset that found something: its first field, and how many others."""
    checks: dict[str, list[DatasetFinding]] = {}
    for finding in findings:
        checks.setdefault(finding.check, []).append(finding)
    rows = [
        (name, shorten(first.field, 30) + (f" and {len(others)} more" if others else ""), shorten(first.detail, 80))
        for name, (first, *others) in checks.items()
    ]
    details = "details   --json lists what was found in the dataset, and what to do"
    return [*table_lines(("dataset", "field", "found"), rows), details] if rows else []


def _place(worst: Summary) -> str:
    """`12`, or `12-17`; empty if the signal is about the whole episode."""
    if worst["step"] is None:
        return ""
    last = worst["step"] if worst["stop"] is None else worst["stop"] - 1
    return f"{worst['step']}-{last}" if last > worst["step"] else str(worst["step"])


def _fill(label: str, text: str) -> list[str]:
    """A labeled text in lines of at most 80 characters."""
    indent = " " * 10
    return textwrap.wrap(text, _WIDTH, initial_indent=f"{label:10}", subsequent_indent=indent, break_on_hyphens=False)
