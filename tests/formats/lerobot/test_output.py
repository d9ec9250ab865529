"""`convert --to=lerobot`: the contents of files, with any number of workers, killed or not; sizes of images."""

from __future__ import annotations

import dataclasses
import json

import lerobot_data as data
import numpy as np
import pyarrow.dataset as pd
import pyarrow.parquet as pq
import pytest
from exchanging import export

import rlds_beam
from rlds_beam.errors import UsageError
from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.jobs.convert import prepare
from rlds_beam.pipelines.convert import ConvertConfig
from rlds_beam.testing import make_episode, read_rejected, write_dataset


def test_the_frames_are_the_steps(source, output):
    table, episodes = data.frames(output), source[1]
    lengths = [len(e) for e in episodes]
    column = {name: table[name].to_pylist() for name in table.column_names}
    for name, path in {
        "observation.state": "observation/state",
        "observation.matrix": "observation/matrix",
        "action": "action",
        "next.reward": "reward",
        "next.done": "is_last",
        "is_first": "is_first",
        "is_terminal": "is_terminal",
        "discount": "discount",
        "observation.count": "observation/count",
    }.items():
        np.testing.assert_array_equal(column[name], np.concatenate([e.steps[path] for e in episodes]), name)
    for name, path in {
        "observation.images.image_0": "observation/image_0",
        "observation.images.depth": "observation/depth",
    }.items():
        assert [image["bytes"] for image in column[name]] == [i for e in episodes for i in e.steps[path]]
    assert column["observation.note"] == [t.decode() for e in episodes for t in e.steps["observation/note"]]
    assert column["index"] == list(range(sum(lengths)))
    assert column["episode_index"] == np.repeat(range(len(episodes)), lengths).tolist()
    assert column["frame_index"] == [i for n in lengths for i in range(n)]
    assert column["timestamp"] == [np.float32(i / data.FPS) for n in lengths for i in range(n)]
    tasks = pq.read_table(output / "meta/tasks.parquet").to_pydict()
    assert tasks["task_index"] == list(range(len(tasks["task"])))
    texts = [t.decode() for e in episodes for t in e.steps["language_instruction"]]
    assert [tasks["task"][i] for i in column["task_index"]] == texts
    assert tasks["task"] == list(dict.fromkeys(texts))


def test_the_bounds_of_row_groups_are_exact(output):
    for file in sorted(output.glob("data/*/*.parquet")):
        content = pq.ParquetFile(file)
        for group in (content.metadata.row_group(i) for i in range(content.num_row_groups)):
            columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
            first, last = columns["index"].statistics.min, columns["index"].statistics.max
            assert last - first + 1 == group.num_rows
            rows = data.frames(output).slice(first, group.num_rows)
            assert rows["index"].to_pylist() == list(range(first, last + 1))
            bounds = columns["episode_index"].statistics
            assert (bounds.min, bounds.max) == (rows["episode_index"][0].as_py(), rows["episode_index"][-1].as_py())
    found = pd.dataset(sorted(map(str, output.glob("data/*/*.parquet")))).to_table(
        filter=pd.field("episode_index") == 4
    )
    assert set(found["episode_index"].to_pylist()) == {4}


def test_meta_locates_each_episode(source, output):
    episodes, rows, first = source[1], data.episodes_rows(output), 0
    assert len(rows) == len(episodes)
    for i, (row, e) in enumerate(zip(rows, episodes, strict=True)):
        assert (row["episode_index"], row["length"]) == (i, len(e))
        assert (row["dataset_from_index"], row["dataset_to_index"]) == (first, first + len(e))
        texts = [t.decode() for t in e.steps["language_instruction"]]
        assert row["tasks"] == list(dict.fromkeys(texts))
        assert row["file_path"] == f"/data/{len(e)}"
        assert row["success"] == bool(len(e) % 2)
        file = output / f"data/chunk-{row['data/chunk_index']:03d}/file-{row['data/file_index']:03d}.parquet"
        assert i in pq.read_table(file, columns=["episode_index"])["episode_index"].to_pylist()
        np.testing.assert_allclose(row["stats/action/mean"], e.steps["action"].mean(axis=0), rtol=1e-5)
        np.testing.assert_allclose(row["stats/index/q50"], [first + (len(e) - 1) / 2])
        assert row["stats/action/count"] == [len(e)]
        assert np.shape(row["stats/observation.matrix/std"]) == (2, 3)
        assert np.shape(row["stats/observation.images.image_0/min"]) == (3, 1, 1)
        first += len(e)
    info = data.meta(output, "info")
    assert info["splits"] == {"train": "0:5", "val": "5:7"}
    assert (info["total_frames"], info["total_episodes"], info["fps"]) == (first, len(episodes), data.FPS)
    assert info["features"]["observation.state"]["names"] == ["state_0", "state_1", "state_2", "state_3"]
    assert info["features"]["observation.images.image_0"]["shape"] == [16, 16, 3]
    assert info["features"]["next.reward"]["shape"] == [1]


