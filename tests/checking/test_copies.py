"""Digests of episodes, which are equal for copies in other formats."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from motions import ACTION, STATE, arm, grid, locomotion, make

from rlds_beam.checking.copies import Digests, digest_episode, digest_episodes, group_copies, join_groups
from rlds_beam.episodes.episode import Episode

FIELDS = (ACTION, STATE)


def columns_of(episode: Episode) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(episode.steps[STATE]), np.asarray(episode.steps[ACTION])


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000), st.booleans(), st.sampled_from((np.float64, np.float32)))
def test_a_copy_has_the_same_digests_under_float32_rounding(seed: int, void: bool, dtype: type) -> None:
    rng = np.random.default_rng(seed)
    states, actions = rng.normal(0, 1, (9, 3)), rng.normal(0, 1, (9, 2))
    whole = digest_episode(make(0, states, actions), FIELDS)
    copy = make(1, states, actions, "another text", void=void)
    if not void:
        copy = copy.with_columns({STATE: states.astype(dtype), ACTION: actions.astype(dtype)})
    other = digest_episode(copy, FIELDS)
    assert 0 not in (*whole, *other)
    assert (other.shorter if void else other.whole) == whole.whole
    group = group_copies(*np.array([whole, other], np.uint64).T)
    assert group.tolist() == [0, 0]
    changed = states.copy()
    changed[4, 1] += 1e-3
    assert not {*digest_episode(make(2, changed, actions), FIELDS)} & {*whole, *other}


def test_episodes_that_may_be_equal_by_chance_have_no_digests() -> None:
    rest = make(0, np.full((50, 3), 0.25), np.zeros((50, 2)))
    short = make(1, *(np.random.default_rng(0).normal(0, 1, (3, d)) for d in (7, 7)))
    empty = make(0, np.zeros((0, 3)), np.zeros((0, 2)))
    flat = make(0, np.zeros((9, 0)), np.zeros((9, 0)))
    for episode in (rest, short, empty, flat, grid(3), grid(4)):
        assert digest_episode(episode, FIELDS) == Digests()
    assert 0 not in digest_episode(arm(1), FIELDS) + digest_episode(locomotion(1), FIELDS)
    zeros = np.zeros(3, np.uint64)
    assert group_copies(zeros, zeros).tolist() == [0, 1, 2]


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3), st.booleans()), max_size=12), st.integers(0, 999))
def test_episodes_have_the_same_digests_together_and_alone(shapes: list[tuple[int, int, bool]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    episodes = []
    for length, size, single in shapes:
        states = rng.normal(0, 50, (length, size + 2)).astype(np.float32 if single else np.float64)
        states[rng.random(states.shape) < 0.1] = rng.choice([0.0, -0.0, np.nan, np.inf])
        made = make(len(episodes), states, rng.integers(0, 3, (length, size)))
        episodes.append(made.with_columns({STATE: states}))
    together = digest_episodes(episodes, FIELDS).tolist()
    assert together == [[*digest_episode(episode, FIELDS)] for episode in episodes]


def test_the_instruction_counts_only_if_it_is_asked_for() -> None:
    one, other = (make(0, *columns_of(arm(1)), text) for text in ("open it", "close it"))
    assert digest_episode(one, FIELDS) == digest_episode(other, FIELDS)
    named = ("language_instruction",)
    assert not {*digest_episode(one, FIELDS, named)} & {*digest_episode(other, FIELDS, named)}


@pytest.mark.parametrize("seed", range(5))
def test_groups_are_the_connected_components(seed: int) -> None:
    rng = np.random.default_rng(seed)
    first, second = rng.integers(0, 60, (2, 40))
    group = join_groups(60, first, second)
    expected = list(range(60))
    for _ in range(60):
        for a, b in zip(first.tolist(), second.tolist(), strict=True):
            expected[a] = expected[b] = min(expected[a], expected[b])
    assert group.tolist() == expected
