"""Episodes that repeat others up to noise: recall, false alarms, splits, and instructions."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
from motions import ACTION, KINDS, STATE, arm, locomotion, make, near

from rlds_beam.checking.signals import Context, EpisodeTable
from rlds_beam.episodes.episode import Episode

CLEAN = 240


@functools.cache
def clean(kind: str) -> tuple[Episode, ...]:
    return tuple(KINDS[kind](seed) for seed in range(CLEAN))


def table_of(episodes: list[Episode]) -> EpisodeTable:
    table = EpisodeTable(Context.of_episode(episodes[0]))
    for episode in episodes:
        table.add(episode)
    return table


def repeats(episodes: list[Episode]) -> set[tuple[str, str]]:
    """The keys of episodes that repeat another, with the other's."""
    rows = table_of(episodes).finish().to_pylist()
    return {(row["key"], row["near_duplicate@field"]) for row in rows if row["near_duplicate"]}


def in_split(episode: Episode, split: str) -> Episode:
    return episode.replace(key=dataclasses.replace(episode.key, split=split))


@pytest.mark.parametrize("kind", KINDS)
def test_clean_data_has_no_repeats(kind: str) -> None:
    assert repeats(list(clean(kind))) == set()


@pytest.mark.parametrize("kind", ["arm", "locomotion"])
@pytest.mark.parametrize(("noise", "resample"), [(0.001, False), (0.02, False), (0.0, True), (0.005, True)])
def test_near_duplicates_are_found(kind: str, noise: float, resample: bool) -> None:
    copies = near(clean(kind), 30, noise, resample)
    found = repeats([*clean(kind), *(copy for _, copy in copies)])
    pairs = {(str(copy.key), str(clean(kind)[at].key)) for at, copy in copies}
    assert len(found & pairs) >= 25
    assert found <= pairs | {(other, one) for one, other in pairs}


@pytest.mark.parametrize("kind", ["arm", "locomotion"])
@pytest.mark.parametrize("size", [3, 5, 8])
def test_episodes_recorded_many_times_are_found(kind: str, size: int) -> None:
    copies = [copy for i in range(size - 1) for _, copy in near(clean(kind), 8, 0.001, copy=i)]
    copies = [copy.replace(key=dataclasses.replace(copy.key, position=CLEAN + i)) for i, copy in enumerate(copies)]
    found = {key for key, _ in repeats([*clean(kind), *copies])}
    assert len(found) >= 0.85 * 8 * size
    assert {str(copy.key) for copy in copies} >= {key for key in found if int(key.partition("@")[2]) >= CLEAN}


@pytest.mark.parametrize("noise", [0.0, 1e-4, 0.01])
def test_episodes_at_rest_do_not_repeat_each_other(noise: float) -> None:
    rng = np.random.default_rng(0)
    pose = rng.normal(0, 0.3, 3)
    rest = [pose + rng.normal(0, 1, (2, 50 + i, 3)) * noise for i in range(6)]
    episodes = [make(CLEAN + i, states, actions) for i, (states, actions) in enumerate(rest)]
    assert repeats([*clean("arm"), *episodes]) == set()


def test_groups_of_copies_count_each_other() -> None:
    copies = [make(CLEAN + i, *(np.asarray(arm(5).steps[p]) for p in (STATE, ACTION)), void=bool(i)) for i in range(3)]
    rows = table_of([*clean("arm"), *copies]).finish().to_pylist()
    found = {row["key"]: (row["near_duplicate"], row["near_duplicate@field"]) for row in rows if row["near_duplicate"]}
    first = str(clean("arm")[5].key)
    assert found == {first: (3, str(copies[0].key)), **{str(copy.key): (3, first) for copy in copies}}


def test_leaks_between_splits_and_other_instructions_are_found() -> None:
    episodes = [in_split(e, "val" if i < 40 else "train") for i, e in enumerate(clean("arm"))]
    leaks = [in_split(copy, "val") for at, copy in near(clean("arm"), 30, 0.005) if at >= 40]
    say = [copy.with_columns({"language_instruction": np.full(len(copy), b"throw it", object)}) for copy in leaks[:4]]
    table = table_of([*episodes, *say, *leaks[4:]])
    rows = table.finish().to_pylist()
    val = {row["key"] for row in rows if row["split_leakage"] and row["split"] == "val"}
    assert len(val) >= len(leaks) - 3 and val <= {str(leak.key) for leak in leaks}
    assert all(":train:" in row["split_leakage@field"] for row in rows if row["key"] in val)


def test_equal_starts_in_two_splits_are_a_leak_only_if_starts_are_rare() -> None:
    """Seeds of a simulator that were used again, and an arm that always starts at home."""
    other = [locomotion(seed + CLEAN) for seed in range(30)]
    again = [e.with_columns({STATE: np.asarray(e.steps[STATE])}) for e in other]
    for i, episode in enumerate(again):
        episode.steps[STATE][0] = clean("locomotion")[i].steps[STATE][0]
    rows = table_of([*clean("locomotion"), *(in_split(e, "val") for e in again)]).finish().to_pylist()
    assert sum(bool(row["split_leakage"]) for row in rows) == 60
    assert not any(row["near_duplicate"] for row in rows)
    home = [make(i, np.asarray(e.steps[STATE]), np.asarray(e.steps[ACTION])) for i, e in enumerate(clean("locomotion"))]
    for episode in home:
        episode.steps[STATE][0] = 0
    rows = table_of([in_split(e, "val" if i < 30 else "train") for i, e in enumerate(home)]).finish().to_pylist()
    assert not any(row["split_leakage"] for row in rows)
