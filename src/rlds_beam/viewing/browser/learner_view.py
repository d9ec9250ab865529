"""The learner's view of an episode: the items, rows, or episodes that `convert` would write."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from rlds_beam.checking.rules import CheckOptions
from rlds_beam.checking.validation import validate_episode
from rlds_beam.connectors.base import Batch, by_module
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.errors import BadEpisode, RldsBeamError
from rlds_beam.formats.outputs import configuration_for, create_output
from rlds_beam.formats.trajectories.output import TrajectoryOutput
from rlds_beam.images.encoded_images import ZERO_IMAGE, EncodedImages
from rlds_beam.output.base import Output
from rlds_beam.reading.base import Source
from rlds_beam.text import count
from rlds_beam.trajectories.converter import WindowItemConverter
from rlds_beam.trajectories.items import PAD, Items, UnusedSteps
from rlds_beam.trajectories.options import ItemOptions
from rlds_beam.viewing.facts import json_value

Json = dict[str, Any]

MAX_ITEMS = 20
_MAX_STEPS, _MAX_VALUES = 200, 64
"""Maximum rows of an item, and numbers of a value, that are sent."""
_MASK = "loss_mask"
"""The column of RLlib's connectors that is false for padding: [K, L]."""


class _MadeItems(NamedTuple):
    """Items made from an episode.

    Attributes:
      kind: `items` of several frames, `frames`, or `rows`.
      columns: the values of all items: [K, L, ...] for items, otherwise [K, ...].
      index: the step of each frame of each item, [K, L]; `PAD` for padding. None if unknown.
      real: whether each frame is real, not padding, [K, L]; None if there is no padding.
      unused: the steps that are in no item, by reason.
    """

    kind: str
    columns: Mapping[str, Column]
    index: Any = None
    real: Any = None
    unused: Mapping[str, UnusedSteps] = MappingProxyType({})


class ItemMaker:
    """Makes the output of a conversion, one episode at a time. Thread-safe.

    Args:
      source: the dataset.
      options: `--to`, `--connectors` and the options of the output.
      check: what to do with episodes that break a rule.
    """

    def __init__(self, source: Source, options: Any, check: CheckOptions):
        self._source, self._options, self._check = source, options, check
        self._lock = threading.Lock()

    @functools.cached_property
    def _prepared(self) -> tuple[ConnectorRunner, Output, int]:
        """The connectors, the output, and the number of connectors that zeros replace the statistics of.

        Raises:
          UsageError: the dataset cannot be converted.
        """
        options = self._options
        connecting = ConnectorRunner.for_source(configuration_for(options, self._source.schema), self._source)
        output = create_output(self._source, connecting, "", options)
        return connecting.as_probed(), output, connecting.unfitted

    def make(self, episode: Episode, offset: int, limit: int) -> Json:
        """`/api/made`: the items `offset` to `offset + limit` made from an episode as read."""
        try:
            with self._lock:
                return self._make(episode, offset, min(limit, MAX_ITEMS))
        except (BadEpisode, RldsBeamError) as error:
            return {"error": str(error)}

    def _make(self, episode: Episode, offset: int, limit: int) -> Json:
        connecting, output, unfitted = self._prepared
        verdict = validate_episode(episode, self._check, connecting.ignored_values())
        if verdict.rejected is not None:
            return {"error": f"the episode is rejected: {verdict.rejected.rule}: {verdict.rejected.detail}"}
        batch = connecting.connect(verdict.episodes, episode)
        if not batch.episodes:
            return {"error": f"a connector drops the episode: {', '.join(batch.dropped)}"}
        made = _make_items(batch, output)
        items, flags = self._options.to_options, [f"--to={self._options.to}"]
        if isinstance(items, ItemOptions):
            flags.append(f"--items={items.items}")
            flags += [f"--sequence_length={items.sequence_length}"] if items.items == "sequences" else []
        total = len(next(iter(made.columns.values()))) if made.columns else 0
        unchanged = len(batch.episodes) == 1 and len(batch.episodes[0]) == len(episode)
        return {
            "kind": made.kind,
            "about": " ".join(flags),
            "note": "connectors that are fitted to the dataset are fitted to zeros here" if unfitted else None,
            "total": total,
            "empty": None if total else _why_empty(made.unused, self._options, len(batch.episodes)),
            "offset": offset,
            "fields": [_field(path, column) for path, column in made.columns.items()],
            "items": [_item(made, number, unchanged) for number in range(offset, min(offset + limit, total))],
        }


