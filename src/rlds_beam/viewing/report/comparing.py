"""Compares two datasets: their schemas, the distributions of what both have, and their texts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_beam.connectors.statistics.episode_statistics import EpisodeStatistics, LeafStatistics
from rlds_beam.episodes.schema import Field, Schema, dimension_labels, kind_of, shown_dimensions
from rlds_beam.text import printable
from rlds_beam.typing import Array
from rlds_beam.viewing.report.distributions import (
    MAX_DISTRIBUTIONS,
    Weighted,
    distribution_of,
    edges_of,
    round_number,
)
from rlds_beam.viewing.report.document import ComparisonSection, Drift, Measure, SchemaDifference
from rlds_beam.viewing.report.tables import counts_of, text_columns

if TYPE_CHECKING:
    import pyarrow as pa


MEASURES = (
    Measure(
        "KS",
        "the largest difference between the two cumulative distributions, over all values",
        "the two-sample Kolmogorov-Smirnov statistic (Smirnov, 1948)",
        "0: equal; 1: no overlap. It does not depend on the scale of the values.",
    ),
    Measure(
        "PSI",
        "the sum over bins of (p - q) ln(p / q), with p and q the shares of the two datasets; the bins are tenths of "
        "the first dataset, and an empty bin counts as 0.0001",
        "the population stability index (Siddiqi, Credit Risk Scorecards, 2006)",
        "below 0.1: about equal; 0.1 to 0.25: some drift; above 0.25: much drift.",
    ),
    Measure(
        "L-infinity",
        "the largest difference between the shares of one text in the two datasets",
        "TensorFlow Data Validation, for categorical features",
        "0: equal; 1: no text in common.",
    ),
)
"""The measures of drift."""

_TENTHS = 10
_EMPTY = 1e-4


def compare(
    names: tuple[str, str],
    schemas: tuple[Schema, Schema],
    statistics: tuple[EpisodeStatistics, EpisodeStatistics],
    tables: tuple[pa.Table, pa.Table],
) -> ComparisonSection:
    """The differences between two datasets."""
    of_values = {**schemas[1].names, **schemas[0].names}
    drifts = sorted(_drifts(*statistics, of_values), key=lambda drift: (-drift.ks, drift.field, drift.label))
    texts = sorted(_texts(*tables), key=lambda text: (-text[1], text[0]))
    shown = tuple(drifts[:MAX_DISTRIBUTIONS])
    return ComparisonSection(
        *names, tuple(_differences(*schemas)), shown, len(drifts) - len(shown), tuple(texts), MEASURES
    )


def ks_distance(first: Weighted, second: Weighted) -> float:
    """The largest difference between the cumulative distributions of two samples; NaN if one is empty."""
    if not len(first[0]) or not len(second[0]):
        return math.nan
    places = np.unique(np.concatenate([first[0], second[0]]))
    shares = [_cumulate(sample, places) for sample in (first, second)]
    return float(np.abs(shares[0] - shares[1]).max())


def stability_index(first: Weighted, second: Weighted) -> float:
    """The population stability index over the tenths of the first sample; NaN if one is empty."""
    if not len(first[0]) or not len(second[0]):
        return math.nan
    ends = np.cumsum(first[1])
    tenths = np.searchsorted(ends, ends[-1] * np.arange(1, _TENTHS) / _TENTHS)
    edges = np.unique(first[0][tenths])
    if edges[0] == first[0][0]:  # a tenth or more are the smallest value: values below it need their own bin
        edges = np.insert(edges, 0, np.nextafter(edges[0], -np.inf))
    p, q = (np.diff([0.0, *_cumulate(sample, edges), 1.0]) for sample in (first, second))
    p, q = np.maximum(p, _EMPTY), np.maximum(q, _EMPTY)
    return float(((p - q) * np.log(p / q)).sum())


def _cumulate(sample: Weighted, places: Array) -> Array:
    """The share of a sample at or below each place."""
    values, counts = sample
    sums = np.concatenate([[0], np.cumsum(counts)])
    return np.asarray(sums[np.searchsorted(values, places, side="right")] / sums[-1])


def _drifts(first: EpisodeStatistics, second: EpisodeStatistics, names: Mapping[str, Sequence[str]]) -> Iterator[Drift]:
    """The drift of each number that both datasets have."""
    of_episodes = (("length", first.lengths, second.lengths), ("return", first.returns, second.returns))
    both = ((path, leaf, second.leaves.get(path)) for path, leaf in first.leaves.items())
    for path, one, other in (*of_episodes, *both):
        if one is not None and other is not None and one.shape == other.shape:
            shown = shown_dimensions(math.prod(one.shape))
            for dimension, label in enumerate(dimension_labels(one.shape, shown, names.get(path, ()))):
                yield _drift(path, label, one, other, dimension)


def _drift(path: str, label: str, one: LeafStatistics, other: LeafStatistics, dimension: int) -> Drift:
    values = [leaf.distribution.weighted(dimension) for leaf in (one, other)]
    edges = edges_of(*values)
    first, second = (distribution_of(leaf, dimension, label, edges) for leaf in (one, other))
    return Drift(path, label, _known(ks_distance(*values)), _known(stability_index(*values)), first, second)


def _known(value: float) -> float:
    return 0.0 if math.isnan(value) else round_number(value)


def _differences(first: Schema, second: Schema) -> Iterator[SchemaDifference]:
    levels: tuple[tuple[Any, Mapping[str, Field], Mapping[str, Field]], ...] = (
        ("step", first.steps, second.steps),
        ("episode", first.metadata, second.metadata),
    )
    for level, one, other in levels:
        for path in sorted({*one, *other}):
            kinds = [kind_of(fields[path]) if path in fields else "" for fields in (one, other)]
            if kinds[0] != kinds[1]:
                yield SchemaDifference(path, level, *kinds)


def _texts(first: pa.Table, second: pa.Table) -> Iterator[tuple[str, float, str]]:
    """The L-infinity distance of each text field of both datasets, and the text that differs most."""
    columns, others = text_columns(first), text_columns(second)
    for field in sorted(columns.keys() & others.keys()):
        counts, other = counts_of(columns[field]), counts_of(others[field])
        if not counts or not other:
            continue
        total, of_other = sum(counts.values()), sum(other.values())
        far = {text: abs(counts.get(text, 0) / total - other.get(text, 0) / of_other) for text in {*counts, *other}}
        text = min(far, key=lambda one: (-far[one], one))
        yield field, round_number(far[text]), printable(text, 300)
