"""The quality signals of a report, from the table of all episodes."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_beam.checking.signals.base import GROUPS, SIGNALS, Signal
from rlds_beam.checking.signals.results import findings
from rlds_beam.viewing.report.distributions import histogram_of, round_number
from rlds_beam.viewing.report.sections import SignalSection, WorstEpisode
from rlds_beam.viewing.report.shelf import worst_rows
from rlds_beam.viewing.report.tables import numbers_of

if TYPE_CHECKING:
    import pyarrow as pa


def signals_of(
    table: pa.Table, worst: int, thresholds: Mapping[str, float], check: Sequence[str]
) -> tuple[SignalSection, ...]:
    """The signals that could be measured, by group.

    Args:
      table: a row for each record (`EpisodeTable.finish`).
      worst: the number of worst episodes of each signal.
      thresholds: signal -> threshold, instead of the default.
      check: the beginning of the command that lists episodes by their signals.
    """
    keys = table["key"].to_pylist()
    sections = []
    for signal in sorted(SIGNALS.values(), key=lambda one: GROUPS.index(one.group)):
        if signal.name not in table.column_names:
            continue
        values = numbers_of(table[signal.name])
        if not np.isnan(values).all():
            rows = worst_rows(values, keys, worst, below=signal.below)
            threshold = thresholds.get(signal.name, signal.threshold)
            sections.append(_section(signal, threshold, values, [_worst(table, row, signal) for row in rows], check))
    return tuple(sections)


def _section(
    signal: Signal, threshold: float, values: Any, worst: Sequence[WorstEpisode], check: Sequence[str]
) -> SignalSection:
    known = values[~np.isnan(values)]
    beyond = int(np.count_nonzero(known < threshold if signal.below else known > threshold))
    numbers, counts = np.unique(known[np.isfinite(known)], return_counts=True)
    condition = f"{signal.name} {'<' if signal.below else '>'} {threshold:g}"
    return SignalSection(
        signal.name,
        signal.group,
        signal.summary,
        signal.unit,
        threshold,
        "below" if signal.below else "above",
        signal.relative,
        len(known),
        beyond,
        histogram_of((numbers, counts), len(known)),
        tuple(worst),
        signal.remedy,
        command=shlex.join([*check, f"--reject={condition}", "--write_exclude=exclude.txt"]) if beyond else "",
    )


def _worst(table: pa.Table, row: int, signal: Signal) -> WorstEpisode:
    """The place of a signal in an episode, whatever its threshold."""
    names = ["key", *(name for name in table.column_names if name.partition("@")[0] == signal.name)]
    values = table.select(names).slice(row, 1).to_pylist()[0]
    found = findings(values, {signal.name: math.inf if signal.below else -math.inf})
    finding = found[0] if found else None
    if finding is None:  # infinite
        return WorstEpisode(values["key"], float(values[signal.name]))
    return WorstEpisode(values["key"], round_number(finding.value), finding.field or "", finding.step, finding.stop)
