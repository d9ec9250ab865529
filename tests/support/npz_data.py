"""`.npz` files as ExoRL, OGBench, and D4RL lay them out, written by the calls that they make."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

Arrays = dict[str, Any]


def exorl_episode(steps: int, seed: int, *, terminal: bool = False) -> Arrays:
    """Rows 0 to `steps`; row 0 has a dummy action. Dtypes and shapes as ExoRL's `dmc.py` gives them."""
    rng = np.random.default_rng(seed)
    rows = steps + 1
    action, reward = rng.uniform(-1, 1, (rows, 6)).astype("f4"), rng.normal(size=(rows, 1)).astype("f4")
    action[0], reward[0] = 0, 0
    discount = np.ones((rows, 1), np.float32)
    if terminal:
        discount[-1] = 0
    observation = rng.normal(size=(rows, 24)).astype(np.float32)
    physics = rng.normal(size=(rows, 18))
    return {"observation": observation, "action": action, "reward": reward, "discount": discount, "physics": physics}


def write_exorl(directory: Path, episodes: int = 3, steps: int = 5) -> list[Arrays]:
    """Writes files as `save_episode` of ExoRL's `replay_buffer.py`."""
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for i in range(episodes):
        episode = exorl_episode(steps + i, i, terminal=i == 1)
        with io.BytesIO() as buffer:
            np.savez_compressed(buffer, **episode)
            (directory / f"episode_{i:06d}_{steps + i}.npz").write_bytes(buffer.getvalue())
        written.append(episode)
    return written


def ogbench_arrays(lengths: tuple[int, ...], seed: int = 0, *, visual: bool = False) -> Arrays:
    """The arrays of OGBench's `generate_locomaze.py`: `terminals` ends each trajectory."""
    rng, rows = np.random.default_rng(seed), sum(lengths)
    observations: Any = rng.normal(size=(rows, 29)).astype("f4")
    if visual:
        observations = rng.integers(0, 255, (rows, 16, 16, 3), np.uint8)
    terminals = np.zeros(rows, bool)
    terminals[np.cumsum(lengths) - 1] = True
    qpos = rng.normal(size=(rows, 15)).astype("f4")
    return {
        "observations": observations,
        "actions": rng.uniform(-1, 1, (rows, 8)).astype("f4"),
        "terminals": terminals,
        "qpos": qpos,
        "qvel": qpos[:, :14] * 2,
    }


def load_ogbench(path: Path, dtype: Any = np.float32) -> Arrays:
    """OGBench's `utils.load_dataset(..., compact_dataset=False, add_info=True)`, restated (seohongpark/ogbench)."""
    file = np.load(path)
    dataset: Arrays = {
        "observations": file["observations"][...].astype(dtype, copy=False),
        "actions": file["actions"][...].astype(np.float32, copy=False),
        "terminals": file["terminals"][...].astype(np.float32, copy=False),
    }
    kept = (1.0 - dataset["terminals"]).astype(bool)
    following = np.concatenate([[False], kept[:-1]])
    dataset["next_observations"] = dataset["observations"][following]
    dataset["observations"], dataset["actions"] = dataset["observations"][kept], dataset["actions"][kept]
    ends = np.concatenate([dataset["terminals"][1:], [1.0]])
    dataset["terminals"] = ends[kept].astype(np.float32)
    return dataset | {name: file[name][...][kept] for name in ("qpos", "qvel")}


def exorl_transitions(episode: Arrays) -> Arrays:
    """All samples of an episode, as `OfflineReplayBuffer._sample` of ExoRL's `replay_buffer.py` takes them."""
    rows = np.arange(1, len(episode["action"]))
    return {
        "observation": episode["observation"][rows - 1],
        "action": episode["action"][rows],
        "reward": episode["reward"][rows],
        "discount": episode["discount"][rows],
        "next_observation": episode["observation"][rows],
    }


def d4rl_arrays(seed: int = 0, *, following: bool = True) -> Arrays:
    """Three episodes of 4, 3, and 5 rows: terminated, timed out, terminated."""
    rng, rows = np.random.default_rng(seed), 12
    observations = rng.normal(size=(rows, 3)).astype("f4")
    arrays: Arrays = {
        "observations": observations,
        "actions": rng.normal(size=(rows, 2)).astype("f4"),
        "rewards": rng.normal(size=rows).astype("f4"),
        "terminals": np.zeros(rows, bool),
        "timeouts": np.zeros(rows, bool),
        "infos/qpos": rng.normal(size=(rows, 2)),
    }
    arrays["terminals"][[3, 11]] = arrays["timeouts"][6] = True
    if following:
        arrays["next_observations"] = np.roll(observations, -1, axis=0)
        arrays["next_observations"][[3, 6, 11]] = 7
    return arrays
