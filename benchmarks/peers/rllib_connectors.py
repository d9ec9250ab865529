"""RLlib's connector pieces and ours, on the same episodes in memory. Prints JSON.

    python benchmarks/peers/rllib_connectors.py [--episodes N] [--length T] [--repeats N]

Runs in the environment of `make test-peers` (.venv-peers-rllib). Both run the default learner pipeline of a recurrent
module, with `max_seq_len=20` and recorded states, and end with tensors, which are first checked to be equal.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from ray.rllib.connectors import common, learner
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rlds_beam import connectors as ours
from rlds_beam.episodes.columns import flatten
from rlds_beam.episodes.episode import Episode, EpisodeKey

MAX_SEQ_LEN = 20
STATE = 64
OBSERVATION, ACTION = (gym.spaces.Box(-np.inf, np.inf, (size,), np.float32) for size in (17, 6))
THEIR_PIECES = [
    common.AddObservationsFromEpisodesToBatch(as_learner_connector=True),
    learner.AddColumnsFromEpisodesToTrainBatch(),
    common.AddTimeDimToBatchAndZeroPad(as_learner_connector=True),
    common.AddStatesFromEpisodesToBatch(as_learner_connector=True),
    common.BatchIndividualItems(multi_agent=False),
    common.NumpyToTensor(as_learner_connector=True),
]
OUR_PIECES = [
    ours.AddObservationsFromEpisodesToBatch(),
    ours.AddColumnsFromEpisodesToTrainBatch(),
    ours.AddTimeDimToBatchAndZeroPad(MAX_SEQ_LEN),
    ours.AddStatesFromEpisodesToBatch(),
    ours.BatchIndividualItems(),
    ours.NumpyToTensor(),
]


class Recurrent(TorchRLModule):
    """A module with a state, the only thing that the connectors ask for."""

    def setup(self) -> None: ...

    def get_initial_state(self) -> dict[str, Any]:
        return {name: np.zeros(STATE, np.float32) for name in ("c", "h")}


def episodes(count: int, length: int, *, one_layer: bool = False) -> tuple[list[SingleAgentEpisode], list[Episode]]:
    """The same episodes as RLlib records them and as RLDS; `one_layer` adds an axis for layers to the states."""
    rng, theirs, made = np.random.default_rng(0), [], []
    state = (length + 1, 1, STATE) if one_layer else (length + 1, STATE)
    for i in range(count):
        steps = {
            "observation": rng.standard_normal((length + 1, *OBSERVATION.shape), np.float32),
            "action": rng.standard_normal((length + 1, *ACTION.shape), np.float32),
            "reward": rng.standard_normal(length + 1, np.float32),
            "action_logp": rng.standard_normal(length + 1, np.float32),
            "state_out/c": rng.standard_normal(state, np.float32),
            "state_out/h": rng.standard_normal(state, np.float32),
            **{name: np.zeros(length + 1, bool) for name in ("is_first", "is_last", "is_terminal")},
        }
        steps["is_first"][0] = steps["is_last"][-1] = steps["is_terminal"][-1] = True
        made.append(Episode(EpisodeKey("benchmark/1.0.0", "train", 0, i), steps))
        states = [{"c": c, "h": h} for c, h in zip(steps["state_out/c"], steps["state_out/h"], strict=True)]
        theirs.append(
            SingleAgentEpisode(
                id_=f"episode{i}",
                observation_space=OBSERVATION,
                action_space=ACTION,
                observations=list(steps["observation"]),
                actions=list(steps["action"][:-1]),
                rewards=list(steps["reward"][:-1]),
                extra_model_outputs={"action_logp": list(steps["action_logp"][:-1]), "state_out": states[:-1]},
                terminated=True,
                len_lookback_buffer=0,
            ).to_numpy()
        )
    return theirs, made


def module() -> Any:
    spec = RLModuleSpec(
        module_class=Recurrent,
        observation_space=OBSERVATION,
        action_space=ACTION,
        model_config={"max_seq_len": MAX_SEQ_LEN},
    )
    return MultiRLModuleSpec(rl_module_specs={"default_policy": spec}).build()


def theirs(recorded: list[SingleAgentEpisode], rl_module: Any) -> dict[str, torch.Tensor]:
    batch: dict[str, Any] = {}
    shared: dict[str, Any] = {}
    for piece in THEIR_PIECES:
        batch = piece(rl_module=rl_module, batch=batch, episodes=recorded, shared_data=shared)
    return batch["default_policy"]


def our_batch(recorded: list[Episode]) -> dict[str, torch.Tensor]:
    made = ours.connect(OUR_PIECES, recorded).modules
    return {name: torch.from_numpy(column) for name, column in made["default_policy"].items()}


def check_equal(their: dict[str, Any], made: dict[str, torch.Tensor]) -> None:
    flat = {path: leaf for name, value in their.items() for path, leaf in flatten(value, name).items()}
    assert flat.keys() == made.keys(), (flat.keys(), made.keys())
    for name, value in flat.items():
        assert torch.equal(value.to(made[name].dtype), made[name]), name


def seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--length", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    flags = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    rl_module = module()
    recorded, made = episodes(flags.episodes, flags.length)
    check_equal(theirs(recorded, rl_module), our_batch(made))
    steps, runs = flags.episodes * flags.length, {"rllib": [], "ours": []}  # type: dict[str, list[float]]
    for _ in range(flags.repeats):
        runs["rllib"].append(seconds(lambda: theirs(recorded, rl_module)))
        runs["ours"].append(seconds(lambda: our_batch(made)))
    print(json.dumps({name: {"steps_per_second": steps / min(found)} for name, found in runs.items()}))


if __name__ == "__main__":
    main()
