"""TF-Agents' rlds_to_reverb, or our drop-in.

    python benchmarks/peers/reverb_dropin.py WHO WHAT DATASET --steps N

WHO is `agents` or `ours`. WHAT is `convert`: `convert_rlds_to_trajectories(...).batch(256)`, iterated over; or `push`:
`push_rlds_to_reverb` with a `ReverbAddTrajectoryObserver` of step pairs, into a fresh server. TFDS reads the dataset
on both sides. Prints JSON: `steps_per_second` covers `--steps` steps after a warm-up, from the first frame on.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

BATCH = 256
EPISODE = 1000
"""Steps."""
MODULES = {
    "agents": ("tf_agents.replay_buffers.rlds_to_reverb", "tf_agents.replay_buffers.reverb_utils"),
    "ours": ("rlds_beam.drop_in.rlds_to_reverb", "rlds_beam.drop_in.reverb_observers"),
}


def convert(rlds_to_reverb: Any, episodes: Any, steps: int, warm_up: int) -> float:
    """Seconds for `steps` steps."""
    batches = iter(rlds_to_reverb.convert_rlds_to_trajectories(episodes).batch(BATCH))
    for _ in range(-(-warm_up // BATCH)):
        next(batches)
    began = time.perf_counter()
    for _ in range(steps // BATCH):
        next(batches)
    return (time.perf_counter() - began) * steps / (steps // BATCH * BATCH)


def push(rlds_to_reverb: Any, observers: Any, dataset: str, episodes: Any, steps: int, warm_up: int) -> float:
    """Seconds for `steps` steps."""
    import reverb

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from tables import TABLE, options_of, servers

    from rlds_beam.jobs.push import open_input

    with servers(open_input(options_of(dataset)), 1) as (address,):
        client = reverb.Client(address)
        observer = _clocked(observers.ReverbAddTrajectoryObserver)(client, TABLE, sequence_length=2)
        # The first push includes one-time work.
        for count in (warm_up, steps):
            observer.began = None
            pushed = rlds_to_reverb.push_rlds_to_reverb(episodes.take(count // EPISODE), observer)
            observer.flush()
            seconds = time.perf_counter() - observer.began
            assert pushed == count, f"{pushed} of {count} steps pushed"
        there, expected = client.server_info()[TABLE].current_size, (warm_up + steps) // EPISODE * (EPISODE - 1)
        assert there == expected, f"{there} of {expected} items in the table"
        observer.close()
    return seconds


def _clocked(observer: Any) -> Any:
    """The observer's class, with the time of the first frames in `began`, after tracing."""

    class Clocked(observer):
        began: float | None = None

        def __call__(self, frame: Any) -> None:
            self.began = self.began or time.perf_counter()
            super().__call__(frame)

        def add_episode(self, frames: Any) -> None:
            self.began = self.began or time.perf_counter()
            super().add_episode(frames)

    if not hasattr(observer, "add_episode"):
        del Clocked.add_episode
    return Clocked


def measure(who: str, what: str, dataset: str, steps: int, warm_up: int) -> dict[str, float]:
    began = time.perf_counter()
    import tensorflow_datasets as tfds

    rlds_to_reverb, observers = (importlib.import_module(name) for name in MODULES[who])
    episodes = tfds.builder_from_directory(dataset).as_dataset(split="train")
    if what == "convert":
        seconds = convert(rlds_to_reverb, episodes, steps, warm_up)
    else:
        seconds = push(rlds_to_reverb, observers, dataset, episodes, steps, warm_up)
    whole = time.perf_counter() - began
    return {"steps": steps, "seconds": seconds, "steps_per_second": steps / seconds, "start_up": whole - seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("who", choices=MODULES)
    parser.add_argument("what", choices=("convert", "push"))
    parser.add_argument("dataset")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--warm_up", type=int, default=EPISODE)
    args = parser.parse_args()
    print(json.dumps(measure(args.who, args.what, args.dataset, args.steps, args.warm_up)))


if __name__ == "__main__":
    main()
