"""A worker's memory grows with the size of an episode, not with that of a shard."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rlds_beam.encoding.tfds.rlds_dataset import encode_example
from rlds_beam.encoding.tfrecord.framing import frame
from rlds_beam.episodes.episode import Episode
from rlds_beam.testing import make_episode, shard_paths, write_dataset

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


MEGA = 1 << 20


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> int:
    """The memory of a job with almost no work."""
    directory = tmp_path_factory.mktemp("small")
    return peak_mb(large_shard(directory, make_episode(1000, observation=240), 1), directory / "out", "--items=frames")


def test_a_shard_larger_than_a_workers_memory(tmp_path, base):
    """About 120 MB in one range; the worker may use a quarter of that beyond the memory for one episode."""
    source = large_shard(tmp_path, make_episode(1000, observation=240), 128)
    size = shard_paths(source)[0].stat().st_size
    assert size > 110 * MEGA
    grown = peak_mb(source, tmp_path / "out", "--items=frames", "--shards=1") - base
    assert grown * MEGA < size / 4


def test_an_episode_larger_than_a_range(tmp_path, base):
    """A record of the size of two ranges is held in a few copies, one record at a time."""
    episode = make_episode(16_000, observation=1_000)
    source = large_shard(tmp_path, episode, 2)
    size = shard_paths(source)[0].stat().st_size / 2
    assert size > 60 * MEGA
    grown = peak_mb(source, tmp_path / "out", "--items=frames") - base
    assert grown * MEGA < 5 * size
