"""Depth videos: values survive within a quantum, other pixel formats are not misread."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import lerobot_data as data
import msgspec
import numpy as np
import pytest
from exchanging import export

import rlds_beam
from rlds_beam import Field, Schema
from rlds_beam.encoding.tfds.rlds_dataset import default_schema
from rlds_beam.errors import UsageError
from rlds_beam.formats.inputs import open_source
from rlds_beam.images.video_frames import Depth
from rlds_beam.testing import write_dataset

av = pytest.importorskip("av")

LENGTHS = (5, 12, 3)
VIDEO = {"images": "video", "depth": "observation/depth"}


def quanta(depth: Depth, found: Any, wanted: Any) -> Any:
    """The difference in 12-bit numbers."""
    return np.abs(depth.quantize(found).astype(int) - depth.quantize(wanted).astype(int))


def depth_data(directory: Path, kind: str) -> tuple[Any, list[Any]]:
    """A dataset with depth as 16-bit PNGs, as an array of meters, or of (height, width) millimeters."""
    episodes = [data.robot_episode(length, 32) for length in LENGTHS]
    schema = default_schema(episodes[0])
    if kind != "png":
        made = []
        for episode in episodes:
            millimeters = episode.steps["observation/depth"].decode() % 9000 + 100
            array = (millimeters / 1000).astype(np.float32) if kind == "m" else millimeters[..., 0]
            made.append(dataclasses.replace(episode, steps={**episode.steps, "observation/depth": array}))
        episodes = made
        shape = episodes[0].steps["observation/depth"].shape[1:]
        field = Field("observation/depth", "float32" if kind == "m" else "uint16", shape)
        schema = Schema({**schema.steps, field.path: field}, schema.metadata)
    return write_dataset(directory, episodes, name="robot", schema=schema, shards=2), episodes


@pytest.mark.parametrize("kind", ["png", "m", "mm"])
def test_depth_survives_within_a_quantum(tmp_path, kind):
    path, episodes = depth_data(tmp_path / "data", kind)
    data.convert_here(path, tmp_path / "out", **VIDEO)
    unit = "m" if kind == "m" else "mm"
    feature = data.meta(tmp_path / "out", "info")["features"]["observation.images.depth"]
    assert (feature["dtype"], feature["shape"]) == ("video", [32, 32, 1])
    info = feature["info"]
    assert info["is_depth_map"] and info["depth_unit"] == unit and info["video.pix_fmt"] == "gray12le"
    assert (info["video.depth_min"], info["video.depth_max"], info["video.shift"]) == (0.01, 10.0, 3.5)
    depth, read = Depth(unit=unit), data.read_episodes(str(tmp_path / "out"), "lerobot")
    for found, wanted in zip(read, episodes, strict=True):
        columns = [one.steps["observation/depth"] for one in (found, wanted)]
        one, other = [c.decode() if hasattr(c, "decode") else np.asarray(c) for c in columns]
        assert one.dtype == other.dtype and one.shape == other.shape
        assert quanta(depth, one, other).max() <= 1
        within = (other >= 0.01 * (1000 if unit == "mm" else 1)) & (other <= 10 * (1000 if unit == "mm" else 1))
        error = np.abs(one.astype(float) - other.astype(float))[within]
        assert error.max() < (2.5 if unit == "mm" else 0.0025)
    stats = data.meta(tmp_path / "out", "stats")["observation.images.depth"]
    assert 10 <= stats["min"][0][0][0] * (1000 if unit == "m" else 1) <= stats["max"][0][0][0] * 1000
    assert stats["max"][0][0][0] > (5 if unit == "m" else 5000)


def test_a_foreign_dataset_gets_depth_by_its_unit(tmp_path):
    path, _ = depth_data(tmp_path / "data", "m")
    data.convert_here(path, tmp_path / "out", **VIDEO)
    (tmp_path / "out/meta/rlds_beam.json").unlink()
    source = open_source(str(tmp_path / "out"), from_="lerobot", split="train")
    assert source.schema.steps["observation/images/depth"] == Field("observation/images/depth", "float32", (32, 32, 1))
    report = rlds_beam.check(str(tmp_path / "out"), from_="lerobot", rules=True).report
    assert report.valid == len(LENGTHS)


def test_a_round_trip_to_rlds_and_again_changes_nothing_more(tmp_path):
    path, _ = depth_data(tmp_path / "data", "png")
    data.convert_here(path, tmp_path / "one", **VIDEO)
    export(tmp_path / "one", tmp_path / "rlds/robot/1.0.0", "rlds", from_="lerobot")
    data.convert_here(tmp_path / "rlds/robot/1.0.0", tmp_path / "two", **VIDEO)
    episodes = [data.read_episodes(str(tmp_path / name), "lerobot") for name in ("one", "two")]
    for one, other in zip(*episodes, strict=True):
        pixels = [e.steps["observation/depth"].decode() for e in (one, other)]
        np.testing.assert_array_equal(*pixels)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": "observation/depth"}, "needs --images=video"),
        ({"images": "video", "depth_max": 5.0}, "needs --depth"),
        ({**VIDEO, "lerobot_version": "2.1"}, "LeRobot 2.1 has no depth videos"),
        ({"images": "video", "depth": "observation/dept"}, "did you mean observation/depth"),
        ({"images": "video", "depth": "observation/image_0"}, "is no depth"),
        ({"images": "video", "depth": "observation/state"}, "is no depth"),
        ({**VIDEO, "depth_min": 20.0}, "minimum < maximum"),
    ],
)
def test_options_that_cannot_be_used(tmp_path, options, message):
    path, _ = depth_data(tmp_path / "data", "png")
    with pytest.raises(UsageError, match=message):
        data.convert_here(path, tmp_path / "out", **options)


def video(path: Path, pixels: str, frames: int) -> None:
    """Replaces a video by one with another pixel format, lossless."""
    container = av.open(str(path), "w", format="mp4")
    stream = container.add_stream("libx265", 10, options={"x265-params": "lossless=1:log-level=none"})
    stream.pix_fmt, stream.height, stream.width = pixels, 32, 32
    for i in range(frames):
        frame = av.VideoFrame.from_ndarray(np.full((32, 32, 3), 100, np.uint8), "rgb24").reformat(format=pixels)
        frame.pts = i
        container.mux(stream.encode(frame))
    container.mux(stream.encode())
    container.close()


@pytest.mark.parametrize(
    ("pixels", "is_depth", "reason"),
    [
        ("gray", True, "its pixel format is gray, but depth maps have 12 bits"),
        ("yuv420p", True, "its pixel format is yuv420p, but depth maps have 12 bits"),
        ("gray12le", False, "12 bits of gray, but info.json does not call it a depth map"),
        ("gray", False, None),
        ("yuv444p", False, None),
        ("yuv420p10le", False, None),
    ],
)
def test_pixel_formats_are_converted_or_rejected(tmp_path, pixels, is_depth, reason):
    path, episodes = depth_data(tmp_path / "data", "png")
    data.convert_here(path, tmp_path / "out", shards=1, **VIDEO)
    name = "observation.images.depth" if is_depth else "observation.images.image_0"
    (file,) = tmp_path.glob(f"out/videos/{name}/*/*.mp4")
    video(file, pixels, sum(map(len, episodes)))
    report = rlds_beam.check(str(tmp_path / "out"), from_="lerobot", rules=True).report
    if reason is None:
        assert report.valid == len(episodes)
        found = data.read_episodes(str(tmp_path / "out"), "lerobot")[0].steps["observation/image_0"].decode()
        assert np.abs(found.astype(int) - 100).max() <= 2
    else:
        assert report.rejected == len(episodes) and reason in json.dumps(msgspec.to_builtins(report))


def test_images_of_16_bits_are_depth_if_marked_and_never_cut_to_8_bits(tmp_path):
    episodes = [data.robot_episode(length) for length in (3, 4)]
    path = write_dataset(tmp_path / "data", episodes, name="robot")
    data.convert_here(path, tmp_path / "out", shards=1, map="-is_terminal")
    (tmp_path / "out/meta/rlds_beam.json").unlink()
    report = rlds_beam.check(str(tmp_path / "out"), from_="lerobot", rules=True).report
    assert report.rejected == 2 and "a PNG has 16 bits" in json.dumps(msgspec.to_builtins(report))
    info = data.meta(tmp_path / "out", "info")
    info["features"]["observation.images.depth"]["info"] = {"is_depth_map": True, "depth_unit": "mm"}
    (tmp_path / "out/meta/info.json").write_text(json.dumps(info))
    for one, other in zip(data.read_episodes(str(tmp_path / "out"), "lerobot"), episodes, strict=True):
        pixels = [e.steps[p].decode() for e, p in ((one, "observation/images/depth"), (other, "observation/depth"))]
        np.testing.assert_array_equal(*pixels)
