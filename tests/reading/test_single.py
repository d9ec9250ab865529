"""Reading one episode by its key gives the same as reading all of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rlds_beam
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.errors import UsageError
from rlds_beam.formats.inputs import open_source
from rlds_beam.reading.base import Segment
from rlds_beam.reading.reader import EpisodeReader, episode_at, read_episode
from rlds_beam.testing import flip_byte, make_episode, record_offsets, shard_paths, write_dataset


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


def test_a_damaged_record_can_be_read_by_its_key_and_number(tmp_path: Path) -> None:
    directory = write_dataset(tmp_path, [make_episode(5, seed=i) for i in range(6)])
    (shard,) = shard_paths(directory)
    places = record_offsets(shard)
    for record in (0, 3, 4):
        flip_byte(shard, record=record)
    source = open_source(str(directory))
    for record in range(6):
        key = EpisodeKey(source.dataset, "train", 0, places[record])
        for episode in (read_episode(source, key), episode_at(source, record), episode_at(source, record - 6)):
            assert episode.key == key
            assert [fault.rule for fault in episode.faults] == ["corrupt_record"] * (record in (0, 3, 4))


def test_the_number_of_an_episode_counts_within_slices_and_splits(tmp_path: Path) -> None:
    directory = rlds_beam.example(str(tmp_path), episodes=10)
    every = [episode_at(open_source(directory), i).key for i in range(10)]
    assert every == sorted(set(every))
    sliced = open_source(directory, split="train[2:7]")
    assert [episode_at(sliced, i).key for i in range(5)] == every[2:7]
    for number in (5, -6):
        with pytest.raises(UsageError, match="has 5 episodes, numbered from 0"):
            episode_at(sliced, number)
