"""SCOPE-RL's logged data, converted to RLDS and back with `--to=scope_rl`: the same dict and the same estimates."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import gym
import numpy as np
import pytest
from d3rlpy.algos import DoubleDQNConfig
from exchanging import export
from scope_rl.dataset import SyntheticDataset
from scope_rl.ope import CreateOPEInput, OffPolicyEvaluation
from scope_rl.ope.discrete import (
    PerDecisionImportanceSampling,
    SelfNormalizedPDIS,
    SelfNormalizedTIS,
    TrajectoryWiseImportanceSampling,
)
from scope_rl.policy import EpsilonGreedyHead
from scope_rl.utils import MultipleLoggedDataset

from rlds_beam.encoding.tfds.rlds_dataset import write_dataset
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.episodes.schema import Field, Schema

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import rtbgym  # noqa: F401  (registers its environments)

pytestmark = pytest.mark.filterwarnings("ignore")

INFO = {"search_volume": int, "impression": int, "click": int, "conversion": int, "average_bid_price": float}
TRAJECTORIES = 30


def as_rlds(directory: Path, logged: dict[str, Any]) -> Path:
    """Writes the trajectories, each with a void last step, without changing float64."""
    steps, episodes = logged["step_per_trajectory"], []
    for i in range(logged["n_trajectories"]):
        rows = slice(i * steps, (i + 1) * steps)
        columns = {
            "observation": logged["state"],
            "action": logged["action"],
            "reward": logged["reward"],
            "propensity": logged["pscore"],
            **{f"info/{k}": v for k, v in logged["info"].items()},
        }
        made = {path: np.concatenate([column[rows], column[rows][-1:]]) for path, column in columns.items()}
        place = np.arange(steps + 1)
        made |= {"is_first": place == 0, "is_last": place == steps, "is_terminal": place == steps}
        made["discount"] = np.ones(steps + 1, np.float32)
        episodes.append(Episode(EpisodeKey("logged/1.0.0", "train", 0, i), made, {"policy": logged["behavior_policy"]}))
    fields = {
        path: Field(path, c.dtype.name, c.shape[1:], "bytes" if c.dtype == np.float64 else "none")
        for path, c in episodes[0].steps.items()
    }
    schema = Schema(fields, {"policy": Field("policy", "string", (), "text", "Text")})
    return write_dataset(directory, episodes, name="logged", shards=3, schema=schema)


def test_what_we_export_is_what_scope_rl_logged(tmp_path):
    env = gym.make("RTBEnv-discrete-v0", action_meaning=np.clip(np.logspace(-1, 1, 10), 0.1, 10))
    ddqn = DoubleDQNConfig().create()
    ddqn.build_with_env(env)
    behavior, evaluated = (
        EpsilonGreedyHead(ddqn, n_actions=10, epsilon=epsilon, name=f"eg_{epsilon}", random_state=12345)
        for epsilon in (0.3, 0.1)
    )
    theirs = SyntheticDataset(
        env=env, max_episode_steps=env.step_per_episode, state_keys=env.obs_keys, info_keys=INFO
    ).obtain_episodes(behavior, n_trajectories=TRAJECTORIES, obtain_info=True, random_state=12345)
    out = tmp_path / "out"
    report = export(
        as_rlds(tmp_path / "data", theirs), out, "scope_rl", shards=2, behavior_policy="eg_0.3", n_actions=10
    )
    assert report.items_written == TRAJECTORIES
    ours = MultipleLoggedDataset("discrete", str(out)).get("eg_0.3", 0)
    assert [*ours][: len(theirs)] == [*theirs]
    for key, expected in theirs.items():
        if key == "info":
            for name, values in expected.items():
                assert ours["info"][name].dtype == values.dtype
                np.testing.assert_array_equal(ours["info"][name], values)
        elif isinstance(expected, np.ndarray):
            assert ours[key].dtype == expected.dtype, key
            np.testing.assert_array_equal(ours[key], expected, err_msg=key)
        elif key != "state_keys":  # RLDS has no names of dimensions
            assert ours[key] == expected, key

    def estimates(logged: dict[str, Any]) -> dict[str, float]:
        inputs = CreateOPEInput(env=env).obtain_whole_inputs(
            logged_dataset=logged, evaluation_policies=[evaluated], random_state=1
        )
        estimators = [
            TrajectoryWiseImportanceSampling(),
            PerDecisionImportanceSampling(),
            SelfNormalizedTIS(),
            SelfNormalizedPDIS(),
        ]
        ope = OffPolicyEvaluation(logged_dataset=logged, ope_estimators=estimators, disable_reward_after_done=False)
        found: dict[str, float] = ope.estimate_policy_value(inputs)["eg_0.1"]
        return found

    found = estimates(ours)
    assert found == estimates(theirs)
    assert len(found) >= 4 and found["tis"] != 0
