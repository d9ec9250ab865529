"""Statistics as Octo and OpenVLA compute them: `python benchmarks/peers/statistics_peer.py DATASET --episodes N`.

TFDS reads the episodes with their steps batched (`SkipDecoding`, as dlimp does), a loop over `tf.data` collects the
action and state of each in lists, and numpy computes mean, std, min, max, and quantiles of all at once. Prints JSON:
`start_up` is the seconds until the first episode, which `steps_per_second` excludes.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")


def trajectories(directory: str) -> Any:
    """A tf.data.Dataset of episodes, each with the action and state of all its steps."""
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(directory)
    episodes = builder.as_dataset(
        split="train",
        decoders={"steps": tfds.decode.SkipDecoding()},
        read_config=tfds.ReadConfig(skip_prefetch=True, interleave_cycle_length=16),
    )

    def action_and_state(episode: Any) -> dict[str, Any]:
        steps = episode["steps"]
        state = steps["observation"]
        return {"action": steps["action"], "state": state["state"] if isinstance(state, dict) else state}

    return episodes.map(action_and_state)


def measure(directory: str, episodes: int) -> dict[str, float]:
    began = time.perf_counter()
    import numpy as np

    stream = trajectories(directory).as_numpy_iterator()
    next(stream)
    warm = time.perf_counter()
    actions, states = [], []
    for _, trajectory in zip(range(episodes), stream, strict=False):
        actions.append(trajectory["action"])
        states.append(trajectory["state"])
    statistics = {}
    for name, collected in (("action", actions), ("state", states)):
        values = np.concatenate(collected)
        statistics[name] = {
            "mean": values.mean(0),
            "std": values.std(0),
            "max": values.max(0),
            "min": values.min(0),
            "q01": np.quantile(values, 0.01, axis=0),
            "q99": np.quantile(values, 0.99, axis=0),
        }
    seconds, steps = time.perf_counter() - warm, sum(map(len, actions))
    return {"steps": steps, "seconds": seconds, "steps_per_second": steps / seconds, "start_up": warm - began}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--episodes", type=int, default=1_000_000)
    args = parser.parse_args()
    print(json.dumps(measure(args.dataset, args.episodes)))


if __name__ == "__main__":
    main()
