"""Splitting episodes by fraction, evenly per task, and by list."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds_beam.connectors import Batch
from rlds_beam.connectors.cleaning.splits import SplitEpisodes
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.errors import UsageError
from rlds_beam.testing import make_episode

FEW = settings(deadline=None, max_examples=50)


def split_of(piece: Any, episodes: list[Episode]) -> list[str]:
    return [batch.episodes[0].metadata["output_split"].decode() for batch in (piece(Batch((e,))) for e in episodes)]


def many(count: int, task: Any = lambda i: "t") -> list[Episode]:
    one = make_episode(2)
    return [
        one.replace(key=EpisodeKey("toy/1.0.0", "train", i % 3, i), metadata={"task": task(i).encode()})
        for i in range(count)
    ]


def test_fractions_are_approximate_and_depend_on_the_seed():
    episodes = many(2000)
    first = split_of(SplitEpisodes({"train": 0.8, "val": 0.15, "test": 0.05}), episodes)
    assert first == split_of(SplitEpisodes({"train": 0.8, "val": 0.15, "test": 0.05}), episodes)
    assert first != split_of(SplitEpisodes({"train": 0.8, "val": 0.15, "test": 0.05}, seed=1), episodes)
    for name, part in (("train", 0.8), ("val", 0.15), ("test", 0.05)):
        assert abs(first.count(name) / 2000 - part) < 0.03
    grouped = split_of(SplitEpisodes({"train": 0.5, "val": 0.5}, key="{task}"), many(90, lambda i: str(i % 9)))
    assert all(len({grouped[i] for i in range(90) if i % 9 == g}) == 1 for g in range(9))


@FEW
@given(st.lists(st.integers(1, 12), min_size=1, max_size=8), st.floats(0.05, 0.95))
def test_stratified_splits_are_exact_and_within_one_of_each_task(sizes, part):
    tasks = [f"task {i}" for i, size in enumerate(sizes) for _ in range(size)]
    episodes = many(len(tasks), tasks.__getitem__)
    piece = SplitEpisodes({"train": part, "val": 1 - part}, stratify="task")
    parts = [piece.accumulator() for _ in range(2)]
    for i, episode in enumerate(episodes):
        parts[i % 2].add(Batch((episode,)))
    result = json.loads(json.dumps(parts[0].merge(parts[1]).finish()))
    found = split_of(piece.fit(result), episodes)
    assert abs(found.count("train") - part * len(tasks)) <= 0.5 + 1e-6
    for task in set(tasks):
        own = [split for split, name in zip(found, tasks, strict=True) if name == task]
        assert abs(own.count("train") - part * len(own)) <= 1.5


def test_listed_episodes_go_to_their_split(tmp_path):
    episodes = many(5)
    (tmp_path / "lists.json").write_text(json.dumps({"val": [str(episodes[1].key), str(episodes[3].key)]}))
    piece = SplitEpisodes(episodes=str(tmp_path / "lists.json"))
    assert piece.splits == ("val", "train")
    assert split_of(piece, episodes) == ["train", "val", "train", "val", "train"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give fractions or episodes"),
        ({"fractions": {"train": 0.5}}, "they must add up to 1"),
        ({"fractions": {"a/b": 1.0}}, "is not a valid split name"),
        ({"episodes": {"val": ["x"], "test": ["x"]}}, "listed twice"),
        ({"episodes": {"val": []}, "stratify": "task"}, "stratify needs fractions"),
    ],
)
def test_invalid_splits_are_refused(arguments, message):
    with pytest.raises(UsageError, match=message):
        SplitEpisodes(**arguments)
