"""Episodes with propensities."""

from __future__ import annotations

import numpy as np

from rlds_beam.testing import make_episode

EPSILON, ACTIONS = 0.3, 3


def recorded(propensities, target=None, actions=None, **more):
    """An episode with one step more than propensities; the last step's values are void."""
    steps = len(propensities) + 1
    columns = {"propensity": np.append(propensities, 0.0), **more}
    if target is not None:
        columns["target_propensity"] = np.append(target, 0.0)
    episode = make_episode(steps, seed=1)
    action = np.zeros(steps, np.int64) if actions is None else np.append(actions, 0)
    return episode.replace(steps={**episode.steps, "action": action, **columns})


def behavior(steps):
    """Probabilities of an epsilon-greedy policy whose greedy action is 1."""
    return np.where(steps["action"] == 1, 1 - EPSILON + EPSILON / ACTIONS, EPSILON / ACTIONS)


def always_one(steps):
    return (steps["action"] == 1).astype(np.float64)


def logged(seed, steps=50, wrong=1.0):
    """An episode of that policy whose recorded propensity of action 0 is `wrong` times the true one."""
    rng = np.random.default_rng(seed)
    actions = rng.choice(ACTIONS, steps, p=[EPSILON / ACTIONS, 1 - EPSILON + EPSILON / ACTIONS, EPSILON / ACTIONS])
    propensity = behavior({"action": actions}) * np.where(actions == 0, wrong, 1.0)
    return recorded(propensity, actions=actions).replace(key=make_episode(2, seed=seed).key)
