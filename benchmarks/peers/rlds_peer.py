"""`convert --to=rlds` and rlds_dataset_mod, in processor time.

    python benchmarks/peers/rlds_peer.py mod DATASET [--episodes N]  as rlds_dataset_mod does
    python benchmarks/peers/rlds_peer.py ours DATASET NAME=VALUE ... a conversion with these options

`mod` resizes and encodes as rlds_dataset_mod's `resize_and_jpeg_encode` does:
a `tf.data` map over the steps of each episode, as numpy, encoded by the dataset's features, and serialized by TFDS.
Prints JSON; rates are in steps per second of processor time (user and system, all threads), without start-up.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SIZE, MIN, QUALITY = 256, 64, 95


TIMES = 3
"""Runs of each in this process; the best counts."""


def cpu(function: Callable[[int], int]) -> dict[str, float]:
    """The best rate of a function that takes the number of the run and returns its number of steps."""
    best = {"steps_per_second": 0.0}
    for i in range(TIMES):
        began = time.process_time()
        steps = function(i)
        seconds = time.process_time() - began
        best = max(best, {"steps_per_second": steps / seconds, "seconds": seconds}, key=lambda f: f["steps_per_second"])
    return best


def ours(directory: Path, room: Path, options: dict[str, Any]) -> dict[str, float]:
    from rlds_beam.jobs.convert import prepare
    from rlds_beam.jobs.options import ConvertOptions
    from rlds_beam.output.commits import read_reports

    jobs = [prepare(ConvertOptions.create(str(directory), str(room / f"out-{i}"), **options)) for i in range(TIMES)]
    for job in jobs:
        job.open()

    def run(i: int) -> int:
        job = jobs[i]
        for work in job.ranges:
            job.converter.convert_range(work, {})
        return sum(report.steps for report in read_reports(job.directory, job.ranges))

    return cpu(run)


def mod(directory: Path, room: Path, episodes: int) -> dict[str, float]:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf
    import tensorflow_datasets as tfds

    def is_image(feature: Any) -> bool:
        return isinstance(feature, tfds.features.Image) and min(feature.shape[:2]) >= MIN

    def resized(step: Any) -> Any:
        observation = dict(step["observation"])
        for name, image in observation.items():
            if len(image.shape) == 3 and min(image.shape[:2]) >= MIN:
                image = tf.image.resize(image, (SIZE, SIZE), method="lanczos3", antialias=True)
                observation[name] = tf.cast(tf.clip_by_value(tf.round(image), 0, 255), tf.uint8)
        return {**step, "observation": observation}

    builder = tfds.builder_from_directory(str(directory))
    steps = dict(builder.info.features["steps"].items())
    observation = {
        name: tfds.features.Image(shape=(SIZE, SIZE, feature.shape[2]), encoding_format="jpeg")
        if is_image(feature)
        else feature
        for name, feature in steps["observation"].items()
    }
    others = {name: feature for name, feature in builder.info.features.items() if name != "steps"}
    new_steps = tfds.features.Dataset({**steps, "observation": tfds.features.FeaturesDict(observation)})
    features = tfds.features.FeaturesDict({**others, "steps": new_steps})

    def run(count: int, target: Path) -> int:
        data = builder.as_dataset(split=f"train[:{count}]")
        data = data.map(lambda episode: {**episode, "steps": episode["steps"].map(resized)})
        serializer = tfds.core.example_serializer.ExampleSerializer(features.get_serialized_info())
        done = 0
        with tf.io.TFRecordWriter(str(target)) as file:
            for episode in tfds.core.dataset_utils.as_numpy(data):
                content = list(episode["steps"])
                done += len(content)
                file.write(serializer.serialize_example(features.encode_example({**episode, "steps": content})))
        return done

    run(1, room / "warm-up")  # traces and compiles
    return cpu(lambda _: run(episodes, room / "mod"))


def main() -> None:
    parser: Any = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("mod", "ours"))
    parser.add_argument("dataset", type=Path)
    parser.add_argument(
        "options", nargs="*", help="options of the conversion: NAME=VALUE, with JSON or a string as the value"
    )
    parser.add_argument("--episodes", type=int, default=1)
    given = parser.parse_intermixed_args()
    from rlds_beam.platforms import keep_freed_memory

    keep_freed_memory()  # as the command does; for the peers as well
    room = Path(tempfile.mkdtemp(dir=given.dataset.parents[1]))
    try:
        if given.kind == "mod":
            found = mod(given.dataset, room, given.episodes)
        else:
            found = ours(given.dataset, room, dict(map(_option, given.options)))
    finally:
        shutil.rmtree(room)
    print(json.dumps(found))


def _option(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    try:
        read = json.loads(value)
    except ValueError:
        read = value
    return name, tuple(read) if isinstance(read, list) else read


if __name__ == "__main__":
    main()