def _why_empty(unused: Mapping[str, UnusedSteps], options: Any, parts: int) -> str:
    """Why there are no items, and the flag that changes that."""
    items = options.to_options
    whole = "This episode has" if parts == 1 else f"The {parts} parts of this episode have at most"
    for reason, steps in unused.items():
        there = f"{whole} {count(steps.longest, 'step')}"
        if reason == "bypassed":
            return f"{there}; --max_sequence_length={items.max_sequence_length} allows no more."
        if items.items == "sequences":
            return f"{there}; a sequence needs {items.sequence_length}. --pad_end_of_episodes pads it."
        return f"{there}; a pair needs 2. --items=sequences --sequence_length=2 --pad_end_of_episodes pads it."
    return f"--to={options.to} makes nothing from this episode."


def _make_items(batch: Batch, output: Output) -> _MadeItems:
    if isinstance(output, TrajectoryOutput):
        return _trajectories(batch, output)
    columns: Mapping[str, Column] = next(iter(by_module(batch).values()), {})
    if not columns:
        first = batch.episodes[0]
        return _MadeItems("frames", first.steps, np.arange(len(first))[:, None])
    real = np.asarray(columns[_MASK]).astype(bool) if _MASK in columns else None
    if real is not None and real.ndim == 2:
        return _MadeItems("items", columns, None, real)
    return _MadeItems("rows", columns)


def _trajectories(batch: Batch, output: TrajectoryOutput) -> _MadeItems:
    converter = WindowItemConverter(output.conversion, lambda items: items)
    parts = [items for items in (*converter.encode(batch.episodes), *converter.finish()) if len(items)]
    if not parts:
        return _MadeItems("items", {}, unused=converter.unused_steps)
    items, frames = parts[0], output.conversion.items.items == "frames"
    paths = [leaf.path for leaf in output.conversion.spec.leaves]
    if frames:
        return _MadeItems("frames", {path: items.frames[path] for path in paths}, items.index)
    columns = {path: _gather(items, path) for path in paths}
    padded = bool((items.index == PAD).any())
    return _MadeItems("items", columns, items.index, items.index != PAD if padded else None)


def _gather(items: Items, path: str) -> Column:
    """A leaf of all items: [K, L, ...], or images whose `data` is [K, L]."""
    column = items.frames[path]
    if not isinstance(column, EncodedImages):
        return items.gather(path)
    return EncodedImages(np.append(column.data, ZERO_IMAGE)[items.index], column.shape, column.dtype, column.encoding)


def _field(path: str, column: Column) -> Json:
    if isinstance(column, EncodedImages):
        return {"path": path, "dtype": column.dtype, "shape": column.shape}
    return {"path": path, "dtype": column.dtype.name, "shape": column.shape[1:]}


def _item(made: _MadeItems, number: int, unchanged: bool) -> Json:
    """An item as JSON.

    Args:
      unchanged: whether connectors left the number of steps as it was, so that frames are steps of the episode.
    """
    steps = None if made.index is None or not unchanged else made.index[number][:_MAX_STEPS].tolist()
    values = {path: _list_frames(column, number, made.kind) for path, column in made.columns.items()}
    return {
        "number": number,
        "length": _length(made, number),
        "padding": None if made.real is None else (~made.real[number][:_MAX_STEPS]).tolist(),
        "steps": None if steps is None else [None if step == PAD else step for step in steps],
        "values": values,
    }


def _length(made: _MadeItems, number: int) -> int:
    """The number of frames of an item."""
    for frames in (made.index, made.real):
        if frames is not None:
            return len(frames[number])
    return 1


def _list_frames(column: Column, number: int, kind: str) -> list[Any]:
    """The values of an item's frames; of the item, if it has no frames."""
    if isinstance(column, EncodedImages):
        data: Any = column.data[number]
        images: Sequence[bytes] = [data] if isinstance(data, bytes) else list(data)
        return [{"image": column.encoding, "bytes": len(image)} for image in images[:_MAX_STEPS]]
    value = np.asarray(column[number])
    rows = value[:_MAX_STEPS] if kind == "items" and value.ndim else value[None]
    if rows.dtype == np.uint8 and rows.ndim >= 3:
        return [{"image": "raw", "bytes": int(row.nbytes)} for row in rows]
    return [json_value(row, _MAX_VALUES)[0] for row in rows]
