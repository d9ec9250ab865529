"""Connectors that add a row for each transition: RLlib's columns of a training batch."""

from __future__ import annotations

import dataclasses

import numpy as np

from rlds_beam.connectors.base import ColumnConnector, Columns
from rlds_beam.connectors.fields import StepFields, agent_of, leaves, module_of, terminateds, transitions, truncateds
from rlds_beam.episodes.columns import is_text
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.errors import UsageError


class AddObservationsFromEpisodesToBatch(ColumnConnector):
    """`obs`: the observation of each transition, without the last one of the episode.

    observation (T+1)   o0 o1 o2 o3
    obs (T)             o0 o1 o2
    """

    def add(self, episode: Episode, columns: Columns, fields: StepFields) -> Columns:
        return _first(_required(episode, fields.obs, "obs"), transitions(episode))


class AddNextObservationsFromEpisodesToTrainBatch(ColumnConnector):
    """`new_obs`: the observation after each transition.

    observation (T+1)   o0 o1 o2 o3
    new_obs (T)         o1 o2 o3
    """

    def add(self, episode: Episode, columns: Columns, fields: StepFields) -> Columns:
        observations = _required(episode, fields.obs, "new_obs")
        return {name: column[1:] for name, column in observations.items() if not is_text(column)}


class AddColumnsFromEpisodesToTrainBatch(ColumnConnector):
    """`actions`, `rewards`, `terminateds`, `truncateds`, and what else the behaviour policy's model gave (`extras`).

    The values of the last step are void in RLDS, and left out. `terminateds` and `truncateds` are false but for the
    last transition, which has one of them; neither, where the episode was recorded only in part.
    """

    def add(self, episode: Episode, columns: Columns, fields: StepFields) -> Columns:
        count = transitions(episode)
        return {
            **_first(_required(episode, fields.actions, "actions"), count),
            **_first(_required(episode, fields.rewards, "rewards"), count),
            "terminateds": terminateds(episode),
            "truncateds": truncateds(episode),
            **{
                name: column
                for extra in (*fields.extras, "loss_mask")
                for name, column in _first(leaves(episode, extra, extra), count).items()
            },
        }


class AddInfosFromEpisodesToBatch(ColumnConnector):
    """`infos`: what the environment said besides, where it was recorded."""

    def add(self, episode: Episode, columns: Columns, fields: StepFields) -> Columns:
        return _first(leaves(episode, fields.infos, "infos"), transitions(episode))


@dataclasses.dataclass(frozen=True)
class AddIdsToBatch(ColumnConnector):
    """`eps_id`, `agent_id`, `module_id` (bytes) and `t` (int64): where a row comes from.

    `eps_id` is the episode's key, the same on every run; RLlib's is random.

    Attributes:
      columns: which of the four.
    """

    columns: tuple[str, ...] = ("eps_id", "agent_id", "module_id", "t")

    def add(self, episode: Episode, columns: Columns, fields: StepFields) -> Columns:
        count = transitions(episode)
        ids = {"eps_id": str(episode.key), "agent_id": agent_of(episode), "module_id": module_of(episode)}
        made: dict[str, Column] = {name: np.full(count, value.encode(), object) for name, value in ids.items()}
        made["t"] = np.arange(count)
        unknown = set(self.columns) - made.keys()
        if unknown:
            raise UsageError(f"AddIdsToBatch: there is no column {sorted(unknown)[0]}, only {', '.join(made)}")
        return {name: made[name] for name in self.columns}


def _required(episode: Episode, field: str, column: str) -> dict[str, Column]:
    found = leaves(episode, field, column)
    if not found:
        raise UsageError(
            f"column {column}: the steps have no field {field}, only {', '.join(episode.steps)}; say which field it is"
        )
    return found


def _first(columns: Columns, count: int) -> dict[str, Column]:
    return {name: column[:count] for name, column in columns.items() if not is_text(column)}
