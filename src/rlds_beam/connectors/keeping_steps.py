"""Some of the steps of an episode as an episode."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlds_beam.connectors.fields import StepFields
from rlds_beam.episodes.columns import is_numeric
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.episodes.nesting import all_below

Array = np.ndarray[Any, Any]


def keep_steps(episode: Episode, kept: Array, fields: StepFields) -> Episode | None:
    """The steps at the indices `kept`; None where there are none, the episode itself where these are all.

    step        0   1   2   3   4 (last)        kept        1   3
    reward      r0  r1  r2  r3  r4              reward      r0+r1+r2   r3+r4
    is_first    T   F   F   F   F               is_first    T   F
    is_last     F   F   F   F   T               is_last     F   T

    The reward of a kept step is the sum up to the next one that is kept, so that none is lost; `is_last`, `is_terminal`
    and the discount of the last step go to the last one that is kept.
    """
    if not len(kept):
        return None
    if len(kept) == len(episode):
        return episode
    steps: dict[str, Column] = {path: column[kept] for path, column in episode.steps.items()}
    starts = kept.copy()
    starts[0] = 0
    for path in all_below(episode.steps, fields.rewards):
        if is_numeric(episode.steps[path]):
            rewards = np.asarray(episode.steps[path])
            steps[path] = np.add.reduceat(rewards, starts, axis=0).astype(rewards.dtype)
    for path in ("is_last", "is_terminal", "discount"):
        if path in steps and kept[-1] != len(episode) - 1:
            steps[path] = _with(steps[path], -1, episode.steps[path])
    if "is_first" in steps and kept[0]:
        steps["is_first"] = _with(steps["is_first"], 0, episode.steps["is_first"])
    return episode.replace(steps=steps)


def slice_steps(episode: Episode, start: int, stop: int) -> Episode:
    """The steps `start:stop` as an episode of its own: where it does not reach the end, it ends truncated."""
    if (start, stop) == (0, len(episode)):
        return episode
    part = episode.slice(start, stop)
    steps = dict(part.steps)
    cut = stop < len(episode)
    for path, at, value in (("is_first", 0, True), ("is_last", -1, True), ("is_terminal", -1, False)):
        if path in steps and (cut or at == 0):
            column = np.array(steps[path])
            column[at] = value
            steps[path] = column
    return part.replace(steps=steps)


def _with(column: Column, at: int, of: Column) -> Column:
    """A copy with the value at one end taken from another column."""
    changed = np.array(column)
    changed[at] = np.asarray(of)[at]
    return changed