def test_the_statistics_cover_all_frames(source, output):
    found, table = data.meta(output, "stats"), data.frames(output)
    assert {*found} == {*data.meta(output, "info")["features"]} - {"observation.note"}
    for name in (
        "action",
        "observation.matrix",
        "next.reward",
        "timestamp",
        "index",
        "episode_index",
        "task_index",
        "next.done",
    ):
        values = np.array(table[name].to_pylist(), np.float64)
        stats = found[name]
        assert stats["count"] == [len(values)]
        for key, value in {
            "min": values.min(0),
            "max": values.max(0),
            "mean": values.mean(0),
            "std": values.std(0),
            **{f"q{q:02d}": np.quantile(values, q / 100, axis=0) for q in (1, 10, 50, 90, 99)},
        }.items():
            wanted = np.reshape(value, values.shape[1:] or (1,))
            np.testing.assert_allclose(stats[key], wanted, rtol=1e-6, atol=1e-7, err_msg=f"{name} {key}")
    sampled = [e.steps["observation/image_0"].decode().reshape(-1, 3) / 255 for e in source[1]]
    pixels, stats = np.concatenate(sampled), found["observation.images.image_0"]
    assert stats["count"] == [sum(map(len, sampled)) // (16 * 16)]
    for key, value in {"mean": pixels.mean(0), "std": pixels.std(0), "q90": np.quantile(pixels, 0.9, axis=0)}.items():
        np.testing.assert_allclose(np.ravel(stats[key]), value, atol=1e-9, err_msg=key)


def test_everything_is_counted(source, output):
    manifest = json.loads((output / "manifest.json").read_text())
    frames = sum(map(len, source[1]))
    assert manifest["items"] == frames == sum(shard["predicted"] for shard in manifest["shards"])
    assert [line["rule"] for line, _ in read_rejected(output)] == ["missing_is_last"]
    assert not (output / "_ranges").exists()
    for shard in (one for one in manifest["shards"] if one["records"]):
        assert (output / shard["file"]).stat().st_size == shard["bytes"]
    commits = [json.loads(file.read_text()) for file in (output / "_commits").iterdir()]
    assert {c["files"][0]["shard"]["checksum"] for c in commits} == {s["checksum"] for s in manifest["shards"]}


def test_a_range_without_an_episode_has_no_file(tmp_path):
    episodes = [make_episode(4, seed=i, breaks=["missing_is_last"] if i < 2 else []) for i in range(4)]
    source = write_dataset(tmp_path, episodes, name="toy", shards=2)
    path = tmp_path / "out"
    data.convert_here(source, path, fps=5, shards=2)
    assert [file.name for file in path.glob("data/*/*")] == ["file-001.parquet"]
    assert [row["data/file_index"] for row in data.episodes_rows(path)] == [1, 1]
    states = [row for e in episodes[2:] for row in e.steps["observation"].tolist()]
    assert data.frames(path)["observation.state"].to_pylist() == states
    again = prepare(ConvertConfig.create(str(source), str(path), to="lerobot", fps=5, shards=2))
    assert again.find_pending() is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "--fps=10"),
        ({"fps": 12.5}, "--round_fps"),
        ({"fps": 0}, "above 0"),
        ({"fps": 5, "map": "x=observation/nothing"}, "there is no field"),
        ({"fps": 5, "crf": 20}, "--crf needs --images=video"),
    ],
)
def test_invalid_options_are_refused(source, tmp_path, options, message):
    with pytest.raises(UsageError, match=message):
        rlds_beam.convert(source[0], tmp_path / "out", to="lerobot", **options)
    assert not (tmp_path / "out").exists()


def test_a_rate_that_contradicts_the_data_is_refused(source, tmp_path):
    """All frames are kept, so another rate would be a recording in slow motion."""
    export(source[0], tmp_path / "first", "lerobot", fps=30)
    with pytest.raises(
        UsageError, match=r"--fps=10: the data is 30 Hz; --fps=30, or --connectors=.Resample.10.*0\.333 times its speed"
    ):
        rlds_beam.convert(tmp_path / "first", tmp_path / "slow", to="lerobot", fps=10)
    assert not (tmp_path / "slow").exists()
    for name, options in {"same": {"fps": 30}, "known": {}}.items():
        export(tmp_path / "first", tmp_path / name, "lerobot", **options)
        assert json.loads((tmp_path / name / "meta" / "info.json").read_text())["fps"] == 30


def episode(size: int, seed: int, *, channels: int | None = 3):
    made = make_episode(3, seed=seed, observation={"state": 2})
    pixels = np.random.default_rng(seed).integers(0, 255, (3, size, size, 3), np.uint8)
    picture = data.images(encode_jpeg(pixels), (None, None, channels))
    return dataclasses.replace(made, steps={**made.steps, "observation/image": picture})


@pytest.mark.parametrize("version", ["3.0", "2.1"])
def test_all_images_must_have_the_first_size(tmp_path, version):
    source = write_dataset(tmp_path, [episode(16, 0), episode(24, 1), episode(16, 2)], name="open", shards=2)
    out = tmp_path / "out"
    report = data.convert_here(source, out, lerobot_version=version)
    assert (report.valid, report.rejected) == (2, 1)
    assert "24x24" in (out / "rejected" / next(p.name for p in (out / "rejected").glob("*.jsonl"))).read_text()
    assert data.meta(out, "info")["features"]["observation.images.image"]["shape"] == [16, 16, 3]
    found = data.read_episodes(str(out), "lerobot")
    assert [e.steps["observation/image"].shape for e in found] == [(None, None, 3)] * 2
    for one, seed in zip(found, (0, 2), strict=True):
        assert list(one.steps["observation/image"]) == list(episode(16, seed).steps["observation/image"])
