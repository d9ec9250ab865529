"""Peers of `convert --to=lerobot`: `python benchmarks/peers/lerobot_peer.py KIND DATASET [--steps N]`.

- `writer`: LeRobot's own writer in image mode (`add_frame`, `save_episode`, `finalize`), fed from memory.
- `copy`: reads the input's records with their checksums and writes the same bytes with XXH3.
- `merger`: LeRobot's merge of DATASET, a LeRobot dataset, with itself.
- `encoder`: PyAV with LeRobot's settings and frames decoded beforehand, a file for each camera. Measured in processor
  time, because the encoder has its own threads and workers share the cores.

Prints JSON; rates are in steps per second.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rlds_beam.encoding.tfrecord.file import open_tfrecord, read_records
from rlds_beam.episodes.episode import Episode
from rlds_beam.formats.inputs import open_source
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.output.shards import ShardWriter
from rlds_beam.reading.plan import plan_ranges
from rlds_beam.reading.reader import EpisodeReader

FPS = 10


def episodes(directory: Path, steps: int) -> Iterator[Episode]:
    source = open_source(str(directory))
    for work in plan_ranges(source):
        for segment in work.segments:
            for episode in EpisodeReader(source).read(work.split, segment):
                if steps <= 0:
                    return
                steps -= len(episode)
                yield episode


def pixels(episode: Episode) -> dict[str, Any]:
    return {path: c.decode(path) for path, c in episode.steps.items() if isinstance(c, EncodedImages)}


def writer(directory: Path, steps: int, room: Path) -> tuple[int, float]:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    given = [(episode, pixels(episode)) for episode in episodes(directory, steps)]
    cameras = {path: images.shape[1:] for path, images in given[0][1].items()}
    names = {path: f"observation.images.{path.rpartition('/')[2]}" for path in cameras}
    numbers = {"observation.state": "observation/state", "action": "action"}
    features: dict[str, Any] = {
        names[path]: {"dtype": "image", "shape": shape, "names": ["height", "width", "channels"]}
        for path, shape in cameras.items()
    }
    for name, path in numbers.items():
        shape = given[0][0].steps[path].shape[1:]  # type: ignore[union-attr]
        features[name] = {"dtype": "float32", "shape": shape, "names": None}
    dataset = LeRobotDataset.create("some/name", FPS, features, root=room / "lerobot", use_videos=False)
    began, count = time.perf_counter(), 0
    for episode, images in given:
        for t in range(len(episode)):
            frame = {name: np.asarray(episode.steps[path])[t] for name, path in numbers.items()}
            dataset.add_frame({**frame, **{names[path]: images[path][t] for path in images}, "task": "do it"})
            count += 1
        dataset.save_episode()
    dataset.finalize()
    return count, time.perf_counter() - began


def copy(directory: Path, steps: int, room: Path) -> tuple[int, float]:
    began = time.perf_counter()
    for i, shard in enumerate(sorted(directory.glob("*.tfrecord-*"))):
        with open_tfrecord(str(shard)) as file, ShardWriter(str(room / f"copy-{i}")) as target:
            for record in read_records(file):
                target.write([record.payload], 1)
            target.commit()
    return steps, time.perf_counter() - began


def merger(directory: Path, steps: int, room: Path) -> tuple[int, float]:
    from lerobot.datasets.dataset_tools import merge_datasets
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    both = [LeRobotDataset(f"some/{name}", root=directory) for name in "ab"]
    began = time.perf_counter()
    merged = merge_datasets(both, "some/merged", room / "merged")
    return len(merged), time.perf_counter() - began


def encoder(directory: Path, steps: int, room: Path) -> tuple[int, float]:
    from rlds_beam.formats.lerobot.videos import Encoding, VideoFile

    given = [pixels(episode) for episode in episodes(directory, steps)]
    began, count = time.process_time(), 0
    for camera, images in given[0].items():
        video = VideoFile(str(room / f"{camera.rpartition('/')[2]}.mp4"), Encoding(), FPS, *images.shape[1:3])
        for each in given:
            video.add(each[camera], "")
        video.commit()
        count = video.frames
    return count, time.process_time() - began


def main() -> None:
    kinds = {"writer": writer, "copy": copy, "merger": merger, "encoder": encoder}
    parser: Any = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=kinds)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--steps", type=int, default=1 << 60)
    given = parser.parse_args()
    room = Path(tempfile.mkdtemp(dir=given.dataset.parents[1]))
    try:
        count, seconds = kinds[given.kind](given.dataset, given.steps, room)
    finally:
        shutil.rmtree(room)
    print(json.dumps({"steps_per_second": count / seconds, "seconds": seconds}))


if __name__ == "__main__":
    main()
