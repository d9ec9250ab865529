"""`--from=lerobot`: our output is read back unchanged, other datasets by convention."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import lerobot_data as data
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlds_beam.errors import UsageError
from rlds_beam.formats.inputs import open_source
from rlds_beam.images.codecs import encode_jpeg


def test_our_output_is_read_back_unchanged(source, output):
    given, made = open_source(source[0]), open_source(str(output), from_="lerobot")
    assert made.schema.steps == given.schema.steps
    assert made.schema.metadata == given.schema.metadata
    assert [(split.name, split.episodes) for split in made.splits] == [("train", 5), ("val", 2)]
    assert made.fps == data.FPS
    for found, wanted in zip(data.read_episodes(str(output), "lerobot"), source[1], strict=True):
        data.assert_equal(found, wanted)


def test_lerobot_to_lerobot_is_the_same_data(output, tmp_path):
    data.convert_here(output, tmp_path / "again", from_="lerobot", split="val", fps=None)
    wanted = data.frames(output).to_pylist()[-32:]
    found = data.frames(tmp_path / "again").to_pylist()
    own = ("index", "episode_index", "task_index")
    assert [{k: v for k, v in row.items() if k not in own} for row in found] == [
        {k: v for k, v in row.items() if k not in own} for row in wanted
    ]
    assert data.meta(tmp_path / "again", "info")["fps"] == data.FPS


def write_v21(root: Path, lengths: tuple[int, ...] = (4, 3)) -> dict[str, Any]:
    """Writes a v2.1 dataset as other programs do; returns the columns of all frames."""
    features: dict[str, Any] = {
        "observation.images.top": {"dtype": "image", "shape": [3, 16, 16], "names": ["channels", "height", "width"]},
        "observation.state": {"dtype": "float32", "shape": [2], "names": ["x", "y"]},
        "action": {"dtype": "float32", "shape": [1], "names": None},
        "next.done": {"dtype": "bool", "shape": [1], "names": None},
        **{
            n: {"dtype": "int64", "shape": [1], "names": None}
            for n in ("frame_index", "episode_index", "index", "task_index")
        },
        "timestamp": {"dtype": "float32", "shape": [1], "names": None},
    }
    info = {
        "codebase_version": "v2.1",
        "fps": 15,
        "total_episodes": len(lengths),
        "total_frames": sum(lengths),
        "chunks_size": 1000,
        "splits": {"train": f"0:{len(lengths)}"},
        "video_path": None,
        "features": features,
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
    }
    (root / "meta").mkdir(parents=True)
    (root / "data/chunk-000").mkdir(parents=True)
    (root / "meta/info.json").write_text(json.dumps(info))
    tasks = ["push", "pull"]
    lines = [json.dumps({"task_index": i, "task": task}) for i, task in enumerate(tasks)]
    (root / "meta/tasks.jsonl").write_text("\n".join(lines) + "\n")
    lines = [json.dumps({"episode_index": i, "tasks": [tasks[i % 2]], "length": n}) for i, n in enumerate(lengths)]
    (root / "meta/episodes.jsonl").write_text("\n".join(lines) + "\n")
    rng, made, first = np.random.default_rng(0), {"images": [], "states": []}, 0
    for i, n in enumerate(lengths):
        jpegs = encode_jpeg(rng.integers(0, 255, (n, 16, 16, 3), np.uint8))
        states = rng.normal(size=(n, 2)).astype(np.float32)
        table = {
            "observation.images.top": [{"bytes": jpeg, "path": None} for jpeg in jpegs],
            "observation.state": pa.array(states.tolist(), pa.list_(pa.float32(), 2)),
            "action": pa.array(np.arange(n, dtype=np.float32)),
            "next.done": [False] * (n - 1) + [True],
            "timestamp": pa.array((np.arange(n) / 15).astype(np.float32)),
            "frame_index": range(n),
            "episode_index": [i] * n,
            "index": range(first, first + n),
            "task_index": [i % 2] * n,
        }
        pq.write_table(pa.table(table), root / f"data/chunk-000/episode_{i:06d}.parquet")
        made["images"].append(jpegs)
        made["states"].append(states)
        first += n
    return made


def test_v21_by_convention(tmp_path):
    made = write_v21(tmp_path / "own")
    source = open_source(str(tmp_path / "own"), from_="lerobot")
    assert source.fps == 15
    assert source.schema.steps["observation/images/top"].shape == (16, 16, 3)
    episodes = data.read_episodes(str(tmp_path / "own"), "lerobot")
    for i, episode in enumerate(episodes):
        assert list(episode.steps["observation/images/top"]) == made["images"][i]
        np.testing.assert_array_equal(episode.steps["observation/state"], made["states"][i])
        n = len(episode)
        assert episode.steps["is_first"].tolist() == [True] + [False] * (n - 1)
        assert episode.steps["is_last"].tolist() == episode.steps["is_terminal"].tolist() == [False] * (n - 1) + [True]
        assert episode.steps["reward"].tolist() == [0.0] * n
        assert episode.steps["discount"].tolist() == [1.0] * (n - 1) + [0.0]
        assert set(episode.steps["language_instruction"]) == {[b"push", b"pull"][i]}
        assert "next.done" not in episode.steps
    assert len(episodes) == 2


def test_damage_is_counted(tmp_path):
    write_v21(tmp_path / "own", (4, 3, 5, 2))
    folder = tmp_path / "own/data/chunk-000"
    content = (folder / "episode_000001.parquet").read_bytes()
    (folder / "episode_000001.parquet").write_bytes(content[:200] + content[300:])
    table = pq.read_table(folder / "episode_000002.parquet")
    pq.write_table(table.slice(0, 4), folder / "episode_000002.parquet")
    report = data.convert_here(tmp_path / "own", tmp_path / "out", from_="lerobot", fps=None)
    assert (report.valid, report.rejected, report.records) == (2, 2, 4)
    assert data.meta(tmp_path / "out", "info")["total_frames"] == 6


def test_a_dataset_whose_metadata_are_missing_is_refused_if_only_they_have_fields(output, tmp_path):
    shutil.copytree(output, tmp_path / "own")
    shutil.rmtree(tmp_path / "own/meta/episodes")
    with pytest.raises(UsageError, match="some of its files are missing"):
        open_source(str(tmp_path / "own"), from_="lerobot")


def test_a_recording_that_was_cut_is_read_as_far_as_it_is_whole(tmp_path):
    write_v21(tmp_path / "own", (4, 3, 5, 2))
    lines = (tmp_path / "own/meta/episodes.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "own/meta/episodes.jsonl").write_text("".join(lines[:1]))  # the data were written before
    last = tmp_path / "own/data/chunk-000/episode_000003.parquet"
    last.write_bytes(last.read_bytes()[:-9])
    info = data.meta(tmp_path / "own", "info")
    (tmp_path / "own/meta/info.json").write_text(json.dumps({**info, "total_episodes": 5, "splits": {"train": "0:5"}}))
    (note,) = open_source(str(tmp_path / "own"), from_="lerobot").details.notes
    assert note.startswith("meta/info.json: the recording was cut; 3 of 5 episodes can be converted, but not episode 3")
    assert f"{last}: " in note
    report = data.convert_here(tmp_path / "own", tmp_path / "out", from_="lerobot", fps=None)
    assert (report.valid, report.rejected, report.records) == (3, 2, 5)
    assert data.meta(tmp_path / "out", "info")["total_frames"] == 4 + 3 + 5
    (tmp_path / "own/meta/info.json").write_text(json.dumps({**info, "total_episodes": 10**15, "splits": {}}))
    with pytest.raises(UsageError, match="has 3 of 1,000,000,000,000,000 episodes"):
        open_source(str(tmp_path / "own"), from_="lerobot")
    for path in (tmp_path / "own/data/chunk-000").glob("*"):
        path.unlink()
    (tmp_path / "own/meta/episodes.jsonl").write_text("")
    (tmp_path / "own/meta/info.json").write_text(json.dumps({**info, "total_episodes": 5}))
    with pytest.raises(UsageError, match="has 0 of 5 episodes"):
        open_source(str(tmp_path / "own"), from_="lerobot")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"codebase_version": "v2.0"}, "version v2.0"),
        ({"fps": 0}, "fps"),
        ({"features": {"x": {"dtype": "float32", "shape": [0]}}}, "cannot be read"),
        ({"splits": {"train": "some"}}, "expected FIRST:END"),
        ({"splits": {"train": "-3:4"}}, "expected FIRST:END"),
        ({"chunks_size": 0}, "chunks_size"),
    ],
)
def test_invalid_metadata_is_refused(tmp_path, change, message):
    write_v21(tmp_path / "own")
    path = tmp_path / "own/meta/info.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(UsageError, match=message):
        open_source(str(tmp_path / "own"), from_="lerobot")
