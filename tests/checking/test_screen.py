"""Looking at the numbers of several episodes at once finds nothing that the check of each would not find."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds_beam.checking.rules import CheckOptions
from rlds_beam.checking.validation import are_sound, screen_batches, validate_episode
from rlds_beam.checking.verdicts import IgnoredValues, Verdict
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.formats.inputs import open_source
from rlds_beam.processing.job import run_stages
from rlds_beam.processing.ranges import find_duplicates
from rlds_beam.testing import make_episode, record_offsets, shard_paths, write_dataset

OPTIONS = [CheckOptions(), CheckOptions(check_unused=True), CheckOptions(accept=("non_finite",))]
IGNORED = [IgnoredValues(), IgnoredValues(last_step=False), IgnoredValues(frozenset(["reward"]))]
CHANGES: dict[str, Any] = {
    "nothing": lambda length: {},
    "NaN": lambda length: {"reward": np.full(length, np.nan, np.float32)},
    "void": lambda length: {"action": np.float32([[0, 0]] * (length - 1) + [[np.inf, 0]])},
    "bfloat16": lambda length: {"extra": np.full(length, np.nan, ml_dtypes.bfloat16)},
    "double": lambda length: {"reward": np.zeros(length)},
    "discount": lambda length: {"discount": np.full(length, 1.5, np.float32)},
    "negative": lambda length: {"discount": np.full(length, -1)},
    "column": lambda length: {"discount": np.ones((length, 1), np.float32)},
    "first": lambda length: {"is_first": np.arange(length) % 2 == 0},
    "last": lambda length: {"is_last": np.zeros(length, bool)},
    "terminal": lambda length: {"is_terminal": np.arange(length) == 0},
    "numbers": lambda length: {"is_first": np.arange(length) == 0, "is_last": (np.arange(length) == length - 1) * 3},
}


def changed(length: int, change: str, seed: int = 0) -> Episode:
    made = make_episode(length, seed=seed, terminal=seed % 2 == 0)
    return made.replace(steps={**made.steps, **(CHANGES[change](length) if length else {})})


def described(verdict: Verdict) -> Any:
    steps = [{path: (c.dtype, c.tolist()) for path, c in e.steps.items()} for e in verdict.episodes]  # type: ignore[union-attr]
    return repr((verdict.key, verdict.violations, verdict.rejected, verdict.repaired, steps))


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from([*CHANGES] + ["nothing"] * 30)), max_size=6))
def test_sound_episodes_break_no_rule(chosen: list[tuple[int, str]]) -> None:
    episodes = [changed(length, change, seed) for seed, (length, change) in enumerate(chosen)]
    sound = are_sound(episodes)
    for options in OPTIONS:
        for ignored in IGNORED:
            for episode in screen_batches([[*episodes]]):
                assert episode.sound == sound
                expected = described(validate_episode(episode.replace(), options, ignored))
                assert described(validate_episode(episode, options, ignored)) == expected


def test_faults_and_other_columns_are_not_overlooked() -> None:
    other = make_episode(3, columns={"extra": np.full(3, np.nan, np.float32)})
    assert not are_sound([make_episode(3), other])
    assert not are_sound([other, make_episode(3)])


EQUAL = 1500


@pytest.fixture
def equal(tmp_path: Path) -> Path:
    """A dataset of equal episodes, in two shards."""
    source = write_dataset(tmp_path / "data", [make_episode(2), make_episode(2)], shards=2)
    for shard in shard_paths(source):
        shard.write_bytes(shard.read_bytes() * (EQUAL // 2))
    return source


def test_each_duplicate_repeats_the_first_copy(equal):
    source = open_source(str(equal))
    found = run_stages(find_duplicates(source))["duplicates"]
    places = [(shard, at) for shard, path in enumerate(shard_paths(equal)) for at in record_offsets(path)[:-1]]
    first = EpisodeKey(source.dataset, "train", 0, 0)
    keys = [EpisodeKey(source.dataset, "train", *place) for place in places]
    assert found == dict.fromkeys(keys[1:], first)
