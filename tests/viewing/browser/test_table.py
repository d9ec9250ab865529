"""Sorting, filtering, and searching give what a plain loop over the rows gives; tables come from files or a job."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from browsing import browsing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlds_beam.checking.rules import CheckOptions
from rlds_beam.checking.signals.conditions import Condition, matches, parse_conditions
from rlds_beam.checking.signals.episodes import Context
from rlds_beam.checking.signals.table import EpisodeTable
from rlds_beam.checking.validation import validate_episode
from rlds_beam.errors import UsageError
from rlds_beam.formats.inputs import open_source
from rlds_beam.reading.base import Segment
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.testing import make_episode, write_dataset
from rlds_beam.viewing.browser.index import EpisodeIndex
from rlds_beam.viewing.browser.table import Query, TableFile, TableRows

WORDS = ("push", "pull", "the Red cup", "schließen", "50% off_x", "")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random.seed(3)
    episodes = [
        make_episode(
            random.randint(3, 30),
            seed=i,
            breaks=[rule for rule in ("missing_is_last", "non_finite") if random.random() < 0.2],
            metadata={"place": random.choice(["kitchen", "desk"]), "trial": i % 7},
        )
        for i in range(60)
    ]
    for i, episode in enumerate(episodes):
        text = np.full(len(episode), WORDS[i % len(WORDS)].encode(), object)
        episodes[i] = episode.with_columns({"language_instruction": text})
    return write_dataset(tmp_path_factory.mktemp("rlds"), episodes, shards=4)


@pytest.fixture(scope="module")
def table(dataset: Path) -> pa.Table:
    source = open_source(str(dataset))
    measured, reader = EpisodeTable(Context.from_schema(source.schema)), EpisodeReader(source)
    for shard in source.splits[0].shards:
        for episode in reader.read("train", Segment(shard)):
            measured.add(episode, validate_episode(episode, CheckOptions()))
    return measured.finish()


@pytest.fixture(scope="module", params=["measured", "stored", "shuffled"])
def rows(request: pytest.FixtureRequest, dataset: Path, table: pa.Table, tmp_path_factory: Any) -> TableRows:
    index = EpisodeIndex(open_source(str(dataset)))
    if request.param == "shuffled":
        table = table.take(pa.array(np.random.default_rng(0).permutation(table.num_rows)))
    if request.param == "stored":
        file = tmp_path_factory.mktemp("signals") / "signals.parquet"
        pq.write_table(table, file, row_group_size=13)
        return TableRows(TableFile.open(str(file)), index)
    return TableRows(TableFile.from_table(table), index)


def expected(table: pa.Table, query: Query) -> list[str]:
    """The keys that a query shows, one row after the other."""
    found = [row for row in table.to_pylist() if all(matches(row, choice) for choice in query.filters)]
    found = [row for row in found if query.split in ("", row["split"])]
    if query.rule == "accepted":
        found = [row for row in found if row["rule"] is None]
    elif query.rule:
        found = [row for row in found if row["rule"] is not None and query.rule in ("rejected", row["rule"])]
    for word in query.text.lower().split():
        found = [row for row in found if word in (row["instruction"] or "").lower()]
    if query.sort:
        known = [row for row in found if row[query.sort] is not None and row[query.sort] == row[query.sort]]
        missing = [row for row in found if row not in known]
        values = sorted({row[query.sort] for row in known}, reverse=query.descending)
        found = [row for value in values for row in known if row[query.sort] == value] + missing
    return [row["key"] for row in found]


NUMBERS = ("steps", "return", "metadata/episode_metadata/trial", "outlier_length", "outlier_return", "position")
TEXTS = ("instruction", "metadata/episode_metadata/place", "rule", "split", "key")

conditions = st.builds(
    Condition,
    st.sampled_from(NUMBERS),
    st.sampled_from(["<", "<=", ">", ">=", "==", "!="]),
    st.one_of(st.integers(-3, 30).map(float), st.floats(allow_nan=False)),
)


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    query=st.builds(
        Query,
        sort=st.sampled_from(["", *NUMBERS, *TEXTS[:4]]),
        descending=st.booleans(),
        filters=st.lists(st.lists(conditions, min_size=1, max_size=3).map(tuple), max_size=3).map(tuple),
        text=st.sampled_from(["", "push", "cup the", "%", "'\""]),
        split=st.sampled_from(["", "train", "nope", "train' --"]),
        rule=st.sampled_from(["", "accepted", "rejected", "non_finite", "' OR 1=1"]),
    )
)
def test_any_query_shows_what_a_loop_would_show(rows: TableRows, table: pa.Table, query: Query) -> None:
    shown = rows.show(rows.select(query), "testing/1.0.0", [])
    assert [row["key"] for row in shown] == expected(table, query)


def test_rows_have_the_values_of_the_table(rows: TableRows, table: pa.Table) -> None:
    shown = rows.show(rows.select(Query()), "testing/1.0.0", ["outlier_length"])
    for row, known in zip(shown, table.to_pylist(), strict=True):
        for name in ("key", "split", "steps", "instruction", "rule", "detail"):
            assert row[name] == known[name]
        assert row["return"] == known["return"] or math.isnan(known["return"])
        assert row["metadata"]["episode_metadata/place"] == known["metadata/episode_metadata/place"]
        assert row["signals"].get("outlier_length") == known["outlier_length"]
    assert rows.rules == {one["values"]: one["counts"] for one in table["rule"].drop_null().value_counts().to_pylist()}
    assert [rows.row(i)["position"] for i in range(60)] == table["position"].to_pylist()  # type: ignore[index]
    assert rows.row(60) is None and not len(rows.rows_between(59, 61)) and len(rows.rows_between(5, 9)) == 4


def test_queries_about_other_columns_are_refused(rows: TableRows) -> None:
    with pytest.raises(UsageError, match="no column 'nothing'"):
        rows.select(Query("nothing"))
    for text in ("jump/nothing > 1", "metadata/nothing == 1", "metadata/episode_metadata/place > 1"):
        with pytest.raises(UsageError, match=r"nothing|compare numbers"):
            rows.select(Query(filters=(parse_conditions(text),)))


def test_a_slice_of_the_dataset_shows_its_rows(dataset: Path, table: pa.Table) -> None:
    index = EpisodeIndex(open_source(str(dataset), "train[10:40]"))
    rows = TableRows(TableFile.from_table(table), index)
    assert [row["key"] for row in rows.show(rows.select(Query()), "testing/1.0.0", [])] == list(
        map(str, index.keys(0, 99))
    )


def test_the_file_of_check_makes_the_list_sortable(dataset: Path, table: pa.Table, tmp_path: Path) -> None:
    file = tmp_path / "some.parquet"
    pq.write_table(table, file)
    with browsing(dataset, signals=str(file)) as browser:
        (about,) = browser.json("/api/datasets")
        expected_scan = {"state": "table", "done": 60, "total": 60, "error": None}
        assert about["scan"] == expected_scan and about["scanned"]
        columns = {column["name"]: column for column in about["columns"]}
        assert columns["steps"]["kind"] == "number" and columns["instruction"]["kind"] == "text"
        assert columns["outlier_length"]["threshold"] == 5 and "frozen_camera" not in columns
        down = browser.json("/api/episodes", sort="steps", desc="1", limit="500")
        assert down["total"] == 60 and [row["steps"] for row in down["rows"]] == sorted(
            table["steps"].to_pylist(), reverse=True
        )
        page = browser.json("/api/episodes", sort="steps", desc="1", limit="10", offset="20")
        assert page["rows"] == down["rows"][20:30]
        for row in page["rows"]:
            assert browser.json("/api/episode", key=row["key"])["index"] == row["index"]
        both = browser.json("/api/episodes", filter=["steps > 10", "steps < 20"], limit="500")["rows"]
        assert all(10 < row["steps"] < 20 for row in both) and both
        assert browser.json("/api/episodes", split="nope")["total"] == 0


def test_files_that_are_no_table_of_the_dataset(dataset: Path, table: pa.Table, tmp_path: Path) -> None:
    other = tmp_path / "other.parquet"
    keys = pa.array([key.replace("testing", "another") for key in table["key"].to_pylist()])
    pq.write_table(table.set_column(0, "key", keys), other)
    damaged = tmp_path / "damaged.parquet"
    damaged.write_bytes(other.read_bytes()[:-100])
    small = tmp_path / "small.parquet"
    pq.write_table(table.select(["key", "steps"]), small)
    for file, message in (
        (other, "about another/1.0.0"),
        (damaged, "not a table"),
        (small, "not a table"),
        (tmp_path / "nothing", "nothing"),
    ):
        with pytest.raises((UsageError, OSError), match=message), browsing(dataset, signals=str(file)):
            pass


def test_a_scan_fills_the_list_and_finds_the_same(dataset: Path, table: pa.Table) -> None:
    with browsing(dataset, no_scan=False) as browser:
        (about,) = browser.scanned()
        expected_scan = {"state": "done", "done": 60, "total": 60, "error": None}
        assert about["scan"] == expected_scan and about["scanned"]
        shown = browser.json("/api/episodes", sort="return", limit="500")["rows"]
        assert [row["key"] for row in shown] == expected(table, Query("return"))
        assert sum(about["rules"].values()) == len(table["rule"].drop_null())


def test_without_a_table_the_list_has_keys_only(dataset: Path) -> None:
    with browsing(dataset) as browser:
        assert browser.json("/api/datasets")[0]["scan"]["state"] == "none"
        rows = browser.json("/api/episodes", split="train", offset="3", limit="2")["rows"]
        assert [row["index"] for row in rows] == [3, 4] and rows[0]["steps"] is None
        assert browser.json("/api/episodes", text=rows[1]["key"])["rows"] == [rows[1]]
        assert "not known yet" in browser.get("/api/episodes", sort="steps").json()["error"]


def test_nothing_is_written_next_to_the_dataset(dataset: Path) -> None:
    before = {file: file.stat().st_mtime_ns for file in dataset.parent.rglob("*")}
    with browsing(dataset, no_scan=False) as browser:
        browser.scanned()
        browser.json("/api/episode", key=browser.list_keys()[0])
    assert {file: file.stat().st_mtime_ns for file in dataset.parent.rglob("*")} == before


def test_rows_have_the_outline_of_the_action_that_moves_most(tmp_path: Path) -> None:
    actions = [np.stack([np.zeros(16), np.repeat([0, i, 0, -i], 4)], axis=1).astype(np.float32) for i in (1, 2, 3)]
    episodes = [make_episode(16, seed=i).with_columns({"action": action}) for i, action in enumerate(actions)]
    with browsing(write_dataset(tmp_path, episodes), no_scan=False) as browser:
        browser.scanned()
        assert browser.json("/api/datasets")[0]["outlined"]
        first = browser.json("/api/episodes")["rows"][1]["outline"]
    assert len(first) == 8
    assert (first[0], max(first), np.argmax(first)) == (0, 2, 2) and min(first) == first[7] < -1
