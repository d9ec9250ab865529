"""Adds one timestep, so that the value of the last observation can be computed."""

from __future__ import annotations

import numpy as np

from rlds_beam.connectors.base import EpisodeConnector
from rlds_beam.connectors.fields import StepFields
from rlds_beam.episodes.columns import below, concatenate, zeros_like
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.episodes.schema import FLAGS
from rlds_beam.episodes.transitions import with_final_observation


class AddOneTsToEpisodesAndTruncate(EpisodeConnector):
    """Adds one timestep to each episode, so that a model also computes a value for the last observation.

        obs          o0 o1 o2   ->   o0 o1 o2 o3        plus the last observation
        actions      a0 a1 a2        a0 a1 a2 a2        the last one repeated
        rewards      r0 r1 r2        r0 r1 r2 0
        loss_mask                    1  1  1  0

    `terminateds` and `truncateds` stay at the last real transition. A partly recorded episode becomes truncated. Other
    model outputs (`vf_preds`) take the value of the last step.
    """

    def edit(self, episode: Episode, fields: StepFields) -> Episode:
        episode = with_final_observation(episode)
        last = len(episode) - 1
        if last < 1:
            return episode.with_columns({"loss_mask": np.zeros(len(episode), bool)})
        steps = {path: _longer(path, column, last, fields) for path, column in episode.steps.items()}
        flags = {name: np.array(steps[name], bool) for name in FLAGS}
        for flag in flags.values():
            flag[last + 1] = False
        flags["is_last"][last] = True
        return episode.replace(steps={**steps, **flags, "loss_mask": np.arange(last + 2) < last})


def _longer(path: str, column: Column, last: int, fields: StepFields) -> Column:
    """A column of steps 0 to last + 1."""
    if below(path, fields.actions):
        return concatenate([column[:last], column[last - 1 : last], column[last - 1 : last]])
    if below(path, fields.rewards):
        return concatenate([column[:last], zeros_like(column, 2)])
    return concatenate([column, column[last:]])
