"""Language columns are read as text, and written again; features of unknown types are left out with a note."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lerobot_data as data
import lerobot_language as language
import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from exchanging import export

import rlds_beam
from rlds_beam.errors import UsageError
from rlds_beam.formats.inputs import open_source
from rlds_beam.testing import make_episode, write_dataset

LENGTHS = (4, 3, 5)


@pytest.fixture
def annotated(tmp_path: Path) -> Path:
    episodes = [make_episode(length, seed=length) for length in LENGTHS]
    data.convert_here(write_dataset(tmp_path / "data", episodes, name="toy"), tmp_path / "lerobot", shards=2)
    language.annotate(tmp_path / "lerobot")
    return tmp_path / "lerobot"


def assert_same(found: Any, wanted: Any) -> None:
    leaves = {path.rpartition("/")[2]: value for path, value in wanted.metadata.items()}
    data.assert_equal(found, wanted.replace(metadata=leaves))


def test_rows_are_texts(annotated):
    for k, episode in enumerate(data.read_episodes(str(annotated), "lerobot")):
        found = json.loads(episode.metadata["episode_metadata/language_persistent"])
        wanted = [{**row, "timestamp": float(np.float32(row["timestamp"]))} for row in language.persistent(k)]
        assert found == wanted
        events = [json.loads(text) for text in episode.steps["language_events"].tolist()]
        assert events == [language.events(k, t) for t in range(LENGTHS[k])]


def test_lerobot_to_rlds_to_lerobot_is_the_same(annotated, tmp_path):
    export(annotated, tmp_path / "rlds/toy/1.0.0", "rlds", from_="lerobot")
    data.convert_here(tmp_path / "rlds/toy/1.0.0", tmp_path / "again")
    features = data.meta(tmp_path / "again", "info")["features"]
    for name in ("language_persistent", "language_events"):
        assert features[name] == {"dtype": "language", "shape": [1], "names": None}
        assert name not in data.meta(tmp_path / "again", "stats")
    rows = data.frames(tmp_path / "again").to_pylist()
    for row in rows:
        calls = [one.pop("tool_calls") for one in row["language_events"]]
        wanted = language.events(row["episode_index"], row["frame_index"])
        given = [one.pop("tool_calls") for one in wanted]
        assert row["language_events"] == wanted
        assert [call and [json.loads(one) for one in call] for call in calls] == given
        assert row["language_persistent"] == [
            {**one, "timestamp": float(np.float32(one["timestamp"]))}
            for one in language.persistent(row["episode_index"])
        ]
    for one, other in zip(
        *(data.read_episodes(str(p), "lerobot") for p in (annotated, tmp_path / "again")), strict=True
    ):
        assert_same(other, one)


def test_v21_holds_the_texts(annotated, tmp_path):
    data.convert_here(annotated, tmp_path / "v21", from_="lerobot", lerobot_version="2.1")
    assert data.meta(tmp_path / "v21", "info")["features"]["language_events"]["dtype"] == "string"
    one, other = (data.read_episodes(str(path), "lerobot") for path in (annotated, tmp_path / "v21"))
    for a, b in zip(one, other, strict=True):
        assert_same(b, a)


def test_persistent_rows_that_differ_reject_their_episode(annotated):
    file = sorted(annotated.glob("data/*/*.parquet"))[-1]
    table = pq.read_table(file)
    rows = table["language_persistent"].to_pylist()
    rows[-1] = rows[-1][:1]
    place = table.schema.get_field_index("language_persistent")
    pq.write_table(table.set_column(place, "language_persistent", [rows]), file)
    report = rlds_beam.check(str(annotated), from_="lerobot", rules=True).report
    assert report.rejected == 1 and "differ from frame to frame" in str(msgspec.to_builtins(report))


@pytest.mark.parametrize("text", ["reach", '{"role": "user"}', '[{"content": "x"}]', '[{"role": 1}]', "[[]]"])
def test_a_text_that_is_no_list_of_rows_rejects_its_episode(tmp_path, text):
    episodes = [make_episode(3, columns={"language_events": [one] * 3}) for one in (text, "[]", "")]
    report = data.convert_here(write_dataset(tmp_path / "data", episodes, name="toy"), tmp_path / "out")
    assert (report.rejected, report.valid) == (1, 2)
    assert data.frames(tmp_path / "out")["language_events"].to_pylist() == [[]] * 6


def test_a_feature_of_an_unknown_type_is_left_out_with_a_note(annotated, tmp_path):
    info = data.meta(annotated, "info")
    info["features"]["observation.cloud"] = {"dtype": "point_cloud", "shape": [1], "names": None}
    info["features"]["notes"] = {"dtype": "language", "shape": [1], "names": None}
    (annotated / "meta/info.json").write_text(json.dumps(info))
    source = open_source(str(annotated), from_="lerobot")
    assert set(source.details.left_out) == {"observation.cloud", "notes"}
    assert "observation.cloud (LeRobot's type point_cloud, which rlds-beam does not know)" in source.describe()
    report = rlds_beam.check(str(annotated), from_="lerobot", rules=True).report
    assert report.valid == len(LENGTHS) and set(report.left_out) == {"observation.cloud", "notes"}


def test_an_unknown_storage_is_refused_in_one_line(annotated):
    info = data.meta(annotated, "info")
    del info["data_path"]
    (annotated / "meta/info.json").write_text(json.dumps({**info, "storage_format": "vortex"}))
    with pytest.raises(UsageError, match=r"storage_format is 'vortex'.*use the dataset with Parquet files"):
        open_source(str(annotated), from_="lerobot")
