"""Checks propensities by recomputing them from the data to be stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.errors import NotVerifiedError
from rlds_beam.recording.policies import BehaviorPolicy, HistoryPolicy
from rlds_beam.recording.policy_distributions import Distribution, Propensity
from rlds_beam.recording.settings import PROPENSITY
from rlds_beam.recording.spaces import Structure
from rlds_beam.recording.states import State, stack_states
from rlds_beam.typing import Array

MIXTURE = ("mixture_propensity", "log_mixture_propensity")


class JoinedEpisodes(NamedTuple):
    """The concatenated steps with an action of several episodes.

    Attributes:
      observations: the observations, nested as a policy takes them.
      actions: the actions, by leaf.
      recorded: the recorded propensities; None if unknown.
      lengths: the number of steps with an action of each episode.
      episodes: the columns of each episode.
      state: the acting policy's state before each episode; None for a policy without a state.
    """

    observations: Any
    actions: tuple[Array, ...]
    recorded: Array | None
    lengths: Array
    episodes: Sequence[Mapping[str, Array]]
    state: State | None = None

    def propensity(self, policy: BehaviorPolicy, *, acted: bool = False) -> Propensity:
        """The recomputed propensity of all actions.

        Args:
          policy: the policy.
          acted: whether this policy chose the actions.
        """
        if isinstance(policy, HistoryPolicy):
            key = EpisodeKey("recorded", "train", 0, 0)
            return policy.propensity([Episode(key, columns) for columns in self.episodes])
        return self.distribution(policy, acted=acted).propensity(self.actions)

    def distribution(self, policy: BehaviorPolicy, *, acted: bool) -> Distribution:
        """The distribution of all actions; a policy with a state gets the observations in order."""
        initial = policy.initial_state()
        if initial is None:
            return policy.distribution(self.observations)
        state = self.state if acted and self.state is not None else stack_states([initial] * len(self.episodes))
        return policy.replay(self.observations, self.lengths, state)


def together(
    observation: Structure,
    action: Structure,
    episodes: Sequence[Mapping[str, Array]],
    states: Sequence[State | None] = (),
) -> JoinedEpisodes:
    """Concatenates the columns of episodes, each of T steps of which T - 1 have an action."""

    def join(path: str) -> Array:
        return np.concatenate([columns[path][:-1] for columns in episodes])

    known = PROPENSITY in episodes[0]
    of_each = [state for state in states if state is not None]
    return JoinedEpisodes(
        observation.build([join(path) for path in _paths(observation, "observation")]),
        tuple(join(path) for path in _paths(action, "action")),
        join(PROPENSITY) if known else None,
        np.array([len(columns["reward"]) - 1 for columns in episodes]),
        episodes,
        stack_states(of_each) if of_each else None,
    )


def check_propensities(policy: BehaviorPolicy, steps: JoinedEpisodes, names: Sequence[str]) -> None:
    """Recomputes the propensity of each stored action from the stored observations, and compares.

    Args:
      policy: the policy that acted.
      steps: the steps of the episodes.
      names: the names of the episodes, for messages.

    Raises:
      NotVerifiedError: a recorded propensity differs, so the policy does not depend on the observation alone.
    """
    if steps.recorded is None:
        return
    if isinstance(policy, HistoryPolicy):
        same = np.isclose(steps.propensity(policy).value, steps.recorded, rtol=1e-3, atol=0)
    else:
        same = steps.distribution(policy, acted=True).may_be(steps.actions, steps.recorded)
    if not same.all():
        row = int(np.argmin(same))
        ends = np.cumsum(steps.lengths)
        episode = int(np.searchsorted(ends, row, side="right"))
        step = row - int(ends[episode] - steps.lengths[episode])
        recomputed = steps.propensity(policy, acted=True).value[row]
        raise NotVerifiedError(
            f"{names[episode]}: step {step} was recorded with propensity {steps.recorded[row]:.6g}, but {policy.name} "
            f"gives {recomputed:.6g} for the same observation: a behavior policy must be a function of the observation "
            "(and of a state that starts with get_initial_state), without its own random numbers"
        )


def add_mixture(
    policies: Sequence[BehaviorPolicy], steps: JoinedEpisodes, episodes: Sequence[dict[str, Array]]
) -> None:
    """Adds each action's propensity under the mixture of all policies: the mean of their propensities.

    mixture_propensity = sum of pi_k(a | s) over the K policies / K
    """
    logs = np.stack([steps.propensity(policy).log for policy in policies])
    mixed = np.logaddexp.reduce(logs, axis=0) - np.log(len(policies))
    for columns, own in zip(episodes, np.split(mixed, np.cumsum(steps.lengths)[:-1]), strict=True):
        # The last step has no action.
        columns.update(zip(MIXTURE, (np.append(np.exp(own), 0.0), np.append(own, 0.0)), strict=True))


def _paths(structure: Structure, name: str) -> list[str]:
    return [f"{name}/{leaf.path}" if leaf.path else name for leaf in structure.leaves]
