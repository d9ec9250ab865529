"""Datasets of any size, and the memory that converting them takes."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np

from rlds_beam.encoding.tfds.rlds_dataset import encode_example
from rlds_beam.encoding.tfrecord.framing import frame
from rlds_beam.episodes.episode import Episode
from rlds_beam.testing import shard_paths, write_dataset

MARK = np.float32(-1234.5678)


def large_shard(directory: Path, episode: Episode, count: int) -> Path:
    """Writes a dataset of one shard of `count` records that differ in one number, which is fast at any size."""
    episode.steps["reward"][0] = MARK
    target = write_dataset(directory, [episode] * count if count == 1 else [episode])
    before, after = encode_example(episode).split(struct.pack("<f", MARK))
    with open(shard_paths(target)[0], "wb") as file:
        for number in range(count):
            file.write(frame(b"".join((before, struct.pack("<f", number), after))))
    info = json.loads((target / "dataset_info.json").read_text())
    info["splits"][0]["shardLengths"] = [str(count)]
    (target / "dataset_info.json").write_text(json.dumps(info))
    return target


def peak_mb(source: Path, output: Path, *flags: str) -> int:
    """Measures the peak resident memory of a conversion in a fresh process."""
    command = [sys.executable, "-m", "rlds_beam", "convert", source, output, "--workers=1", "--json", *flags]
    ran = subprocess.run([str(a) for a in command], capture_output=True, text=True, timeout=300, check=True)
    return json.loads(ran.stdout)["peak_memory_mb"]
