"""The quality signals, instructions, and metadata of a report, from the table of all episodes."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_beam.checking.signals.base import GROUPS, SIGNALS, Signal
from rlds_beam.checking.signals.results import findings
from rlds_beam.text import printable
from rlds_beam.viewing.episode_view import Json
from rlds_beam.viewing.report.distributions import count_bins, finite
from rlds_beam.viewing.report.episodes import worst_rows

if TYPE_CHECKING:
    import pyarrow as pa


def collect_signals(table: pa.Table, worst: int, thresholds: Mapping[str, float], check: Sequence[str]) -> list[Json]:
    """The signals that could be measured, by group.

    Args:
      table: a row for each record (`EpisodeTable.finish`).
      worst: the number of worst episodes of each signal.
      thresholds: signal -> threshold, instead of the default.
      check: the beginning of the command that lists episodes by their signals.
    """
    import pyarrow as pa

    keys = table["key"].to_pylist()
    sections = []
    for signal in sorted(SIGNALS.values(), key=lambda signal: GROUPS.index(signal.group)):
        if signal.name not in table.column_names:
            continue
        values = table[signal.name].cast(pa.float64()).to_numpy()  # NaN for null
        if not np.isnan(values).all():
            rows = worst_rows(values, keys, worst)
            threshold = thresholds.get(signal.name, signal.threshold)
            sections.append(_section(signal, threshold, values, [_worst(table, row, signal) for row in rows], check))
    return sections


def _section(signal: Signal, threshold: float, values: Any, worst: list[Json], check: Sequence[str]) -> Json:
    known = values[~np.isnan(values)]
    beyond = int(np.count_nonzero(known > threshold))
    numbers, counts = np.unique(known[np.isfinite(known)], return_counts=True)
    condition = f"{signal.name} > {threshold:g}"
    return {
        "name": signal.name,
        "group": signal.group,
        "summary": signal.summary,
        "unit": signal.unit,
        "threshold": threshold,
        "relative": signal.relative,
        "measured": len(known),
        "beyond": beyond,
        "histogram": count_bins((numbers, counts), len(known)),
        "worst": worst,
        "remedy": signal.remedy,
        "command": shlex.join([*check, f"--reject={condition}", "--write_exclude=exclude.txt"]) if beyond else "",
    }


def _worst(table: pa.Table, row: int, signal: Signal) -> Json:
    """The place of a signal in an episode, whatever its threshold."""
    names = ["key", *(name for name in table.column_names if name.partition("@")[0] == signal.name)]
    values = table.select(names).slice(row, 1).to_pylist()[0]
    found = findings(values, {signal.name: -math.inf})
    finding = found[0] if found else None
    if finding is None:  # infinite
        return {"key": values["key"], "value": None, "field": "", "step": None, "stop": None}
    return {
        "key": values["key"],
        "value": finite(finding.value),
        "field": finding.field or "",
        "step": finding.step,
        "stop": finding.stop,
    }


MAX_TEXTS = 30
"""Texts of a field that are shown."""

MAX_FIELDS = 20
"""Metadata fields that are shown."""

_MAX_CHARACTERS = 300


def count_texts(table: pa.Table) -> list[Json]:
    """The instructions and the metadata of accepted episodes, by how many episodes have them.

    A metadata field in which each episode has its own value, such as an id, is left out.
    """
    import pyarrow.compute as pc

    accepted = pc.is_null(table["rule"])
    names = [name for name in table.column_names if name == "instruction" or name.startswith("metadata/")]
    tables = []
    for name in names:
        field, column = name.removeprefix("metadata/"), table[name].filter(accepted)
        made = _make_table(field, column)
        unique = made["distinct"] == len(column) > 1
        if made["distinct"] and not (unique and field != "instruction"):
            tables.append(made)
    tables.sort(key=lambda table: (table["field"] != "instruction", table["field"]))
    return tables[: MAX_FIELDS + 1]


def count_values(column: Any) -> dict[str, int]:
    """The number of rows with each text; empty texts are missing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = column if pa.types.is_string(column.type) else column.cast(pa.string())
    counted = pc.value_counts(texts.combine_chunks().drop_null())
    pairs = zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True)
    return {text: episodes for text, episodes in pairs if text}


def _make_table(field: str, column: Any) -> Json:
    pairs = sorted(count_values(column).items(), key=lambda pair: (-pair[1], pair[0]))
    shown = [{"text": printable(text, _MAX_CHARACTERS), "episodes": episodes} for text, episodes in pairs[:MAX_TEXTS]]
    known = sum(episodes for _, episodes in pairs)
    return {
        "field": field,
        "values": shown,
        "distinct": len(pairs),
        "others": known - sum(episodes for _, episodes in pairs[:MAX_TEXTS]),
        "missing": len(column) - known,
    }
