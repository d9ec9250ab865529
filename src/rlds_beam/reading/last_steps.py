"""Last steps: whether their actions are real, and the rows of an episode without the void ones.

RLDS, void   o0 a0 r0   o1 a1 r1   o2 (void)         rows   o0 a0 r0   o1 a1 r1
RLDS, real   o0 a0      o1 a1      o2 a2             rows   o0 a0      o1 a1      o2 a2
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any, Literal

import numpy as np

from rlds_beam.episodes.columns import is_numeric
from rlds_beam.episodes.episode import SOURCE_DATASET, Column, Episode
from rlds_beam.episodes.schema import Schema
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


def ends(episode: Episode) -> bool:
    """Whether the last step of an episode is marked as the last; true if it has no such field."""
    last = episode.steps.get("is_last")
    return bool(len(episode)) and (last is None or bool(np.asarray(last)[-1]))


def without_last(episode: Episode) -> Episode:
    """The steps before the last one. The end of the episode is marked in the one that leads there, as in LeRobot."""
    rows = episode.slice(0, len(episode) - 1)
    marks: dict[str, Column] = {}
    for path in ("is_last", "is_terminal"):
        if len(rows) and path in rows.steps:
            marks[path] = np.concatenate([np.asarray(rows.steps[path])[:-1], np.asarray(episode.steps[path])[-1:]])
    return rows.with_columns(marks)


@dataclasses.dataclass(frozen=True)
class RowRule:
    """Selects the steps that become rows of an observation and an action.

    Attributes:
      left_out: whether last steps are left out.
      last_steps: what they are; None if it did not matter, because the user chose.
      kept_void: whether the user keeps last steps whose actions the source says are void.
      only_of: the datasets whose last steps are left out (`Meaning.void_datasets`); None: all.
    """

    left_out: bool = False
    last_steps: LastSteps | None = None
    kept_void: bool = False
    only_of: tuple[str, ...] | None = None

    @classmethod
    def of(cls, source: Source, schema: Schema, choice: Literal["drop", "keep"] | None) -> RowRule:
        """The rule for a dataset: void last steps are left out unless the user chose.

        Args:
          schema: the schema of the episodes, after connectors; without actions, all steps are rows.
        """
        if choice is not None:
            return cls(choice == "drop", kept_void=choice == "keep" and source.last_action == "void")
        if not any(is_action(path) for path in schema.steps):
            return cls()
        last_steps = find_last_steps(source)
        return cls(last_steps.action == "void", last_steps, only_of=source.meaning.void_datasets)

    def rows(self, episode: Episode) -> Episode:
        """The rows of an episode, perhaps none."""
        name = episode.metadata.get(SOURCE_DATASET)
        other = self.only_of is not None and isinstance(name, bytes) and name.decode() not in self.only_of
        return without_last(episode) if self.left_out and ends(episode) and not other else episode

    def to_json(self) -> dict[str, Any]:
        """The rule as an entry of a plan."""
        found = {} if self.last_steps is None else {key: v for key, v in vars(self.last_steps).items() if v}
        found |= {"kept_void": True} if self.kept_void else {}
        found |= {"only_of": [*self.only_of]} if self.only_of is not None else {}
        matters = self.left_out or self.kept_void or found.get("assumed")
        return {"last_step": {"left_out": self.left_out, **found}} if matters else {}
