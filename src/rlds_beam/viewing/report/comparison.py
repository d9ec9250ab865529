"""Compares two datasets by schemas and distributions; and episodes before and after connectors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam.checking.rules import CheckOptions
from rlds_beam.connectors import CONNECTORS
from rlds_beam.connectors.base import Batch, rate_after
from rlds_beam.connectors.configuration import parse
from rlds_beam.connectors.runner import ConnectorRunner
from rlds_beam.connectors.statistics.episode_statistics import EpisodeStatistics
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.episodes.schema import Schema, dimension_labels, find_differences, shown_dimensions
from rlds_beam.errors import UsageError
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.output.directory import read_fitted
from rlds_beam.output.plans import read_plan
from rlds_beam.processing.ranges import check_and_connect
from rlds_beam.reading.base import Source
from rlds_beam.viewing.episode_view import Json, Limits, make_view
from rlds_beam.viewing.pictures import find_cameras
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
) -> Iterator[Json]:
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


def _find_change(before: Episode, after: Episode, connecting: ConnectorRunner) -> Json | None:
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
    if not any(view["curves"] or view["cameras"] for view in views):
        return None
    return {"before": views[0], "after": views[1]}


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
