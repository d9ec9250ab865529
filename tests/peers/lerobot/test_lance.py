"""LeRobot's reader of Lance, which lerobot-lancedb has for released versions, and the converter of lerobot-lancedb.

The reader needs torchcodec, and so FFmpeg, for videos.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import lerobot_data as data
import numpy as np
import pytest
from lerobot_peer import OPTIONS, opened

import rlds_beam
from rlds_beam.formats.lerobot import layout
from rlds_beam.testing import make_episode, write_dataset

torch = pytest.importorskip("torch")
lancedb = pytest.importorskip("lancedb")
lerobot_lancedb = pytest.importorskip("lerobot_lancedb")

WINDOWS = {"observation.state": [-0.1, 0.0], "action": [0.0, 0.1]}
PLACE = ["video_key", "chunk_index", "file_index"]


def write_twins(source: str, folder: Path, **options: Any) -> tuple[Path, Path]:
    """A dataset with Parquet files, and the same as Lance."""
    for storage in ("parquet", "lance"):
        rlds_beam.convert(source, folder / storage, shards=2, storage=storage, **{**OPTIONS, **options})
    return folder / "parquet", folder / "lance"


def assert_same_items(path: Path, twin: Path, **options: Any) -> None:
    found, wanted = lerobot_lancedb.LanceDBDataset(root=path, **options), opened(twin, **options)
    assert len(found) == len(wanted) > 0
    for i in range(len(wanted)):
        one, two = found[i], wanted[i]
        assert one.keys() == two.keys()
        for name, value in two.items():
            assert one[name] == value if isinstance(value, str) else torch.equal(one[name], value), (i, name)


def sorted_rows(path: Path, columns: list[str]) -> list[dict[str, Any]]:
    rows = lancedb.connect(path).open_table("videos").search().select(columns).to_arrow().to_pylist()
    return sorted(rows, key=lambda row: [row[name] for name in PLACE])


def test_every_frame_is_that_of_the_parquet_twin(source, tmp_path):
    twin, path = write_twins(source[0], tmp_path, map="-observation/image_0,-observation/depth")
    assert_same_items(path, twin)
    assert_same_items(path, twin, episodes=[1, 4], delta_timestamps=WINDOWS)


def test_appended_frames_are_those_of_one_conversion(tmp_path):
    episodes = [make_episode(3 + i % 4, seed=i, observation={"state": 4}, action=2) for i in range(8)]
    files = sorted(write_dataset(tmp_path / "data", episodes, shards=4).glob("*tfrecord-0*"))
    for path in files:
        os.utime(path, (1e9, 1e9))
    for given in (files[:2], files):
        rlds_beam.convert([*map(str, given)], tmp_path / "lance", storage="lance", append=given is files, **OPTIONS)
    rlds_beam.convert([*map(str, files)], tmp_path / "parquet", **OPTIONS)
    assert_same_items(tmp_path / "lance", tmp_path / "parquet", delta_timestamps=WINDOWS)


def test_every_frame_of_depth_videos(moving, tmp_path):
    pytest.importorskip("torchcodec")
    cameras = "-observation/image_0,-observation/wrist"
    twin, path = write_twins(moving[0], tmp_path, images="video", depth="observation/depth", map=cameras)
    assert_same_items(path, twin)


def test_every_frame_of_color_videos(moving, tmp_path):
    pytest.importorskip("torchcodec")
    twin, path = write_twins(moving[0], tmp_path, images="video", map="-observation/depth")
    assert_same_items(path, twin)
    assert_same_items(path, twin, delta_timestamps={"observation.images.wrist": [-0.1, 0.0]})


def test_tables_are_those_of_the_converter(moving, tmp_path, capsys):
    """The converter fails for arrays."""
    left_out = "-observation/depth,-observation/matrix"
    twin, path = write_twins(moving[0], tmp_path, images="video", map=left_out)
    from lerobot_lancedb.convert import convert

    convert(tmp_path / "theirs", root=twin)
    capsys.readouterr()
    places = [*PLACE, *lerobot_lancedb.VIDEO_INDEX_COLUMNS]
    assert sorted_rows(path, places) == sorted_rows(tmp_path / "theirs", places)
    ours, theirs = (lancedb.connect(at) for at in (path, tmp_path / "theirs"))
    assert ours.open_table("frames").to_arrow() == theirs.open_table("frames").to_arrow()
    for name in ("frames", "meta"):
        assert ours.open_table(name).schema == theirs.open_table(name).schema
    for row in sorted_rows(path, [*PLACE, "_rowid"]):
        file = twin / layout.VIDEO_PATH.format(**{name: row[name] for name in PLACE})
        (blob,) = ours.open_table("videos").fetch_blob_files("video_bytes", [row["_rowid"]])
        assert blob.read() == file.read_bytes()
    found, wanted = (data.read_episodes(str(at), "lerobot") for at in (tmp_path / "theirs", twin))
    for one, two in zip(found, wanted, strict=True):
        assert list(one.steps) == list(two.steps)
        for name, column in one.steps.items():
            pair = [c.decode() if hasattr(c, "decode") else c for c in (column, two.steps[name])]
            np.testing.assert_array_equal(*pair, name)


def test_the_doctor_finds_nothing(moving, tmp_path, monkeypatch, capsys):
    """It reads datasets with Parquet files."""
    from lerobot_lancedb.doctor import main

    twin, _ = write_twins(moving[0], tmp_path, images="video", map="-observation/depth")
    monkeypatch.setattr("sys.argv", ["doctor", f"--root={twin}"])
    assert main() == 0, capsys.readouterr().out
