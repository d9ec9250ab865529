"""Converts episodes to RLlib's `SingleAgentEpisode` and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds_beam.connectors.cleaning.selection import end_episode
from rlds_beam.connectors.fields import StepFields, find_agent, find_module, leaves, terminateds
from rlds_beam.episodes.columns import concatenate, flatten, is_text, nest
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.episodes.schema import episode_flags
from rlds_beam.episodes.transitions import transitions
from rlds_beam.errors import RldsBeamError, needs
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.typing import Array

with needs("rllib", "RLlib's connectors need Ray"):
    import gymnasium as gym
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode


@dataclasses.dataclass(frozen=True)
class Spaces:
    """The spaces of an episode; by default unbounded Boxes, or a Dict of them, in the recorded shapes."""

    observation: Any = None
    action: Any = None

    def of(self, episode: Episode, fields: StepFields) -> Spaces:
        """The spaces for an episode, with defaults filled in."""
        return Spaces(
            self.observation or _space(arrays(episode, fields.obs)),
            self.action or _space(arrays(episode, fields.actions)),
        )


def _space(values: Any) -> Any:
    if isinstance(values, Mapping):
        return gym.spaces.Dict({name: _space(below) for name, below in values.items()})
    shape, dtype = values.shape[1:], values.dtype
    if dtype == np.bool_:
        return gym.spaces.MultiBinary(shape or 1)
    low, high = (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return gym.spaces.Box(low, high, shape, dtype)


def arrays(episode: Episode, field: str) -> Any:
    """The arrays below a step field, nested by name, or one array; images are decoded, text is left out."""
    columns = leaves(episode, field, "")
    nested = {path.strip("/"): _array(column, field) for path, column in columns.items() if not is_text(column)}
    return nested[""] if "" in nested else nest(nested)


def _array(column: Column, name: str) -> Array:
    return column.decode(name) if isinstance(column, EncodedImages) else column


class RllibEpisode:
    """One of our episodes, converted to RLlib's format.

    Attributes:
      episode: the original episode.
      theirs: the RLlib episode: complete, or only its first observation so far (`append`).
    """

    def __init__(self, episode: Episode, fields: StepFields, spaces: Spaces, name: str, *, whole: bool):
        self.episode, self._fields, self._count = episode, fields, transitions(episode)
        self._observations, self._actions = arrays(episode, fields.obs), arrays(episode, fields.actions)
        self._rewards, self._infos = arrays(episode, fields.rewards), arrays(episode, fields.infos)
        extras = {extra: arrays(episode, extra) for extra in fields.extras}
        extras |= {"state_in": arrays(episode, fields.state_in), "state_out": arrays(episode, fields.state_out)}
        self._extras = {name: values for name, values in extras.items() if not _is_empty(values)}
        spaces = spaces.of(episode, fields)
        agent = find_agent(episode)
        self.theirs = SingleAgentEpisode(
            id_=name,
            observation_space=spaces.observation,
            action_space=spaces.action,
            observations=[at(self._observations, 0)],
            infos=[self._info(0)],
            len_lookback_buffer=0,
            **({"agent_id": agent, "module_id": find_module(episode), "multi_agent_episode_id": name} if agent else {}),
        )
        if whole:
            for _ in range(self._count):
                self.append()
            if self._count:
                self.theirs.to_numpy()
        self._before = (self if whole else RllibEpisode(episode, fields, spaces, name, whole=True))._leaves()

    def append(self) -> None:
        """Adds the next transition, in recorded order."""
        t = len(self.theirs)
        last = t == self._count - 1
        self.theirs.add_env_step(
            observation=at(self._observations, t + 1),
            action=at(self._actions, t),
            reward=at(self._rewards, t),
            infos=self._info(t + 1),
            terminated=last and bool(terminateds(self.episode)[t]),
            truncated=last and bool(self.episode.steps["is_last"][-1]) and not terminateds(self.episode)[t],
            extra_model_outputs={name: at(values, t) for name, values in self._extras.items()},
        )

    @property
    def key(self) -> tuple[str, ...]:
        """RLlib's key for the episode's columns."""
        theirs = self.theirs
        if theirs.agent_id is None:
            return (theirs.id_,)
        return (theirs.multi_agent_episode_id, theirs.agent_id, theirs.module_id)

    def _info(self, t: int) -> dict[str, Any]:
        return {} if _is_empty(self._infos) else dict(at(self._infos, t))

    def edited(self, theirs: SingleAgentEpisode) -> Episode:
        """Returns the episode as RLlib's connectors left it, or the original object if nothing changed.

        Raises:
          RldsBeamError: its steps cannot be matched to the original ones.
        """
        if not theirs.is_numpy and len(theirs):
            theirs.to_numpy()
        after = self._leaves(theirs)
        if _same(after, self._before):
            return self.episode
        count, start = len(theirs), theirs.t_started
        if start < 0 or start + count > self._count + 1:
            raise RldsBeamError(f"{self.episode.key}: an RLlib connector returned {count} transitions, from {start} on")
        index = np.minimum(np.arange(start, start + count + 1), self._count)
        steps: dict[str, Column] = {}
        for path, column in self.episode.steps.items():
            kept = path in after and len(index) == len(column) and _equal(after[path], self._before.get(path))
            if kept or path not in self._before:
                steps[path] = column if len(index) == len(column) and start == 0 else column[index]
        for path, values in after.items():
            if path not in steps and path not in _ENDS:
                steps[path] = _with_last(values, count + 1, self.episode.steps.get(path))
        steps |= episode_flags(count + 1, last=theirs.is_done, terminal=theirs.is_terminated)
        was_terminated = bool(np.asarray(self.episode.steps["is_terminal"])[-1])
        if theirs.is_done and (start + count < self._count or theirs.is_terminated != was_terminated):
            steps = end_episode(steps, terminated=theirs.is_terminated)
        return self.episode.replace(steps=steps)

    def _leaves(self, theirs: SingleAgentEpisode | None = None) -> dict[str, Array]:
        """Everything that connectors can edit, by step field path."""
        theirs = theirs or self.theirs
        fields = self._fields
        by_path = {
            **flatten(theirs.get_observations(), fields.obs),
            **flatten(theirs.get_actions(), fields.actions),
            **flatten(theirs.get_rewards(), fields.rewards),
            _ENDS[0]: theirs.is_terminated,
            _ENDS[1]: theirs.is_truncated,
        }
        named = {"state_in": fields.state_in, "state_out": fields.state_out}
        for name in theirs.extra_model_outputs:
            by_path |= flatten(theirs.get_extra_model_outputs(name), named.get(name, name))
        return {
            path: np.array(values) for path, values in by_path.items()
        }  # a copy, because connectors may write into it


_ENDS = ("(terminated)", "(truncated)")


def at(values: Any, t: int) -> Any:
    """Copies the values of one step of nested arrays, because connectors may write into them."""
    return {name: at(below, t) for name, below in values.items()} if isinstance(values, Mapping) else values[t].copy()


def _is_empty(values: Any) -> bool:
    return isinstance(values, Mapping) and all(map(_is_empty, values.values()))


def _same(one: Mapping[str, Array], other: Mapping[str, Array]) -> bool:
    return one.keys() == other.keys() and all(_equal(values, other[path]) for path, values in one.items())


def _equal(one: Array, other: Array | None) -> bool:
    if other is None or one.shape != other.shape or one.dtype != other.dtype:
        return False
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def _with_last(values: Array, steps: int, before: Column | None) -> Column:
    """Appends a value for the last step to values of transitions: the recorded one if it fits, or zeros."""
    if len(values) == steps:
        return values
    last = np.zeros((1, *values.shape[1:]), values.dtype)
    if isinstance(before, np.ndarray) and before.shape[1:] == values.shape[1:] and before.dtype == values.dtype:
        last = before[-1:]
    return concatenate([values, last])
