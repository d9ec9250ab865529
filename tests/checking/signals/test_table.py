"""The table of signals: rows, merging, and what it leaves out."""

from __future__ import annotations

import dataclasses
import io
import itertools
import pickle
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from camera_episodes import camera_episodes
from hypothesis import given, settings
from hypothesis import strategies as st
from robot_episodes import STATE, TEXT, changed, robot_episode

from rlds_beam.checking.rules import CheckOptions
from rlds_beam.checking.signals import DATASET_CHECKS, SIGNALS, Context, EpisodeTable, measure
from rlds_beam.checking.signals.conditions import (
    Condition,
    broken_conditions,
    check_single,
    context_for,
    mask,
    matches,
    parse_conditions,
)
from rlds_beam.checking.signals.results import find_in_dataset
from rlds_beam.checking.validation import validate_episode
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.errors import UsageError, Violation
from rlds_beam.testing import make_episode

EPISODES = list(camera_episodes(40, broken=3))
CONTEXT = Context.of_episode(EPISODES[0], decoded=2)


def table_of(*episodes: Episode, context: Context = CONTEXT) -> EpisodeTable:
    table = EpisodeTable(context)
    for episode in episodes:
        table.add(episode, validate_episode(episode, CheckOptions()))
    return table


def parquet(table: EpisodeTable) -> bytes:
    file = io.BytesIO()
    pq.write_table(table.finish(), file)
    return file.getvalue()


WHOLE = parquet(table_of(*EPISODES))


@settings(deadline=None, max_examples=25)
@given(st.permutations(range(len(EPISODES))), st.lists(st.integers(0, len(EPISODES)), max_size=6))
def test_any_order_and_any_parts_give_the_same_bytes(order: list[int], cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(order)]
    parts = [table_of(*(EPISODES[i] for i in order[a:b])) for a, b in itertools.pairwise(edges)]
    with tempfile.TemporaryDirectory() as directory:
        for i, part in enumerate(parts):
            part.write(f"{directory}/{i}.parquet")
            assert len(pickle.dumps(part)) < 2500  # its rows are in the file
        first, *others = reversed([pickle.loads(pickle.dumps(part)) for part in parts])
        assert parquet(first.merge(*others)) == WHOLE


def test_parts_with_other_fields_sizes_and_types_are_joined(tmp_path: Path) -> None:
    """Episodes of a dataset whose fields vary: what a part lacks is missing, and mixed types become texts."""
    first = [
        make_episode(20, seed=i, columns={"action": np.ones((20, 2))}, metadata={"a": i, "b": 2}) for i in range(12)
    ]
    wide = [
        make_episode(20, seed=i, columns={"action": np.ones((20, 3))}, metadata={"a": "x", "\udc80": 1.5})
        for i in range(12, 24)
    ]
    context = Context(actions=("action",))
    whole, parts = (
        table_of(*first, *wide, context=context),
        [table_of(*some, context=context) for some in (first, wide)],
    )
    for i, part in enumerate(parts):
        part.write(str(tmp_path / f"{i}.parquet"))
    found = parts[1].merge(parts[0]).finish()
    assert found.equals(whole.finish())
    assert found["metadata/a"].to_pylist() == [*map(str, range(12)), *["x"] * 12]
    assert found["metadata/b"].to_pylist() == [2] * 12 + [None] * 12
    assert found["metadata/?"].to_pylist()[12:] == [1.5] * 12


def test_there_is_one_row_for_each_record_also_for_rejected_and_unreadable_ones() -> None:
    unreadable = Episode(
        EpisodeKey("testing/1.0.0", "train", 0, 99), {}, faults=(Violation("corrupt_record", "cut short"),)
    )
    empty = make_episode(0, seed=98)
    rows = table_of(*EPISODES, unreadable, empty).finish().to_pylist()
    assert len(rows) == 42
    rules = {row["key"]: row["rule"] for row in rows}
    assert list(rules.values()).count("missing_is_last") == 3
    assert rules["testing/1.0.0:train:00000@99"] == "corrupt_record"
    assert rules["testing/1.0.0:train:00000@98"] == "empty_episode"
    assert [row["steps"] for row in rows][-2:] == [0, 0]


def test_one_episode_has_the_values_of_the_table() -> None:
    rows = table_of(*EPISODES).finish().to_pylist()
    alone = measure(EPISODES[7], CONTEXT)
    (row,) = (row for row in rows if row["key"] == alone["key"])
    for name, signal in SIGNALS.items():
        assert alone[name] is None if signal.relative else alone[name] == row[name]


def test_values_that_are_not_finite_do_no_harm() -> None:
    rng = np.random.default_rng(0)
    episodes = []
    for i in range(10):
        state = rng.standard_normal((30, 3)).astype(np.float32)
        state[5] = np.nan
        state[0, 1] = np.inf
        episodes.append(make_episode(30, seed=i, columns={"observation": state}))
    table = table_of(*episodes, context=Context.of_episode(episodes[0])).finish()
    assert np.isfinite(np.array(table["jump"].to_pylist(), float)).all()


def test_integer_actions_are_no_motion_but_are_compared() -> None:
    action = np.arange(20) % 3
    episodes = [make_episode(20, seed=i, columns={"action": action}) for i in range(12)]
    rows = table_of(*episodes, context=Context.of_episode(episodes[0])).finish().to_pylist()
    assert all("jump/action" not in row and row["duplicate_actions"] == 11 for row in rows)


