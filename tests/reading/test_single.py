"""Reading one episode by its key gives the same as reading all of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rlds_beam
from rlds_beam.episodes.keys import EpisodeKey
from rlds_beam.errors import UsageError
from rlds_beam.formats.sources import open_source
from rlds_beam.reading.base import Segment
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.reading.single import read_episode


def test_every_episode_can_be_read_by_its_key(tmp_path: Path) -> None:
    rlds_beam.example(str(tmp_path))
    source = open_source(str(tmp_path / "point_mass" / "1.0.0"))
    reader = EpisodeReader(source)
    every = [
        episode
        for split in source.splits
        for shard in split.shards
        for episode in reader.read(split.name, Segment(shard))
    ]
    assert every
    for episode in every:
        again = read_episode(source, episode.key)
        assert again.key == episode.key and again.payload == episode.payload and again.faults == episode.faults
        for path, column in episode.steps.items():
            np.testing.assert_array_equal(again.steps[path], column)
    first = every[0].key
    for key in (
        EpisodeKey(first.dataset, "nope", 0, 0),
        EpisodeKey(first.dataset, first.split, 99, 0),
        EpisodeKey(first.dataset, first.split, first.shard, first.position + 1),
        EpisodeKey(first.dataset, first.split, first.shard, 1 << 40),
    ):
        with pytest.raises(UsageError, match=r"no (such|record)"):
            read_episode(source, key)
