"""Keeps some steps of an episode."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rlds_beam.connectors.fields import StepFields
from rlds_beam.episodes.columns import all_below, is_numeric
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.errors import UsageError
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.typing import Array

_DISCOUNT = "discount"
_WIDE = {"b": np.int64, "i": np.int64, "u": np.uint64}


def keep_steps(episode: Episode, kept: Array, fields: StepFields) -> Episode | list[Episode]:
    """Keeps the steps at the indices `kept`: `[]` if there are none, the episode itself if all are kept.

    step        0   1   2   3   4 (last)        kept        1           3
    reward      r0  r1  r2  r3  void            reward      r0+r1+r2+r3 void
    discount    d0  d1  d2  d3  void            discount    d0*d1*d2*d3 void
    is_first    T   F   F   F   F               is_first    T           F
    is_last     F   F   F   F   T               is_last     F           T

    Skipped transitions are merged into the kept transition before them, or into the first one: rewards are added
    without discounting, and discounts are multiplied. So the episode's return and the product of its discounts do not
    change, and a terminated episode still ends with discount 0. The last kept step ends the episode: `is_last`,
    `is_terminal`, and void reward and discount. A single kept step gets the whole sum and product.

    Raises:
      UsageError: a sum overflows the dtype of the reward.
    """
    if not len(kept):
        return []
    if len(kept) == len(episode):
        return episode
    steps: dict[str, Column] = {path: column[kept] for path, column in episode.steps.items()}
    starts = kept.copy()
    starts[-1] = len(episode) - 1
    starts[0] = 0
    for path in all_below(episode.steps, fields.rewards):
        steps[path] = _merge(episode, path, starts, np.add, steps[path])
    if _DISCOUNT in steps:
        steps[_DISCOUNT] = _merge(episode, _DISCOUNT, starts, np.multiply, steps[_DISCOUNT])
    for path, at in (("is_first", 0), ("is_last", -1), ("is_terminal", -1)):
        if path in steps:
            steps[path] = with_value(steps[path], at, bool(np.asarray(episode.steps[path])[at]))
    return episode.replace(steps=steps)


def slice_steps(episode: Episode, start: int, stop: int, *, terminated: bool = False) -> Episode:
    """Returns the steps `start:stop` as an episode, truncated if it ends before the recorded one.

    Args:
      terminated: end it terminated instead.
    """
    if (start, stop) == (0, len(episode)):
        return episode
    part = episode.slice(start, stop)
    steps = dict(part.steps)
    if "is_first" in steps:
        steps["is_first"] = with_value(steps["is_first"], 0, True)
    return part.replace(steps=end_episode(steps, terminated=terminated) if stop < len(episode) else steps)


def end_episode(steps: Mapping[str, Column], *, terminated: bool) -> dict[str, Column]:
    """Ends an episode at the last of these steps, which was inside a longer episode.

    The discount of the step into a terminal state is 0. The void discount of the last step of a truncated episode is 0
    if it was the cut-off terminal transition; it becomes 1.
    """
    ended_steps = dict(steps)
    for path, value in (("is_last", True), ("is_terminal", terminated)):
        if path in ended_steps:
            ended_steps[path] = with_value(ended_steps[path], -1, value)
    if _DISCOUNT in ended_steps:
        discount = np.array(ended_steps[_DISCOUNT])
        if terminated:
            discount[-2:] = 0
        discount[-1:][discount[-1:] == 0] = not terminated
        ended_steps[_DISCOUNT] = discount
    return ended_steps


def with_value(flags: Column, at: int, value: bool) -> Array:
    """A copy of the flags with a new value at one step."""
    changed = np.array(flags)
    changed[at] = value
    return changed


def _merge(episode: Episode, path: str, starts: Array, merge: np.ufunc, kept: Column) -> Column:
    """A field's values, merged from each of `starts` to the next; the kept steps' values if they are not numbers."""
    column = episode.steps[path]
    if isinstance(column, EncodedImages) or not (is_numeric(column) or column.dtype == np.bool_):
        return kept
    merged = merge.reduceat(column.astype(_WIDE.get(column.dtype.kind, np.float64)), starts, axis=0)
    with np.errstate(over="ignore"):
        narrow: Array = merged.astype(column.dtype)
    exact = column.dtype.kind in _WIDE
    if (narrow != merged).any() if exact else (np.isinf(narrow.astype(np.float64)) & np.isfinite(merged)).any():
        raise UsageError(f"{episode.key}: {path}: the sum of the skipped steps overflows {column.dtype}")
    return narrow
