"""The quality signals, instructions, metadata, and distributions of a report: numbers of all episodes."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_beam.checking.signals.base import GROUPS, SIGNALS, Signal
from rlds_beam.checking.signals.results import findings
from rlds_beam.connectors.statistics.episode_statistics import QUANTILES, EpisodeStatistics, LeafStatistics
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.episodes.schema import dimension_labels, shown_dimensions
from rlds_beam.text import printable
from rlds_beam.typing import Array
from rlds_beam.viewing.episode_view import Json

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


def worst_rows(values: np.ndarray[Any, Any], keys: Sequence[str], count: int) -> list[int]:
    """The rows with the largest values, worst first; equal ones by key. NaN is no value."""
    known = np.flatnonzero(~np.isnan(values))
    if len(known) > count:  # keep all rows that are as bad as the last one
        limit = np.partition(-values[known], count - 1)[count - 1]
        known = known[-values[known] <= limit]
    return sorted(known.tolist(), key=lambda row: (-values[row], EpisodeKey.parse(keys[row])))[:count]


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


BINS = 32
"""The number of bins of a histogram."""

MAX_DISTRIBUTIONS = 400
"""Maximum dimensions of all fields together that are shown."""

_TAIL = 1.0
"""Values beyond the 1% and 99% quantiles by more than this many times their distance are in the outermost bins."""

Weighted = tuple[Array, Array]
"""Distinct finite values, ascending, and their counts."""


def make_distributions(statistics: EpisodeStatistics, names: Mapping[str, Sequence[str]] = {}) -> Json:
    """The distributions of accepted episodes, within the limits for dimensions, with the names of their values."""
    room, fields = MAX_DISTRIBUTIONS, []
    for path in sorted(statistics.leaves, key=_rank):
        leaf = statistics.leaves[path]
        size = math.prod(leaf.shape)
        shown = min(shown_dimensions(size), room)
        if shown:
            fields.append(_of_field(path, leaf, shown, names.get(path, ())))
            room -= shown
    return {
        "length": None if statistics.lengths is None else make_distribution(statistics.lengths, 0, ""),
        "total": None if statistics.returns is None else make_distribution(statistics.returns, 0, ""),
        "fields": fields,
        "left_out": len(statistics.leaves) - len(fields),
    }


def _rank(path: str) -> tuple[bool, str]:
    """Actions and rewards come first, so that they are never left out."""
    return path.partition("/")[0] not in ("action", "reward"), path


def _of_field(path: str, leaf: LeafStatistics, shown: int, names: Sequence[str]) -> Json:
    labels = dimension_labels(leaf.shape, shown, names)
    return {
        "path": path,
        "dimensions": [make_distribution(leaf, i, label) for i, label in enumerate(labels)],
        "left_out": math.prod(leaf.shape) - shown,
        "constant": int(np.count_nonzero(leaf.low == leaf.high)),
    }


def make_distribution(leaf: LeafStatistics, dimension: int, label: str) -> Json:
    """The distribution of one dimension; numbers that are not finite are None."""
    values = leaf.distribution.weighted(dimension)
    quantiles = _quantiles(values) if values[1].sum() == leaf.count else [math.nan] * len(QUANTILES)
    return {
        "label": label,
        "count": leaf.count,
        "mean": finite(leaf.mean[dimension]),
        "std": finite(leaf.std[dimension]),
        "least": finite(leaf.low[dimension]),
        "most": finite(leaf.high[dimension]),
        "quantiles": [(name, finite(value)) for name, value in zip(QUANTILES, quantiles, strict=True)],
        "histogram": count_bins(values, leaf.count),
    }


def count_bins(values: Weighted, count: int) -> Json:
    """A histogram: `edges` (one more than `counts`), `counts`, and how many values are `outside`: NaN or infinite.

    What is below or above all edges is in the outermost bins. A constant has one bin with equal edges.

    Args:
      values: distinct finite values, ascending, and their counts.
      count: the number of values with those that are not finite.
    """
    edges = choose_edges(values)
    if not len(edges):
        return {"edges": [], "counts": [], "outside": count}
    numbers, counts = values
    bins = np.clip(np.searchsorted(edges, numbers, side="right") - 1, 0, len(edges) - 2)
    total = np.bincount(bins, weights=counts, minlength=len(edges) - 1).astype(np.int64)
    return {
        "edges": [round_number(edge) for edge in edges.tolist()],
        "counts": total.tolist(),
        "outside": count - int(total.sum()),
    }


def choose_edges(values: Weighted) -> Array:
    """Edges of equal bins that suit these values; no edges without values.

    A few whole numbers get a bin each. Far tails share the outermost bins.
    """
    numbers, _ = values
    if not len(numbers):
        return np.zeros(0)
    low, high = float(numbers[0]), float(numbers[-1])
    if low == high:
        return np.array([low, high])
    if high - low <= BINS and bool((numbers == np.round(numbers)).all()):
        return np.arange(low, high + 2) - 0.5
    q01, _, _, _, q99 = _quantiles(values)
    tail = _TAIL * (q99 - q01)
    if math.isfinite(tail) and tail > 0:
        low, high = max(low, q01 - tail), min(high, q99 + tail)
    with np.errstate(over="ignore"):
        shares = np.linspace(0.0, 1.0, BINS + 1)
        return np.asarray(np.unique(low * (1 - shares) + high * shares))


def _quantiles(values: Weighted) -> Sequence[float]:
    """The quantiles `QUANTILES`, with linear interpolation as in `np.quantile`."""
    numbers, counts = values
    ends = np.cumsum(counts)
    if not len(ends):
        return [math.nan] * len(QUANTILES)
    places = np.array(list(QUANTILES.values())) * (ends[-1] - 1)
    low = np.floor(places).astype(np.int64)
    below = numbers[np.searchsorted(ends, low, side="right")]
    above = numbers[np.searchsorted(ends, np.minimum(low + 1, ends[-1] - 1), side="right")]
    shares = places - low
    found: list[float] = (below * (1 - shares) + above * shares).tolist()
    return found


def round_number(value: float) -> float:
    """A number with 6 significant digits, to keep the report small."""
    return float(f"{value:.6g}")


def finite(value: float) -> float | None:
    """The rounded number; None for NaN and infinity."""
    return round_number(float(value)) if math.isfinite(value) else None
