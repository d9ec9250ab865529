"""The distributions of a report, from statistics: quantiles and histograms of lengths, returns, and fields."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from rlds_beam.connectors.statistics.episode_statistics import QUANTILES, EpisodeStatistics, LeafStatistics
from rlds_beam.episodes.schema import dimension_labels, shown_dimensions
from rlds_beam.typing import Array
from rlds_beam.viewing.episode_view import Json

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
