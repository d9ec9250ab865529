"""Prepares trajectories padded to one length for SCOPE-RL's estimators."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds_beam.errors import UsageError
from rlds_beam.typing import Array


def mask_padding(
    logged_dataset: Mapping[str, Any], input_dict: Mapping[str, Mapping[str, Any]], bandwidth: float = 1.0
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Copies a padded logged dataset and SCOPE-RL's inputs so that padded rows do not change an estimate.

        inputs = CreateOPEInput(env=env).obtain_whole_inputs(logged_dataset, evaluation_policies=[policy])
        logged_dataset, inputs = mask_padding(logged_dataset, inputs)
        OffPolicyEvaluation(logged_dataset, ope_estimators=[...]).estimate_policy_value(inputs)

    SCOPE-RL multiplies the evaluation policy's probabilities over all rows of a trajectory. In the copies, the
    importance ratio of a padded row is 1 and its predicted values are 0. `done` is 0 everywhere, because SCOPE-RL by
    default drops the reward of rows with `done`, an episode's last step. For continuous actions, the first column of
    `pscore` is the density of the action and the others are 1, because SCOPE-RL multiplies them.

    Args:
      logged_dataset: the output of `--to=scope_rl` or `LoggedDataset.padded()`, with a `mask`.
      input_dict: the result of SCOPE-RL's `CreateOPEInput`, by evaluation policy.
      bandwidth: the bandwidth of `OffPolicyEvaluation`, for continuous actions; its kernel is Gaussian.

    Raises:
      UsageError: the logged dataset has no `mask` or no propensities, or the inputs have another number of rows.
    """
    for key in ("mask", "pscore"):
        if logged_dataset.get(key) is None:
            raise UsageError(f"mask_padding: the logged dataset has no {key}")
    padding, discrete = np.asarray(logged_dataset["mask"]) == 0, logged_dataset["action_type"] == "discrete"
    logged = {**logged_dataset, "done": np.zeros(len(padding))}
    if not discrete:
        density = np.asarray(logged["pscore"]).reshape(len(padding), -1)[:, 0]
        logged["pscore"] = np.ones(np.shape(logged["action"]))
        logged["pscore"][:, 0] = np.where(padding, 1 / math.sqrt(2 * math.pi * bandwidth**2), density)
        logged["action"] = _replace(logged["action"], padding, 0.0)
    stored = np.eye(logged["n_actions"])[logged["action"][padding]] if discrete else None
    values = {
        "evaluation_policy_action_dist": stored,
        "evaluation_policy_action": None if discrete else 0.0,
        "state_action_value_prediction": 0.0,
    }
    return logged, {policy: _mask(inputs, padding, values) for policy, inputs in input_dict.items()}


def _mask(inputs: Mapping[str, Any], padding: Array, values: Mapping[str, Any]) -> dict[str, Any]:
    masked = dict(inputs)
    for key, value in values.items():
        if inputs.get(key) is not None and value is not None:
            if len(inputs[key]) != len(padding):
                rows = f"{len(inputs[key]):,} rows, but the logged dataset has {len(padding):,}"
                raise UsageError(f"mask_padding: {key} has {rows}")
            masked[key] = _replace(inputs[key], padding, value)
    return masked


def _replace(array: Any, rows: Array, value: Any) -> Array:
    changed = np.array(array, np.float64)
    changed[rows] = value
    return changed
