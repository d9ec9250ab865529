"""The transitions of an episode. Its last step is one only if its action is real."""

from __future__ import annotations

import numpy as np

from rlds_beam.episodes.columns import concatenate, zeros_like
from rlds_beam.episodes.episode import Column, Episode


def transitions(episode: Episode) -> int:
    """The number of transitions, T. A void last step only holds the final observation, a real one is a transition.

    step          0     1     2     3                     void: T = 3     real: T = 4
    observation   o0    o1    o2    o3        obs         o0 o1 o2        o0 o1 o2 o3
    action        a0    a1    a2    a3        actions     a0 a1 a2        a0 a1 a2 a3
    reward        r0    r1    r2    r3        rewards     r0 r1 r2        r0 r1 r2 r3
    is_last       F     F     F     T         new_obs     o1 o2 o3        o1 o2 o3 o3
    """
    return len(episode) if episode.last_action_is_real else max(0, len(episode) - 1)


def with_final_observation(episode: Episode, *, absorbing: bool = False) -> Episode:
    """The episode as RLDS defines it: T + 1 steps for T transitions.

    If the last action is real, its next observation was not recorded. A step that repeats the last observation is
    added, with an action and a reward of zeros; it is `is_last`, and `is_terminal` if the recorded last step was.

    Args:
      absorbing: the added step of a terminal episode is all zeros.
    """
    if not episode.last_action_is_real or not len(episode):
        return episode
    zeros = absorbing and bool(np.asarray(episode.steps["is_terminal"])[-1])
    steps: dict[str, Column] = {}
    for path, column in episode.steps.items():
        void = zeros or path.partition("/")[0] in ("action", "reward")
        steps[path] = concatenate([column, zeros_like(column, 1) if void else column[-1:]])
    for path, place in (("is_first", -1), ("is_last", -2), ("is_terminal", -2)):
        if path in steps:
            flags = np.array(steps[path])
            flags[-1] = np.asarray(episode.steps[path])[-1]
            flags[place] = False
            steps[path] = flags
    return episode.replace(steps=steps, last_action_is_real=False)
