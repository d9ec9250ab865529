"""`--lerobot_version=2.1`: the frames and numbers of v3.0, in a file for each episode; GR00T's `--modality`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import lerobot_data as data
import numpy as np
import pyarrow.parquet as pq
import pytest
from directories import bytes_of
from exchanging import commit

import rlds_beam
from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.errors import UsageError
from rlds_beam.formats.inputs import open_source
from rlds_beam.formats.lerobot import layout
from rlds_beam.formats.lerobot.features import map_features
from rlds_beam.formats.lerobot.output import auto_modality
from rlds_beam.jobs.convert import ConvertJob, prepare
from rlds_beam.pipelines.convert import ConvertConfig
from rlds_beam.testing import make_episode, write_dataset

V21 = {"to": "lerobot", "fps": data.FPS, "lerobot_version": "2.1", "shards": 3}


@pytest.fixture(scope="module")
def output(source: tuple[str, list[Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("v21") / "out"
    outcome = rlds_beam.convert(source[0], path, **V21)
    assert outcome.report.items_written == sum(map(len, source[1]))
    return path


def find_job(source: str, path: Path, **options: Any) -> ConvertJob:
    return prepare(ConvertConfig.create(source, str(path), **{**V21, **options}))


def test_an_episode_is_a_file_with_the_frames_of_v3(source, output, v3):
    assert data.frames(output).to_pylist() == data.frames(v3).to_pylist()
    assert data.frames(output).schema.metadata == data.frames(v3).schema.metadata
    files = sorted(output.glob("data/*/*"))
    assert [str(file.relative_to(output)) for file in files] == [
        f"data/chunk-000/episode_{i:06d}.parquet" for i in range(len(source[1]))
    ]
    for i, file in enumerate(files):
        content = pq.ParquetFile(file)
        assert set(content.read()["episode_index"].to_pylist()) == {i}
        assert content.metadata.num_rows == len(source[1][i])
        for group in (content.metadata.row_group(g) for g in range(content.num_row_groups)):
            (column,) = (
                column
                for column in (group.column(c) for c in range(group.num_columns))
                if column.path_in_schema == "episode_index"
            )
            assert (column.statistics.min, column.statistics.max) == (i, i)


def test_meta_matches_that_of_v3(output, v3):
    rows, info = data.episodes_rows(v3), data.meta(output, "info")
    wanted = [
        {n: r[n] for n in ("episode_index", "tasks", "length", "episode_key", "file_path", "success")} for r in rows
    ]
    assert data.lines(output, "episodes") == wanted
    tasks = pq.read_table(v3 / "meta/tasks.parquet").to_pylist()
    assert data.lines(output, "tasks") == [{n: task[n] for n in ("task_index", "task")} for task in tasks]
    for line, row in zip(data.lines(output, "episodes_stats"), rows, strict=True):
        assert line["episode_index"] == row["episode_index"]
        assert {*line["stats"]} == {*info["features"]} - {"observation.note", "observation.images.depth"}
        for name, statistics in line["stats"].items():
            assert statistics == {s: row[f"stats/{name}/{s}"] for s in ("min", "max", "mean", "std", "count")}
    stats = data.meta(v3, "stats")
    assert data.meta(output, "stats") == {n: {k: v for k, v in s.items() if k != "count"} for n, s in stats.items()}
    other = data.meta(v3, "info")
    for name in ("features", "splits", "fps", "total_frames", "total_episodes", "total_tasks", "robot_type"):
        assert info[name] == other[name], name
    assert (info["codebase_version"], info["total_chunks"], info["total_videos"]) == ("v2.1", 1, 0)
    assert json.loads((output / "meta/rlds_beam.json").read_text()) == json.loads(
        (v3 / "meta/rlds_beam.json").read_text()
    )


def test_it_is_read_back_unchanged(source, output):
    given, made = open_source(source[0]), open_source(str(output), from_="lerobot")
    assert made.schema == given.schema
    for found, wanted in zip(data.read_episodes(str(output), "lerobot"), source[1], strict=True):
        data.assert_equal(found, wanted)


def test_it_resumes_at_any_point(source, output, tmp_path):
    path = tmp_path / "out"
    job = find_job(source[0], path)
    for work in job.open():
        job.converter.convert_range(work, {})
    finisher = job.committer.finisher
    one, two, *_ = finisher.ranges({})
    packs = {file: file.read_bytes() for file in (path / "_ranges").iterdir()}
    finisher.process(one, {})
    finisher.process(two, {})
    finisher.process(two, {})  # a runner may repeat it
    for file, content in packs.items():  # killed before the first files of the range were removed
        file.write_bytes(content)
    (path / "data/chunk-000/.episode_000004.parquet.01234567.tmp").write_bytes(b"half")
    (path / "data/chunk-000/episode_000003.parquet").write_bytes(b"half")
    (path / "data/chunk-000/episode_000001.parquet").unlink()  # lost: its range is converted again
    data.convert_here(source[0], path, **V21)
    assert bytes_of(path) == bytes_of(output)
    assert find_job(source[0], path).find_pending() is None


def test_chunks_and_overwriting(source, tmp_path, monkeypatch):
    path = tmp_path / "out"
    monkeypatch.setattr(layout, "CHUNK", 3)
    monkeypatch.setattr(layout.place_of_episode, "__defaults__", (3,))
    data.convert_here(source[0], path, **V21)
    assert [str(file.relative_to(path)) for file in sorted(path.glob("data/*/*"))][2:4] == [
        "data/chunk-000/episode_000002.parquet",
        "data/chunk-001/episode_000003.parquet",
    ]
    info = data.meta(path, "info")
    assert (info["total_chunks"], info["chunks_size"]) == (3, 3)
    assert len(data.read_episodes(str(path), "lerobot")) == 7
    data.convert_here(source[0], path, **{**V21, "split": "val", "overwrite": True})
    assert len([file for file in path.rglob("*") if "episode_" in file.name]) == 2
    assert not (path / "data/chunk-001").exists()


def test_a_link_instead_of_a_directory_is_refused(source, tmp_path):
    path = tmp_path / "out"
    job = find_job(source[0], path)
    for work in job.open():
        job.converter.convert_range(work, {})
    (tmp_path / "other").mkdir()
    (path / "data").mkdir()
    (path / "data/chunk-000").symlink_to(tmp_path / "other")
    with pytest.raises(UsageError, match="is a link"):
        commit(job)
    assert not list((tmp_path / "other").iterdir())


def test_invalid_text_rejects_only_its_episode(tmp_path):
    episode = make_episode(4)
    made = dataclasses.replace(episode, metadata={"name": b"\xff", "success": np.bool_(True)})
    source = write_dataset(
        tmp_path, [made, make_episode(5, metadata={"name": b"a", "success": np.bool_(True)})], name="t"
    )
    for version in ("2.1", "3.0"):
        report = data.convert_here(source, tmp_path / version, lerobot_version=version)
        assert (report.valid, report.rejected) == (1, 1)


FIELDS = (
    Field("observation/image_0", "uint8", (32, 32, 3), "jpeg"),
    Field("observation/arm", "float32", (7,)),
    Field("observation/gripper", "float32"),
    Field("observation/mode", "int64"),
    Field("action", "float32", (8,)),
    Field("language_instruction", "string", (), "text"),
)
MAP = ("observation.state=observation/arm+observation/gripper",)


def features(*entries: str, fields: tuple[Field, ...] = FIELDS) -> Any:
    return map_features(Schema({field.path: field for field in fields}, {}), entries)


def test_auto_names_the_parts():
    found = features(*MAP)
    assert auto_modality(found, found.images) == {
        "state": {"arm": {"start": 0, "end": 7}, "gripper": {"start": 7, "end": 8}},
        "action": {"action": {"start": 0, "end": 8}},
        "video": {"image_0": {"original_key": "observation.images.image_0"}},
        "annotation": {"human.task_description": {"original_key": "task_index"}},
    }


def test_it_is_written_only_for_v21(tmp_path):
    source = write_dataset(tmp_path, [make_episode(3, seed=i) for i in range(2)], name="toy")
    data.convert_here(source, tmp_path / "auto", lerobot_version="2.1", modality="auto")
    assert data.meta(tmp_path / "auto", "modality")["state"] == {"observation": {"start": 0, "end": 3}}
    with pytest.raises(UsageError, match="add --lerobot_version"):
        data.convert_here(source, tmp_path / "none", modality="auto")
    with pytest.raises(UsageError, match="another plan"):
        data.convert_here(source, tmp_path / "auto", lerobot_version="2.1")
