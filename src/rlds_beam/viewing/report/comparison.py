"""Compares two datasets by schemas and distributions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from rlds_beam.connectors.statistics.episode_statistics import EpisodeStatistics
from rlds_beam.episodes.schema import Schema, dimension_labels, find_differences, shown_dimensions
from rlds_beam.viewing.episode_view import Json
from rlds_beam.viewing.report.distributions import MAX_DISTRIBUTIONS, choose_edges, make_distribution


def compare(
    names: tuple[str, str],
    schemas: tuple[Schema, Schema],
    statistics: tuple[EpisodeStatistics, EpisodeStatistics],
) -> Json:
    """The fields that differ between two datasets, and the distributions of numbers that both have."""
    pairs = [*_pairs(*statistics, {**schemas[1].names, **schemas[0].names})]
    return {
        "first": names[0],
        "second": names[1],
        "schema": find_differences(*schemas),
        "pairs": pairs[:MAX_DISTRIBUTIONS],
        "left_out": max(0, len(pairs) - MAX_DISTRIBUTIONS),
    }


def _pairs(first: EpisodeStatistics, second: EpisodeStatistics, names: Mapping[str, Sequence[str]]) -> Iterator[Json]:
    """The distributions of each number that both datasets have."""
    of_episodes = (("length", first.lengths, second.lengths), ("return", first.returns, second.returns))
    both = ((path, leaf, second.leaves.get(path)) for path, leaf in first.leaves.items())
    for path, one, other in (*of_episodes, *both):
        if one is None or other is None or one.shape != other.shape:
            continue
        shown = shown_dimensions(math.prod(one.shape))
        for dimension, label in enumerate(dimension_labels(one.shape, shown, names.get(path, ()))):
            edges = choose_edges(*(leaf.distribution.weighted(dimension) for leaf in (one, other)))
            yield {
                "field": path,
                "label": label,
                "first": make_distribution(one, dimension, label, edges),
                "second": make_distribution(other, dimension, label, edges),
            }
