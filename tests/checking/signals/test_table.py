"""The table of signals: rows, merging, and what it leaves out."""

from __future__ import annotations

import io
import itertools
import pickle
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds_beam.checking.rules import CheckOptions
from rlds_beam.checking.signals import SIGNALS, Context, EpisodeTable, findings, measure
from rlds_beam.checking.validation import validate_episode
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.errors import Violation
from rlds_beam.jobs.example import make_episodes
from rlds_beam.testing import make_episode

EPISODES = list(make_episodes(40, camera=True, broken=3))
CONTEXT = Context.of_episode(EPISODES[0], decoded=2)


def table_of(*episodes: Episode, context: Context = CONTEXT, directory: Path | None = None) -> EpisodeTable:
    table = EpisodeTable(context, directory and str(directory))
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
    parts = [pickle.loads(pickle.dumps(part)) for part in parts]
    first, *others = reversed(parts)
    assert parquet(first.merge(*others)) == WHOLE


@pytest.mark.parametrize("most", [1, 7, 4096])
def test_rows_in_files_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr("rlds_beam.checking.signals.table._MAX_ROWS", most)
    parts = [table_of(*EPISODES[a::3], directory=tmp_path) for a in range(3)]
    pickled = [pickle.dumps(part) for part in parts]
    assert max(map(len, pickled)) < 3000
    first, *others = map(pickle.loads, pickled)
    merged, whole = first.merge(*others), table_of(*EPISODES)
    assert parquet(merged) == parquet(pickle.loads(pickle.dumps(merged))) == WHOLE
    assert merged.dataset_findings() == whole.dataset_findings()
    unsaved = table_of(*EPISODES[::2], directory=tmp_path).merge(table_of(*EPISODES[1::2]))
    assert parquet(unsaved) == WHOLE
    assert parquet(EpisodeTable(CONTEXT, str(tmp_path)).merge()) == parquet(EpisodeTable(CONTEXT))


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


def test_all_signals_have_columns_with_the_same_types() -> None:
    some, none = table_of(*EPISODES).finish(), EpisodeTable(CONTEXT).finish()
    for name in SIGNALS:
        assert str(some[name].type) == str(none[name].type) == "double"
        assert str(some[f"{name}@step"].type) == "int64"
    assert none.num_rows == 0


@pytest.mark.parametrize("length", [1, 2, 3])
def test_short_episodes_have_no_findings(length: int) -> None:
    episodes = [make_episode(length, seed=i, columns={"timestamp": np.arange(length) / 10}) for i in range(8)]
    table = table_of(*episodes, context=Context.of_episode(episodes[0]))
    assert [found for row in table.finish().to_pylist() for found in findings(row)] == []


def test_one_episode_has_the_values_of_the_table() -> None:
    rows = table_of(*EPISODES).finish().to_pylist()
    alone = measure(EPISODES[7], CONTEXT).row
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


def test_hostile_names_and_texts_are_only_text(tmp_path: Path) -> None:
    hostile = {"a\ud800": b"\xff\xfe", "b": "\udc80<script>", "c": 2**70, "d": np.zeros(3), "jump": np.float32(3)}
    columns = {
        "observation/x@step": np.zeros((12, 2), np.float32),
        "language_instruction": np.full(12, b"\x00\xff", object),
    }
    episodes = [make_episode(12, seed=i, metadata=hostile, columns=columns) for i in range(12)]
    table = table_of(*episodes, context=Context.of_episode(episodes[0]), directory=tmp_path)
    rows = pickle.loads(pickle.dumps(table)).finish().to_pylist()
    assert rows[0]["metadata/b"] == "?<script>"
    assert rows[0]["metadata/c"] == str(2**70)
    assert rows[0]["instruction"] == "\x00\ufffd"
    assert rows[0]["jump"] is not None
    assert {one.check for one in table.dataset_findings()} >= {"constant_metadata"}


def test_fields_that_change_their_size_or_are_missing_do_no_harm(tmp_path: Path) -> None:
    episodes = [
        make_episode(
            12, seed=i, observation=3 if i % 2 else 5, columns={} if i % 3 else {"observation/more": np.ones(12)}
        )
        for i in range(24)
    ]
    contexts = [Context.of_episode(episode) for episode in episodes]
    table = table_of(*episodes, context=contexts[0])
    assert len(table.finish()) == 24
    kept = [table_of(*part, context=contexts[0], directory=tmp_path) for part in (episodes[:7], episodes[7:])]
    assert parquet(pickle.loads(pickle.dumps(kept[0])).merge(kept[1])) == parquet(table)
    ragged = np.array([np.ones(i) for i in range(12)] + [None], object)[:-1]
    strange = make_episode(12, seed=99, columns={"action": ragged, "observation": np.ones((12, 2), bool)})
    assert len(table_of(*episodes, strange, context=contexts[0]).finish()) == 25
    assert findings(measure(strange, Context.of_episode(strange)).row) == []


def test_integer_actions_are_no_motion_but_are_compared() -> None:
    action = np.arange(20) % 3
    episodes = [make_episode(20, seed=i, columns={"action": action}) for i in range(12)]
    rows = table_of(*episodes, context=Context.of_episode(episodes[0])).finish().to_pylist()
    assert all("jump/action" not in row and row["duplicate_actions"] == 11 for row in rows)
