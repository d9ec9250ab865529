"""A worker's memory grows with the size of an episode, not with that of a shard."""

from __future__ import annotations

import pytest
from large_data import large_shard, peak_mb

from rlds_beam.testing import make_episode, shard_paths

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
