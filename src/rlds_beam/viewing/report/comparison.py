"""Compares two datasets by schemas, distributions, and texts; and episodes before and after connectors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_beam.checking.rules import CheckOptions
from rlds_beam.connectors import CONNECTORS
from rlds_beam.connectors.base import Batch, rate_after
from rlds_beam.connectors.configuration import parse
from rlds_beam.connectors.runner import ConnectorRunner
from rlds_beam.connectors.statistics.episode_statistics import EpisodeStatistics, LeafStatistics
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.episodes.schema import Field, Schema, describe_type, dimension_labels, shown_dimensions
from rlds_beam.errors import UsageError
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.output.directory import read_fitted
from rlds_beam.output.plans import read_plan
from rlds_beam.processing.ranges import check_and_connect
from rlds_beam.reading.base import Source
from rlds_beam.text import printable
from rlds_beam.typing import Array
from rlds_beam.viewing.episode_view import Limits, make_view
from rlds_beam.viewing.pictures import find_cameras
from rlds_beam.viewing.report.distributions import (
    MAX_DISTRIBUTIONS,
    Weighted,
    choose_edges,
    make_distribution,
    round_number,
)
from rlds_beam.viewing.report.document import ComparisonSection, Drift, Measure, SchemaDifference
from rlds_beam.viewing.report.sections import Change
from rlds_beam.viewing.report.signals import count_values, text_columns

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
    edges = choose_edges(*values)
    first, second = (make_distribution(leaf, dimension, label, edges) for leaf in (one, other))
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
            kinds = [describe_type(fields[path]) if path in fields else "" for fields in (one, other)]
            if kinds[0] != kinds[1]:
                yield SchemaDifference(path, level, *kinds)


def _texts(first: pa.Table, second: pa.Table) -> Iterator[tuple[str, float, str]]:
    """The L-infinity distance of each text field of both datasets, and the text that differs most."""
    columns, others = text_columns(first), text_columns(second)
    for field in sorted(columns.keys() & others.keys()):
        counts, other = count_values(columns[field]), count_values(others[field])
        if not counts or not other:
            continue
        total, of_other = sum(counts.values()), sum(other.values())
        far = {text: abs(counts.get(text, 0) / total - other.get(text, 0) / of_other) for text in {*counts, *other}}
        text = min(far, key=lambda name: (-far[name], name))
        yield field, round_number(far[text]), printable(text, 300)


_LIMITS = Limits(cameras=2, curves=8, points=160)


def planned_connectors(output: str, source: Source) -> ConnectorRunner:
    """The connectors of a conversion, from its plan; fitted ones with the results in the output directory.

    Only connectors of rlds-beam are made from a plan, because it is a file that may come from others: naming other code
    there must not run it.

    Raises:
      UsageError: the plan has other connectors, or they do not suit the source.
    """
    plan = read_plan(output)
    entries = plan.content.get("connectors", {}) if plan is not None else {}
    entries = entries if isinstance(entries, dict) else {}
    connectors = [_read_connector(entry) for entry in entries.get("connectors", ()) if not _is_list(entry)]
    configuration = parse({"fields": entries.get("fields"), "connectors": connectors}, f"{output}: plan.json")
    runner = ConnectorRunner.for_source(configuration, source)
    fitted = read_fitted(output, plan) if plan is not None else None
    return runner.fit(fitted) if fitted is not None else runner


def _is_list(entry: Any) -> bool:
    """Whether a connector only drops the episodes that a file lists or does not list; the file may not be here."""
    return isinstance(entry, dict) and entry.get("name") in ("DropListedEpisodes", "KeepListedEpisodes")


def _read_connector(entry: Any) -> Any:
    name = entry.get("name") if isinstance(entry, dict) else None
    if name not in CONNECTORS:
        raise UsageError(f"the connector {name} is not one of rlds-beam: give --connectors as for the conversion")
    return {name: entry.get("arguments") or {}}


def find_examples(
    episodes: Iterable[Episode], check: CheckOptions, connecting: ConnectorRunner, most: int
) -> Iterator[Change]:
    """Up to `most` of these records that the connectors change."""
    shown = 0
    for episode in episodes:
        batches: list[Batch] = []
        ignored = connecting.ignored_values()
        verdict = check_and_connect(episode, check, connecting, ignored, batches.append).verdict
        after = [episode for batch in batches for episode in batch.episodes]
        if verdict.rejected is not None or not after:
            continue
        change = _find_change(episode, after[0], connecting)
        if change is not None:
            yield change
            shown += 1
        if shown == most:
            return


def _find_change(before: Episode, after: Episode, connecting: ConnectorRunner) -> Change | None:
    probed = connecting.probed
    rates = connecting.fps, rate_after(connecting.connectors, connecting.fps)
    names = probed.given.names, {path: names for schema in probed.schemas for path, names in schema.names.items()}
    changed = [path for path in dict.fromkeys([*before.steps, *after.steps]) if not _same_field(path, before, after)]
    if not changed:
        return None
    cameras = [path for path in find_cameras(before) if path in after.steps]
    shown = {*changed, *cameras[: not any(path in cameras for path in changed)]}
    views = [
        make_view(
            episode.replace(steps={path: column for path, column in episode.steps.items() if path in shown}),
            _LIMITS,
            fps=fps,
            names=of_fields,
        )
        for episode, fps, of_fields in zip((before, after), rates, names, strict=True)
    ]
    if not any(view.curves or view.cameras for view in views):
        return None
    return Change(*views)


def _same_field(path: str, before: Episode, after: Episode) -> bool:
    old, new = before.steps.get(path), after.steps.get(path)
    return old is not None and new is not None and same(old, new)


def same(one: Column, other: Column) -> bool:
    """Whether two columns are equal."""
    if one is other:
        return True
    if isinstance(one, EncodedImages) or isinstance(other, EncodedImages):
        if not (isinstance(one, EncodedImages) and isinstance(other, EncodedImages)) or len(one) != len(other):
            return False
        return all(one.image(step) == other.image(step) for step in range(len(one)))
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind == "f"))
