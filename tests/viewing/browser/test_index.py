"""The index lists what a reader of the whole dataset finds: every record and every damaged region, in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from damage import insert_bytes, set_length

from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.formats.inputs import open_source
from rlds_beam.reading.base import Segment, Source
from rlds_beam.reading.reader import EpisodeReader, read_episode
from rlds_beam.testing import cut, flip_byte, make_episode, shard_paths, write_dataset
from rlds_beam.viewing.browser.index import EpisodeIndex


def read(source: Source) -> list[EpisodeKey]:
    """The keys of all records and damaged regions, by reading everything."""
    reader = EpisodeReader(source)
    return [
        episode.key
        for split in source.splits
        for shard in split.shards
        for episode in reader.read(split.name, Segment(shard))
    ]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_dataset(tmp_path, [make_episode(3 + i, seed=i) for i in range(9)], shards=3)


DAMAGE: dict[str, Any] = {
    "none": lambda shard: None,
    "payload": lambda shard: flip_byte(shard, record=1),
    "first": lambda shard: flip_byte(shard, record=0, part="length"),
    "middle": lambda shard: flip_byte(shard, record=1, part="length"),
    "last": lambda shard: flip_byte(shard, record=2, part="length_crc"),
    "cut": lambda shard: cut(shard, record=2, extra=20),
    "longer": lambda shard: set_length(shard, record=1, length=1 << 40),
    "between": lambda shard: insert_bytes(shard, record=1, data=b"between two records"),
    "before": lambda shard: insert_bytes(shard, record=0, data=bytes(100)),
    "empty": lambda shard: Path(shard).write_bytes(b""),
    "no records": lambda shard: Path(shard).write_bytes(b"text" * 50),
    "missing": lambda shard: Path(shard).unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_keys_are_those_of_a_reader(directory: Path, damage: str) -> None:
    DAMAGE[damage](shard_paths(directory)[1])
    source = open_source(str(directory))
    index, expected = EpisodeIndex(source), read(source)
    for _ in range(2):  # before and after the numbers of dataset_info.json are corrected
        index.keys(0, 100)
    assert index.keys(0, 100) == expected and len(index) == len(expected)
    assert index.split_sizes() == {"train": len(expected)} and index.split_range("train") == (0, len(expected))
    for number, key in enumerate(expected):
        assert index.number(key) == number and index.keys(number, number + 1) == [key]
        assert read_episode(source, key).key == key
    assert index.keys(2, 5) == expected[2:5] and index.keys(len(expected), len(expected) + 9) == []


def test_shards_are_read_only_if_their_episodes_are_shown(directory: Path) -> None:
    source = open_source(str(directory))
    index = EpisodeIndex(source)
    assert len(index) == 9 and not index._positions
    assert [key.shard for key in index.keys(4, 5)] == [1] and set(index._positions) == {1}


@pytest.mark.parametrize("split", ["train[2:7]", "train[:4]", "train[50%:]"])
def test_a_slice_shows_its_episodes_only(directory: Path, split: str) -> None:
    whole = EpisodeIndex(open_source(str(directory))).keys(0, 100)
    source = open_source(str(directory), split)
    index = EpisodeIndex(source)
    shown = {"train[2:7]": whole[2:7], "train[:4]": whole[:4], "train[50%:]": whole[4:]}[split]
    assert len(index) == len(shown) and index.keys(0, 100) == shown
    assert [index.number(key) for key in whole] == [shown.index(key) if key in shown else None for key in whole]
