"""Findings about whole datasets, and signals that compare episodes."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

import numpy as np
import pytest
from robot_episodes import DEFECTS, STATE, changed, robot_episode

from rlds_beam.checking.signals import DATASET_CHECKS, Context, EpisodeTable
from rlds_beam.episodes.episode import Episode
from rlds_beam.testing import make_episode

CLEAN = [robot_episode(seed, steps=30 + seed % 7) for seed in range(24)]


def table_of(episodes: list[Episode]) -> EpisodeTable:
    table = EpisodeTable(Context.of_episode(episodes[0], fps=10))
    for episode in episodes:
        table.add(episode)
    return table


def metadata(value: Callable[[int], object]) -> list[Episode]:
    return [e.replace(metadata={"made": value(i), "episode_id": np.int64(i)}) for i, e in enumerate(CLEAN)]


def split(episodes: list[Episode], scale: float) -> list[Episode]:
    """The second half in another split, with a scaled state."""
    half = len(episodes) // 2
    return [
        e
        if i < half
        else changed(e, STATE, lambda v: v * scale).replace(key=dataclasses.replace(e.key, split="validation"))
        for i, e in enumerate(episodes)
    ]


@pytest.mark.parametrize(
    ("check", "episodes", "detail"),
    [
        ("constant_metadata", metadata(lambda i: b"building"), "'building' in all 24 episodes"),
        ("mixed_metadata", metadata(lambda i: b"two" if i == 3 else np.int64(2 + i)), "1 of 24 texts"),
        (
            "repeated_id",
            [e.replace(metadata={"episode_id": np.int64(i // 2)}) for i, e in enumerate(CLEAN)],
            "12 values",
        ),
        (
            "constant_dimension",
            [changed(e, STATE, lambda v: v.__setitem__((..., 2), 5)) for e in CLEAN],
            r"2 \(always 5\)",
        ),
        ("normalized", [changed(e, STATE, lambda v: np.sign(v)) for e in CLEAN], "from -1 to 1 in 6 of"),
        ("normalized", [make_episode(50, seed=i) for i in range(24)], "mean 0 and standard deviation 1"),
        ("scale_mismatch", split(CLEAN, 57.3), r"'testing/1.0.0:train': 5\d\.\d times"),
    ],
)
def test_finds_it(check: str, episodes: list[Episode], detail: str) -> None:
    found = [one for one in table_of(episodes).dataset_findings() if one.check == check]
    assert found
    assert re.search(detail, found[0].detail), found[0]


def test_a_clean_dataset_has_one_constant_field_and_nothing_else() -> None:
    found = table_of(split(CLEAN, 1.1)).dataset_findings()
    assert [(one.check, one.field) for one in found] == [("constant_metadata", "robot")]
    assert {one.check for one in found} <= DATASET_CHECKS.keys()


def test_episodes_of_another_scale_have_the_ratio_of_their_group() -> None:
    rows = table_of(split(CLEAN, 57.3)).finish().to_pylist()
    assert all(40 < row[f"scale_mismatch/{STATE}"] < 80 for row in rows)
    assert all(row["scale_mismatch/action"] < 2 for row in rows)


def test_duplicates_with_other_images_and_other_instructions_are_found() -> None:
    other = DEFECTS["generic instruction"].defect(CLEAN[3], np.random.default_rng(0))
    copies = [e.replace(key=dataclasses.replace(e.key, shard=1)) for e in (other, CLEAN[5])]
    rows = {row["key"]: row for row in table_of([*CLEAN, *copies]).finish().to_pylist()}
    doubled = {key for key, row in rows.items() if row["duplicate_actions"] > 0}
    contradicting = {key for key, row in rows.items() if row["contradictory_instruction"] > 0}
    assert doubled == {str(e.key) for e in (CLEAN[3], CLEAN[5], *copies)}
    assert contradicting == {str(e.key) for e in (CLEAN[3], copies[0])}


def test_idle_episodes_are_no_duplicates_and_have_no_jumps() -> None:
    idle = [
        make_episode(20, seed=i, columns={"action": np.zeros((20, 2)), "observation": np.ones((20, 3))})
        for i in range(12)
    ]
    rows = table_of(idle).finish().to_pylist()
    for row in rows:
        assert row["jump"] == row["duplicate_actions"] == row["stuck"] == 0
        assert row["idle_share"] == 19 / 20


def test_the_void_action_of_the_last_step_is_no_jump() -> None:
    rng = np.random.default_rng(0)
    episodes = []
    for i in range(20):
        action = 5 + 0.01 * rng.standard_normal((30, 2)).astype(np.float32)
        action[-1] = 0
        episodes.append(make_episode(30, seed=i, columns={"action": action}))
    rows = table_of(episodes).finish().to_pylist()
    assert max(row["jump/action"] for row in rows) < 5
