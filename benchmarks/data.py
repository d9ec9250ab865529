"""Generates the datasets of the benchmarks, once: `python benchmarks/data.py KIND STEPS [FILES] [--into DIR]`.

Prints the dataset's directory. An existing dataset is reused.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from rlds_beam.episodes.episode import Episode
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.testing import make_episode, write_dataset

VERSION = "1.0.0"
STATE_STEPS = 1000
"""Steps of a half-cheetah episode."""
IMAGE_STEPS = 100
CAMERAS = 4
KINDS = ("state", "robot", "png", "jpeg", "jpeg256", "jpeg480", "camera256")
SIZE = 64


def dataset(kind: str, steps: int, files: int, into: Path) -> Path:
    """The dataset's directory; generated on the first call.

    Args:
      kind: `state` (observation 17, action 6, float32), `robot` (state 7, action 7, no images),
        `png` or `jpeg` (4 cameras of 64x64x3, state 7, action 7), `jpeg256` and
        `jpeg480` (images of 256x256x3 and 480x480x3), `camera256` (one camera of 256x256x3).
      steps: the total number, in episodes of 1,000 (100 for robots and with images).
      files: the number of shards.
      into: the folder of all datasets.
    """
    name = f"{kind}_{steps}_in_{files}"
    if not (into / name).exists():
        making = into / f".{name}.{os.getpid()}"
        shutil.rmtree(making, ignore_errors=True)
        length = _length(kind)
        write_dataset(making, episodes(kind, steps // length), name=name, version=VERSION, shards=files)
        (making / name).rename(into / name)
        making.rmdir()
    return into / name / VERSION


def episodes(kind: str, count: int) -> Iterator[Episode]:
    """`count` episodes, each with different values."""
    for seed in range(count):
        if kind == "state":
            yield make_episode(STATE_STEPS, seed=seed, observation=17, action=6)
        elif kind.startswith("robot"):
            yield make_episode(_length(kind), seed=seed, observation={"state": 7}, action=7)
        else:
            length = _length(kind)
            encoding = "png" if kind == "png" else "jpeg"
            size = int(re.sub(r"\D", "", kind) or SIZE)
            count = 1 if kind.startswith("camera") else CAMERAS
            cameras = {
                f"observation/image_{i}": camera(encoding, count * seed + i, size)[:length] for i in range(count)
            }
            yield make_episode(length, seed=seed, observation={"state": 7}, action=7, columns=cameras)


def _length(kind: str) -> int:
    """Steps of an episode."""
    return STATE_STEPS if kind == "state" else IMAGE_STEPS


def camera(encoding: str, seed: int, size: int = SIZE) -> EncodedImages:
    """A camera's images of an episode: moving boxes on a soft background with a little noise."""
    rng = np.random.default_rng(seed)
    background = cv2.resize(rng.uniform(0, 255, (6, 6, 3)), (size, size), interpolation=cv2.INTER_CUBIC)
    background += rng.normal(0, 1.5, background.shape)
    pixels = np.repeat(background.clip(0, 255).astype(np.uint8)[None], IMAGE_STEPS, axis=0)
    for _ in range(5):
        color, (height, width) = rng.integers(0, 255, 3), rng.integers(6 * size // 64, 24 * size // 64, 2)
        rows = np.linspace(*rng.integers(0, size - height, 2), IMAGE_STEPS).astype(int)
        columns = np.linspace(*rng.integers(0, size - width, 2), IMAGE_STEPS).astype(int)
        for step, (row, column) in enumerate(zip(rows, columns, strict=True)):
            pixels[step, row : row + height, column : column + width] = color
    data = np.empty(IMAGE_STEPS, object)
    data[:] = [cv2.imencode(f".{encoding}", image)[1].tobytes() for image in pixels]
    return EncodedImages(data, (size, size, 3), "uint8")


def main() -> None:
    parser: Any = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("steps", type=int)
    parser.add_argument("files", type=int, nargs="?", default=1)
    parser.add_argument("--into", type=Path, default=Path("bench_data"))
    args = parser.parse_args()
    print(dataset(args.kind, args.steps, args.files, args.into))


if __name__ == "__main__":
    main()
