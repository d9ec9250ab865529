"""Writes large datasets quickly: `python benchmarks/bulk.py NAME SIZES [--episode KIND] [--into DIR]`.

SIZES gives the shards in megabytes: `1x1024`, `2000x0.5`, or several, separated by commas. One episode is encoded
once; each record is a copy with a different first reward, so all differ and only the disk takes time. Prints the
dataset's directory. An existing dataset is reused.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import data
import numpy as np

from rlds_beam.encoding.tfds.rlds_dataset import default_schema, encode_example
from rlds_beam.encoding.tfrecord.rows import frame
from rlds_beam.episodes.episode import Episode
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.testing import make_episode, write_dataset

MEGA = 1 << 20
_MARK = np.float32(-1234.5678)
"""Marks the place of the record number in the template."""


def dataset(name: str, sizes: list[float], episode: Episode, into: Path) -> Path:
    """The dataset's directory; generated on the first call.

    Args:
      name: the dataset's name.
      sizes: the sizes of its shards in MB; each holds at least one record.
      episode: the content of every record, except for its first reward.
      into: the folder of all datasets.
    """
    if not (into / name).exists():
        making = into / f".{name}.{os.getpid()}"
        shutil.rmtree(making, ignore_errors=True)
        write(making, name, episode, _payloads(episode), [mega * MEGA for mega in sizes])
        (making / name).rename(into / name)
        making.rmdir()
    return into / name / "1.0.0"


def write(directory: Path, name: str, first: Episode, payloads: Iterator[bytes], sizes: list[float]) -> Path:
    """Writes `directory/name/1.0.0` record by record; returns this path.

    Args:
      directory: the data_dir of TFDS.
      name: the dataset's name.
      first: an episode with the schema of all records.
      payloads: the records; as many are taken as fit.
      sizes: the sizes of the shards in bytes; each holds at least one record.
    """
    target = write_dataset(directory, [first], name=name)
    next(target.glob("*.tfrecord-*")).unlink()
    counts, total = [], 0
    for i, size in enumerate(sizes):
        count = written = 0
        with open(target / f"{name}-train.tfrecord-{i:05d}-of-{len(sizes):05d}", "wb") as file:
            while not count or written + written / count / 2 < size:  # to the nearest record
                payload = next(payloads)
                written += file.write(frame(payload))
                total += len(payload)
                count += 1
        counts.append(count)
    path = target / "dataset_info.json"
    info = json.loads(path.read_text())
    info["splits"][0] |= {"shardLengths": [str(count) for count in counts], "numBytes": str(total)}
    path.write_text(json.dumps(info))
    return target


def _payloads(episode: Episode) -> Iterator[bytes]:
    """Endless records, each with a different first reward."""
    reward = episode.steps["reward"].copy()
    reward[0] = _MARK
    marked = episode.replace(steps={**episode.steps, "reward": reward})
    before, after = encode_example(marked, default_schema(episode)).split(struct.pack("<f", _MARK))
    number = 0
    while True:
        yield b"".join((before, struct.pack("<f", number), after))
        number += 1


def episode(kind: str) -> Episode:
    """`state` (1,000 steps, 0.1 MB), or `huge` (1,500 images of 256x256 noise, which PNG cannot compress: 300 MB)."""
    if kind == "state":
        return make_episode(data.STATE_STEPS, observation=17, action=6)
    import cv2

    rng = np.random.default_rng(0)
    few = [cv2.imencode(".png", rng.integers(0, 255, (256, 256, 3), np.uint8))[1].tobytes() for _ in range(8)]
    images = np.empty(1500, object)
    images[:] = [few[i % len(few)] for i in range(len(images))]
    camera = EncodedImages(images, (256, 256, 3), "uint8")
    return make_episode(len(images), observation={"state": 7}, action=7, columns={"observation/image": camera})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("sizes")
    parser.add_argument("--episode", choices=("state", "huge"), default="state")
    parser.add_argument("--into", type=Path, default=Path("bench_data"))
    args = parser.parse_args()
    pairs = (text.split("x") for text in args.sizes.split(","))
    sizes = [float(mega) for count, mega in pairs for _ in range(int(count))]
    print(dataset(args.name, sizes, episode(args.episode), args.into))


if __name__ == "__main__":
    main()
