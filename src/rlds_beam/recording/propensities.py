"""Propensities, computed anew from what is going to be stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from rlds_beam.errors import NotVerifiedError
from rlds_beam.recording.policies import BehaviorPolicy
from rlds_beam.recording.rollout import PROPENSITY
from rlds_beam.recording.spaces import Structure

Array: TypeAlias = "np.ndarray[Any, Any]"

MIXTURE = ("mixture_propensity", "log_mixture_propensity")


def check_propensities(
    policy: BehaviorPolicy, observation: Structure, action: Structure, columns: Mapping[str, Array], name: str
) -> None:
    """Computes the propensity of each stored action anew, from the stored observations, and compares.

    Args:
      columns: of an episode of T steps, of which T - 1 have an action.
      name: of the episode, for messages.

    Raises:
      NotVerifiedError: another propensity was recorded: the policy does not depend on the observation alone.
    """
    actions = tuple(column[:-1] for column in _leaves(action, "action", columns))
    recorded = columns[PROPENSITY][:-1]
    distribution = policy.distribution(observations(observation, columns))
    same = distribution.may_be(actions, recorded)
    if not same.all():
        step = int(np.argmin(same))
        found = distribution.propensity(actions).value[step]
        raise NotVerifiedError(
            f"{name}: at step {step} the propensity {recorded[step]:.6g} was recorded, and it is {found:.6g} when "
            f"{policy.name} is given the same observation again: a behaviour policy has to be a function of the "
            "observation, without a state and without random numbers of its own"
        )


def add_mixture(
    policies: Sequence[BehaviorPolicy], observation: Structure, action: Structure, columns: dict[str, Array]
) -> None:
    """Adds the propensity of each action under the mixture: the mean of those of all policies.

    mixture_propensity = sum of pi_k(a | s) over the K policies / K
    """
    actions = tuple(column[:-1] for column in _leaves(action, "action", columns))
    given = observations(observation, columns)
    logs = np.stack([policy.distribution(given).propensity(actions).log for policy in policies])
    mixed = np.append(np.logaddexp.reduce(logs, axis=0) - np.log(len(policies)), 0.0)
    value = np.exp(mixed)
    value[-1] = 0.0  # the last step has no action
    columns.update(zip(MIXTURE, (value, mixed), strict=True))


def observations(structure: Structure, columns: Mapping[str, Array]) -> Any:
    """The observations of an episode that have an action, nested as the policy is given them."""
    return structure.build([column[:-1] for column in _leaves(structure, "observation", columns)])


def _leaves(structure: Structure, name: str, columns: Mapping[str, Array]) -> list[Array]:
    return [columns[f"{name}/{leaf.path}" if leaf.path else name] for leaf in structure.leaves]
