"""One timestep more than was recorded, where the value of the last observation is learned from."""

from __future__ import annotations

import numpy as np

from rlds_beam.connectors.base import EpisodeConnector
from rlds_beam.episodes.columns import concatenate
from rlds_beam.episodes.episode import Episode


class AddOneTsToEpisodesAndTruncate(EpisodeConnector):
    """Adds one timestep to each episode, so that a model also gives a value for its last observation.

        obs          o0 o1 o2   ->   o0 o1 o2 o3        with the last observation
        actions      a0 a1 a2        a0 a1 a2 a2        the last one repeated
        rewards      r0 r1 r2        r0 r1 r2 0
        loss_mask                    1  1  1  0

    `terminateds` and `truncateds` stay with the last real transition. An episode that was recorded only in part becomes
    truncated. What a model gave besides (`vf_preds`) is what the last step holds.
    """

    def edit(self, episode: Episode) -> Episode:
        last = len(episode) - 1
        if last < 1:
            return episode
        steps = {}
        for path, column in episode.steps.items():
            if path == "action" or path.startswith("action/"):
                steps[path] = concatenate([column[:last], column[last - 1 : last], column[last - 1 : last]])
            else:
                steps[path] = concatenate([column, column[last:]])
        for path in ("is_first", "is_last", "is_terminal", "reward"):
            steps[path][last + 1] = 0  # type: ignore[index]
        steps["reward"][last] = 0  # type: ignore[index]
        steps["is_last"][last] = True  # type: ignore[index]
        steps["loss_mask"] = np.arange(last + 2) < last
        return episode.replace(steps=steps)
