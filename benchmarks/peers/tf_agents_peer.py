"""TF-Agents' conversion, measured in its own process.

    python benchmarks/peers/tf_agents_peer.py DATASET OUTPUT --steps N

TFDS reads the dataset and decodes its images, `rlds_to_reverb.convert_rlds_to_trajectories` makes the
trajectories, and `example_encoding_dataset.TFRecordObserver` writes them. Prints JSON: `start_up` is the
seconds until the first steps are written (imports, tracing, warm-up), which `steps_per_second` excludes.

TF-Agents has no writer for step pairs, so it always writes single frames.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")


def trajectories(directory: str) -> tuple[Any, Any]:
    """The dataset of trajectories, and their spec.

    TF-Agents' conversion gives nested observations the wrong shape (their leaves are not sliced out of
    the pair), so cameras are first stacked into one tensor, and other observations are dropped.
    """
    import tensorflow as tf
    import tensorflow_datasets as tfds
    from tf_agents.replay_buffers import rlds_to_reverb

    episodes = tfds.builder_from_directory(directory).as_dataset(split="train")
    if isinstance(episodes.element_spec["steps"].element_spec["observation"], dict):

        def stacked(step: dict[str, Any]) -> dict[str, Any]:
            cameras = [value for name, value in sorted(step["observation"].items()) if name.startswith("image")]
            return {**step, "observation": tf.stack(cameras)}

        episodes = episodes.map(lambda episode: {**episode, "steps": episode["steps"].map(stacked)})
    spec = rlds_to_reverb.create_trajectory_data_spec(episodes)
    return rlds_to_reverb.convert_rlds_to_trajectories(episodes), spec


def measure(directory: str, output: str, steps: int, warm_up: int) -> dict[str, float]:
    """Writes `warm_up` steps, then `steps` more, timed."""
    began = time.perf_counter()
    from tf_agents.utils import example_encoding_dataset

    dataset, spec = trajectories(directory)
    observer = example_encoding_dataset.TFRecordObserver(output, spec, py_mode=True)
    stream = dataset.as_numpy_iterator()
    for _ in range(warm_up):
        observer(next(stream))
    warm, cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        observer(next(stream))
    observer.flush()
    seconds, cpu = time.perf_counter() - warm, time.process_time() - cpu
    observer.close()
    return {
        "steps": steps,
        "seconds": seconds,
        "steps_per_second": steps / seconds,
        "start_up": warm - began,
        "cores": cpu / seconds,
        "bytes_per_step": os.path.getsize(output) / (steps + warm_up),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("output")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--warm_up", type=int, default=200)
    args = parser.parse_args()
    print(json.dumps(measure(args.dataset, args.output, args.steps, args.warm_up)))


if __name__ == "__main__":
    main()
