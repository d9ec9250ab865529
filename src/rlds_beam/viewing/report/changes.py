"""What connectors change: frames and curves of a few episodes before and after."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from rlds_beam.checking.options import CheckOptions
from rlds_beam.connectors import CONNECTORS
from rlds_beam.connectors.base import Batch
from rlds_beam.connectors.configuration import parse
from rlds_beam.connectors.probing import Probed
from rlds_beam.connectors.runner import ConnectorRunner
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.errors import UsageError
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.images.thumbnails import is_image
from rlds_beam.output.fitted import read_fitted
from rlds_beam.output.plans import read_plan
from rlds_beam.processing.ranges import check_and_connect
from rlds_beam.reading.base import Segment, Source
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.viewing.facts import Curve, curves_of
from rlds_beam.viewing.report.showing import Limits, picture_of, series_of
from rlds_beam.viewing.report.views import BeforeAfter

MAX_FIELDS = 8
"""Fields of one episode that are shown before and after."""

_LIMITS = Limits(height=96, points=160)


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
    connectors = [_known(one) for one in entries.get("connectors", ()) if not _is_list(one)]
    configuration = parse({"fields": entries.get("fields"), "connectors": connectors}, f"{output}: plan.json")
    runner = ConnectorRunner.for_source(configuration, source)
    fitted = read_fitted(output, plan) if plan is not None else None
    return runner.fit(fitted) if fitted is not None else runner


def _is_list(entry: Any) -> bool:
    """Whether a connector only drops the episodes that a file lists or does not list; the file may not be here."""
    return isinstance(entry, dict) and entry.get("name") in ("DropListedEpisodes", "KeepListedEpisodes")


def _known(entry: Any) -> Any:
    name = entry.get("name") if isinstance(entry, dict) else None
    if name not in CONNECTORS:
        raise UsageError(f"the connector {name} is not one of rlds-beam: give --connectors as for the conversion")
    return {name: entry.get("arguments") or {}}


def first_episodes(source: Source, most: int) -> Iterator[Episode]:
    """The first episodes of the first shards."""
    reader = EpisodeReader(source)
    shards = [(split.name, shard) for split in source.splits for shard in split.shards if shard.size][:most]
    each = -(-most // max(1, len(shards)))
    for split, shard in shards:
        yield from itertools.islice(reader.read(split, Segment(shard)), each)


def examples_of(
    episodes: Iterable[Episode], check: CheckOptions, connecting: ConnectorRunner, most: int
) -> Iterator[BeforeAfter]:
    """The fields that connectors change in up to `most` of these records."""
    shown = 0
    for episode in episodes:
        batches: list[Batch] = []
        ignored = connecting.ignored_values()
        verdict = check_and_connect(episode, check, connecting, ignored, batches.append).verdict
        after = [episode for batch in batches for episode in batch.episodes]
        if verdict.rejected is not None or not after:
            continue
        changed = list(_changed(episode, after[0], connecting.probed))
        yield from changed[:MAX_FIELDS]
        shown += bool(changed)
        if shown == most:
            return


def _changed(before: Episode, after: Episode, probed: Probed) -> Iterator[BeforeAfter]:
    names = probed.given.names, {path: names for schema in probed.schemas for path, names in schema.names.items()}
    both = zip((before, after), names, strict=True)
    curves = [{curve.path: curve for curve in curves_of(episode, names=of_fields)} for episode, of_fields in both]
    for path in dict.fromkeys([*before.steps, *after.steps]):
        old, new = before.steps.get(path), after.steps.get(path)
        if old is not None and new is not None and same(old, new):
            continue
        images = [None if column is None or not is_image(column) else column for column in (old, new)]
        if any(column is not None for column in images):
            frames = [
                _middle(one, path) if column is not None else None
                for one, column in zip((before, after), images, strict=True)
            ]
            yield BeforeAfter(str(before.key), path, *frames)
        elif path in curves[0] or path in curves[1]:
            series = [_series(curve.get(path)) for curve in curves]
            yield BeforeAfter(str(before.key), path, None, None, *series)


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


def _middle(episode: Episode, path: str) -> Any:
    return picture_of(episode, path, len(episode) // 2, _LIMITS.height)


def _series(curve: Curve | None) -> Any:
    return None if curve is None else series_of(curve, _LIMITS)
