"""Whether the actions of last steps are real: what a dataset says, or what its first episodes suggest."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any, Literal

import numpy as np

from rlds_beam.episodes.columns import is_numeric
from rlds_beam.episodes.episode import Episode
from rlds_beam.reading.base import Source
from rlds_beam.reading.reader import sample_episodes
from rlds_beam.text import count

VOID = ("action", "reward", "discount")
"""The fields, or groups of fields, that a void last step does not have."""


@dataclasses.dataclass(frozen=True)
class LastSteps:
    """The kind of last step that a dataset's episodes have.

    Attributes:
      action: whether their actions are `real` or `void`.
      assumed: what this is assumed from; empty if the dataset says it.
    """

    action: Literal["real", "void"]
    assumed: str = ""

    def __str__(self) -> str:
        """`void: an observation without an action (assumed: zeros in 3 of 4 episodes)`."""
        meaning = f"an observation {'with' if self.action == 'real' else 'without'} an action"
        return f"{self.action}: {meaning}" + (f" (assumed: {self.assumed})" if self.assumed else "")


def find_last_steps(source: Source) -> LastSteps:
    """The source's statement about last steps. If it has none, looks at the first episodes of some shards.

    Last actions are assumed to be void if at least half of those seen are zeros, not finite, or repeat the action
    before, in episodes that mostly have other actions. RLDS defines that they are void, but many converters of robot
    data write one step for each recorded frame.
    """
    if source.last_action != "unknown":
        return LastSteps(source.last_action)
    rest = [path for path in source.schema.steps if not is_action(path)]
    episodes = sample_episodes(source, rest) if len(rest) < len(source.schema.steps) else ()
    kinds = Counter(kind for episode in episodes if (kind := _kind(episode)) is not None)
    if not kinds:
        return LastSteps("void", "RLDS defines it so, and there was no episode to look at")
    seen = ", ".join(f"{what} in {number}" for what, number in kinds.most_common())
    return LastSteps(
        "real" if 2 * kinds[_NEW] > kinds.total() else "void", f"{seen} of {count(kinds.total(), 'episode')}"
    )


_NEW = "a new value"


def _kind(episode: Episode) -> str | None:
    """The kind of an episode's last action; None if the episode does not tell."""
    if len(episode) < 2:
        return None
    columns = [np.asarray(column) for path, column in episode.steps.items() if is_action(path) and is_numeric(column)]
    if not columns:
        return None
    actions: Any = np.concatenate([column.reshape(len(column), -1).astype(np.float64) for column in columns], axis=1)
    if not np.isfinite(actions[-1]).all():
        return "not finite"
    repeated = np.append(False, (actions[1:] == actions[:-1]).all(axis=1))
    for kind, filler in (("zeros", ~actions.any(axis=1)), ("a repetition", repeated)):
        if filler[-1] and 2 * filler[:-1].sum() < len(filler):
            return kind
    return _NEW


def is_action(path: str) -> bool:
    """Whether a step field is the action or a part of it."""
    return path.partition("/")[0] == "action"
