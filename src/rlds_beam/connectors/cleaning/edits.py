"""Edits episodes: length, truncation, subsampling, alignment, goals, next states as actions."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Sequence

import numpy as np

from rlds_beam.connectors.base import EpisodeConnector
from rlds_beam.connectors.cleaning.selection import end_episode, find_windows, keep_steps, slice_steps
from rlds_beam.connectors.fields import StepFields, check_choices, match_fields
from rlds_beam.episodes.columns import (
    below,
    concatenate,
    find_changed,
    is_numeric,
    make_violation,
    transitions,
    zeros_like,
)
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.errors import BadEpisode, UsageError


@dataclasses.dataclass(frozen=True)
class MinimumLength(EpisodeConnector, reads_images=False):
    """Drops episodes with fewer transitions than `transitions`.

        transitions=3     o0 o1 o2         2 transitions: dropped
                          o0 o1 o2 o3      3: kept

    Attributes:
      transitions: the minimum number of transitions.
    """

    transitions: int = 1

    def edit(self, episode: Episode, fields: StepFields) -> Episode | list[Episode]:
        return episode if transitions(episode) >= self.transitions else []


@dataclasses.dataclass(frozen=True)
class TruncateEpisodes(EpisodeConnector, reads_images=False):
    """Keeps the first `transitions` of an episode. A shortened episode ends truncated: `is_last`, not `is_terminal`.

        transitions=2     step          0    1    2    3    4 (terminal)
                          kept          0    1    2
                          is_last       F    F    T
                          is_terminal   F    F    F

    Attributes:
      transitions: the maximum number of transitions.
    """

    transitions: int

    def edit(self, episode: Episode, fields: StepFields) -> Episode:
        stop = self.transitions + len(episode) - transitions(episode)
        return episode if len(episode) <= stop else slice_steps(episode, 0, stop)


@dataclasses.dataclass(frozen=True)
class CastFields(EpisodeConnector, reads_images=False):
    """Casts numbers to another dtype: by default all float64 fields of a step to float32, as policies are trained.

        action   float64 (7,)   ->   float32 (7,)

    Floats are rounded; true and false become 1 and 0. An episode with another value that would change (a fraction, an
    integer that is too large, a finite value that would become infinite) is rejected.

    Attributes:
      fields: the fields to cast, each with everything below it; by default those of float64.
      dtype: the new dtype.
    """

    fields: str | Sequence[str] | None = None
    dtype: str = "float32"

    def __post_init__(self) -> None:
        check_choices(self, dtype=_DTYPES)

    def edit(self, episode: Episode, fields: StepFields) -> Episode:
        if self.fields is None:
            paths = [p for p, c in episode.steps.items() if is_numeric(c) and c.dtype == np.float64]
        else:
            named = (self.fields,) if isinstance(self.fields, str) else self.fields
            paths = [path for name in named for path in match_fields(episode.steps, name, "CastFields")]
        return episode.with_columns({path: self._cast(path, episode.steps[path]) for path in paths})

    def _cast(self, path: str, column: Column) -> Column:
        if not is_numeric(column) and np.asarray(column).dtype != bool:
            raise UsageError(f"CastFields: {path} does not hold numbers")
        old = np.asarray(column)
        with np.errstate(all="ignore"):
            new = old.astype(self.dtype)
            bad = find_changed(old, new, rounding=True)
        if bad.any():
            raise BadEpisode(make_violation("cast", path, old, new, bad))
        return new


_DTYPES = ("float16", "float32", "float64", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))


@dataclasses.dataclass(frozen=True)
class SubsampleSteps(EpisodeConnector, reads_images=False):
    """Keeps every `every`-th step and the last one.

        every=2      step      0      1      2      3   (last)
                     kept      0             2      3
                     reward    r0+r1         r2     void
                     discount  d0*d1         d2     void

    The reward of a kept step is the undiscounted sum up to the next kept step, and its discount is the product. So the
    return does not change, and a terminated episode still ends with discount 0. The rate is divided by `every`.

    Attributes:
      every: the interval; 1 keeps all steps.
    """

    every: int

    def __post_init__(self) -> None:
        if self.every < 1:
            raise UsageError(f"SubsampleSteps: every={self.every}, expected 1 or more")

    def rate_after(self, fps: float | None) -> float | None:
        return None if fps is None else fps / self.every

    def edit(self, episode: Episode, fields: StepFields) -> Episode | list[Episode]:
        count = len(episode)
        if windows := find_windows(episode.steps):
            raise UsageError(f"SubsampleSteps would lose samples of {windows[0]}: use Resample, which joins windows")
        if self.every == 1 or count < 2:
            return episode
        kept = np.unique([*range(0, count, self.every), count - 1])
        return keep_steps(episode, kept, fields)


@dataclasses.dataclass(frozen=True)
class ShiftAlignment(EpisodeConnector, reads_images=False):
    """Converts other alignments to RLDS's, in which a step holds s[t], the action a[t] taken there, and its reward.

        sar   step t: s[t], a[t] that follows it, r[t] for a[t]        RLDS: no change
        ars   step t: a[t-1] that led to s[t], r[t-1], s[t]            actions and rewards move one step back
        rsa   step t: r[t-1] for a[t-1], s[t], a[t]                    rewards move one step back

    In the last step, whose action, reward, and discount are void in RLDS, moved fields become zeros. If the episode
    ends truncated, its last discount is 1.

    Attributes:
      recorded: the alignment in which the dataset was recorded: `sar`, `ars`, or `rsa`.
    """

    recorded: str

    def __post_init__(self) -> None:
        check_choices(self, recorded=("sar", "ars", "rsa"))

    def edit(self, episode: Episode, fields: StepFields) -> Episode:
        of_reward = (fields.rewards, "discount")
        moved = {"sar": (), "ars": (fields.actions, *of_reward), "rsa": of_reward}[self.recorded]
        steps = {
            path: concatenate([column[1:], zeros_like(column, 1)]) if any(below(path, f) for f in moved) else column
            for path, column in episode.steps.items()
        }
        if moved and not np.asarray(episode.steps["is_terminal"])[-1]:
            steps = end_episode(steps, terminated=False)
        return episode.replace(steps=steps, last_action_is_real=episode.last_action_is_real and not moved)


@dataclasses.dataclass(frozen=True)
class GoalRelabeling(EpisodeConnector):
    """Adds a goal to each step: an observation reached later in the episode (HER, Andrychowicz et al. 2017).

        uniform   any later step, with equal probability
        future    k steps later with probability (1 - gamma) gamma**(k-1), at most the last step
        final     the last step

    The random numbers depend only on the seed and the episode's key, so goals are the same in every run and worker.

    Attributes:
      strategy: `uniform`, `future`, or `final`.
      achieved: the field whose later values are the goals; by default the observation, if it is a single array.
      goal: the field to write; by default `goal`, or `observation/goal` for a nested observation.
      gamma: the probability parameter of `future`.
      seed: seeds the random numbers.
    """

    strategy: str = "uniform"
    achieved: str | None = None
    goal: str | None = None
    gamma: float = 0.99
    seed: int = 0

    def __post_init__(self) -> None:
        check_choices(self, strategy=("uniform", "future", "final"))

    def edit(self, episode: Episode, fields: StepFields) -> Episode:
        achieved = fields.obs if self.achieved is None else self.achieved
        if achieved not in episode.steps:
            raise UsageError(f"GoalRelabeling: achieved={achieved} is none of {', '.join(episode.steps)}")
        goal = self.goal or ("goal" if fields.obs in episode.steps else f"{fields.obs}/goal")
        if any(below(goal, path) and goal != path for path in episode.steps):
            raise UsageError(f"GoalRelabeling: {goal} would be below an existing field; choose another goal")
        last, steps = len(episode) - 1, np.arange(len(episode))
        random = np.random.default_rng([self.seed, zlib.crc32(str(episode.key).encode())])
        if self.strategy == "final":
            later = np.full(last + 1, last)
        elif self.strategy == "uniform":
            later = steps + 1 + np.floor(random.random(last + 1) * (last - steps)).astype(np.int64)
        else:
            later = steps + random.geometric(1 - self.gamma, last + 1)
        return episode.replace(steps={**episode.steps, goal: episode.steps[achieved][np.minimum(later, last)]})


@dataclasses.dataclass(frozen=True)
class NextStateAsAction(EpisodeConnector):
    """Sets the action of each step to the state of the next step, as for UMI's data: the pose to reach.

        state      s0       s1       s2 (last)
        action     s1       s2       s2 (void)

    The last action repeats the last state: the pose is held. Several fields are joined along their last axis, in the
    given order, and must have the same dtype. The states remain as they are.

    Attributes:
      fields: the state fields: `observation/robot0_eef_pos`.
      name: the action field to write.
    """

    fields: Sequence[str]
    name: str = "action"

    def __post_init__(self) -> None:
        names = (self.fields,) if isinstance(self.fields, str) else tuple(self.fields)
        object.__setattr__(self, "fields", names)
        if not names:
            raise UsageError("NextStateAsAction: fields is empty; name the state fields that the action consists of")

    def edit(self, episode: Episode, fields: StepFields) -> Episode:
        parts = []
        for path in self.fields:
            column = episode.steps.get(path)
            if not isinstance(column, np.ndarray) or not (is_numeric(column) or column.dtype == np.bool_):
                known = ", ".join(sorted(episode.steps))
                raise UsageError(f"NextStateAsAction: {path} is no field of numbers; the episode has {known}")
            parts.append(np.asarray(column))
        if len({(part.dtype, part.shape[1:-1]) for part in parts}) > 1:
            said = ", ".join(f"{part.dtype} {list(part.shape[1:])}" for part in parts)
            raise UsageError(f"NextStateAsAction: the fields are {said}, which cannot be joined: choose one dtype")
        state = parts[0]
        if len(parts) > 1:
            state = np.concatenate([part[:, None] if part.ndim == 1 else part for part in parts], axis=-1)
        return episode.with_columns({self.name: np.concatenate([state[1:], state[-1:]])})