CLEAN = [robot_episode(seed, steps=30 + seed % 7) for seed in range(24)]


def measured(episodes: list[Episode]) -> EpisodeTable:
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
        (
            "constant_dimension",
            [changed(e, STATE, lambda v: v.__setitem__((..., 2), 5)) for e in CLEAN],
            r"2 \(always 5\)",
        ),
    ],
)
def test_finds_it(check: str, episodes: list[Episode], detail: str) -> None:
    found = [one for one in find_in_dataset(measured(episodes).rows()) if one.check == check]
    assert found
    assert re.search(detail, found[0].detail), found[0]


def test_a_clean_dataset_has_one_constant_field_and_nothing_else() -> None:
    found = find_in_dataset(measured(split(CLEAN, 1.1)).rows())
    assert [(one.check, one.field) for one in found] == [("constant_metadata", "robot")]
    assert {one.check for one in found} <= DATASET_CHECKS.keys()


def test_episodes_of_another_scale_have_the_ratio_of_their_group() -> None:
    rows = measured(split(CLEAN, 57.3)).finish().to_pylist()
    assert all(40 < row[f"scale_mismatch/{STATE}"] < 80 for row in rows)
    assert all(row["scale_mismatch/action"] < 2 for row in rows)


def test_duplicates_with_other_instructions_are_found() -> None:
    other = CLEAN[3].with_columns({TEXT: np.full(len(CLEAN[3]), b"close the box", object)})
    copies = [e.replace(key=dataclasses.replace(e.key, shard=1)) for e in (other, CLEAN[5])]
    rows = {row["key"]: row for row in measured([*CLEAN, *copies]).finish().to_pylist()}
    doubled = {key for key, row in rows.items() if row["duplicate_actions"] > 0}
    assert doubled == {str(e.key) for e in (CLEAN[3], CLEAN[5], *copies)}


def test_idle_episodes_are_no_duplicates_and_have_no_jumps() -> None:
    idle = [
        make_episode(20, seed=i, columns={"action": np.zeros((20, 2)), "observation": np.ones((20, 3))})
        for i in range(12)
    ]
    rows = measured(idle).finish().to_pylist()
    for row in rows:
        assert row["jump"] == row["duplicate_actions"] == row["stuck"] == 0
        assert row["idle_share"] == 19 / 20


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("frozen_camera > 0.2", [Condition("frozen_camera", ">", 0.2)]),
        ("jump/action>=8", [Condition("jump/action", ">=", 8.0)]),
        ("steps < 10, return < 0", [Condition("steps", "<", 10.0), Condition("return", "<", 0.0)]),
        ("metadata/success == false", [Condition("metadata/success", "==", 0.0)]),
    ],
)
def test_parses(text: str, expected: list[Condition]) -> None:
    assert list(parse_conditions(text)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("frozen_camara > 1", "did you mean frozen_camera"),
        ("jump > big", "is compared with numbers, not with big"),
        ("steps", "is not a condition"),
        ("", "is not a condition"),
        ("> 3", "is not a condition"),
        ("jump > 3 and steps < 5", "commas separate several"),
        ("instruction == abc", "there is no signal"),
        ("jump > 3 steps", "is not a condition"),
        ("x" * 100_000, "too long"),
    ],
)
def test_says_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        parse_conditions(text)
    assert len(str(error.value)) < 300


def test_rows_and_tables_agree() -> None:
    table = EpisodeTable(Context.of_episode(next(iter(camera_episodes(1)))))
    for episode in camera_episodes(30):
        table.add(episode)
    found = table.finish()
    for text in (
        "steps < 20",
        "return > -10, metadata/episode_id == 3",
        "lag > 3",
        "metadata/nothing > 1",
        "jitter > 0",
    ):
        conditions = parse_conditions(text)
        expected = [matches(row, conditions) is not None for row in found.to_pylist()]
        assert mask(found, conditions).tolist() == expected
    assert mask(found, parse_conditions("steps < 20")).any()


def test_a_conversion_refuses_what_compares_episodes_and_names_the_two_steps() -> None:
    with pytest.raises(
        UsageError, match=r"check INPUT --reject='jump > 8' --write_exclude=FILE.*convert with --exclude=FILE"
    ):
        check_single(parse_conditions("jump > 8"))
    check_single(parse_conditions("frozen_camera > 0.2, steps < 3, idle_share > 0.5"))


def test_a_violation_names_the_field_and_the_step() -> None:
    image = np.zeros((20, 32, 32, 3), np.uint8)
    image[:, 0, :20] = np.eye(20, dtype=np.uint8)[..., None] * 200
    image[8:15] = image[8]
    conditions = parse_conditions("frozen_camera > 0.2")
    frozen = make_episode(20, columns={"observation/image": image})
    context = context_for(conditions, Context.of_episode(frozen))
    violation = broken_conditions(frozen, conditions, context)
    assert violation is not None
    assert (violation.rule, violation.field, violation.step) == ("signal_limit", "observation/image", 8)
    assert "0.3 (rejected by frozen_camera > 0.2)" in violation.detail
    assert broken_conditions(make_episode(20), conditions, context) is None
