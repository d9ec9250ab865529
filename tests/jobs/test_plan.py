"""The size of ranges, and what a plan counts."""

from __future__ import annotations

import pytest
from exchanging import export
from lerobot_data import moving_episode

from rlds_beam.formats.inputs import open_source
from rlds_beam.reading import plan
from rlds_beam.reading.plan import plan_ranges
from rlds_beam.testing import make_episode, shard_paths, write_dataset

SMALL = 1 << 12


@pytest.fixture
def skewed(tmp_path, monkeypatch):
    """One shard of 20 ranges, and many small ones."""
    monkeypatch.setattr(plan, "RANGE_BYTES", SMALL)
    directory = write_dataset(
        tmp_path / "data", [make_episode(20, seed=i, observation=16) for i in range(60)], shards=20
    )
    big = write_dataset(tmp_path / "big", [make_episode(20, seed=99 + i, observation=16) for i in range(50)])
    first = shard_paths(directory)[0]
    first.write_bytes(shard_paths(big)[0].read_bytes())
    return directory


def test_a_huge_shard_is_cut_and_tiny_ones_share_a_range(skewed):
    source = open_source(str(skewed))
    ranges = plan_ranges(source)
    sizes = [sum((s.stop or s.shard.size) - s.start for s in work.segments) for work in ranges]
    assert sum(sizes) == source.size
    assert max(sizes) <= SMALL + max(shard.size for shard in source.splits[0].shards[1:])
    assert max(len(work.segments) for work in ranges) > 1
    assert sum(shard_paths(skewed)[0].name in s.shard.path for work in ranges for s in work.segments) > 10


def test_videos_are_input(tmp_path):
    pytest.importorskip("av")
    data = write_dataset(tmp_path / "data", [moving_episode(3 + i) for i in range(3)])
    export(data, tmp_path / "videos", "lerobot", fps=10, images="video")
    source = open_source(str(tmp_path / "videos"), from_="lerobot")
    videos = [path.stat().st_size for path in tmp_path.glob("videos/**/*.mp4")]
    assert videos and source.input_bytes == source.size + sum(videos)
