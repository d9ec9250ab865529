"""LeRobot and we read each other's depth videos: at most one quantum of difference."""

from __future__ import annotations

import json

import lerobot_data as data
import numpy as np
import pytest
from lerobot_peer import FORMAT_VERSION, OPTIONS, opened

import rlds_beam
from rlds_beam import Field, Schema
from rlds_beam.encoding.tfds.rlds_dataset import default_schema
from rlds_beam.images.video_frames import Depth
from rlds_beam.testing import make_episode, write_dataset

pytestmark = pytest.mark.skipif(FORMAT_VERSION == "2.1", reason="LeRobot 0.3 has no depth videos")
LENGTHS, SIZE = (4, 7, 3), (48, 64)
DTYPES = {"mm": np.uint16, "m": np.float32}


def depth_maps(length: int, unit: str):
    rng = np.random.default_rng(length)
    millimeters = rng.integers(0, 12_000, (length, *SIZE, 1)).astype(np.uint16)
    return millimeters if unit == "mm" else (millimeters / 1000).astype(np.float32)


def quanta(depth: Depth, found, wanted):
    return np.abs(depth.quantize(found).astype(int) - depth.quantize(wanted).astype(int)).max()


def test_the_scale_is_lerobots():
    from lerobot.datasets.depth_utils import dequantize_depth, quantize_depth

    for unit, depth in (("mm", Depth()), ("m", Depth(unit="m")), ("m", Depth(0.2, 4.0, 1.0, False, "m"))):
        given = depth_maps(9, unit)[..., 0]
        scale = {"depth_min": depth.low, "depth_max": depth.high, "shift": depth.shift, "use_log": depth.log}
        theirs = quantize_depth(given[0], video_backend=None, **scale)
        assert np.abs(depth.quantize(given[0]).astype(int) - theirs).max() <= 1
        codes = np.arange(4096, dtype=np.uint16).reshape(64, 64)
        values = dequantize_depth(codes, output_unit=unit, output_tensor=False, **scale)[0]
        error = np.abs(depth.values[codes].astype(float) - values)
        assert error.max() <= (1 if unit == "mm" else 1e-5) and values.dtype == depth.dtype


@pytest.mark.parametrize("unit", ["mm", "m"])
def test_files_that_lerobot_wrote(folder, unit):
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    root = folder / f"depth_{unit}"
    features = {
        "observation.images.depth": {
            "dtype": "video",
            "shape": (*SIZE, 1),
            "names": ["height", "width", "channels"],
            "info": {"is_depth_map": True},
        },
        "action": {"dtype": "float32", "shape": (2,), "names": None},
    }
    dataset = LeRobotDataset.create("some/depth", data.FPS, features, root=root, use_videos=True)
    for length in LENGTHS:
        for one in depth_maps(length, unit):
            dataset.add_frame({"observation.images.depth": one, "action": np.zeros(2, np.float32), "task": "x"})
        dataset.save_episode()
    dataset.finalize()
    info = json.loads((root / "meta/info.json").read_text())["features"]["observation.images.depth"]["info"]
    assert info["depth_unit"] == unit
    theirs, at = opened(root, depth_output_unit=unit), 0
    for episode, length in zip(data.read_episodes(str(root), "lerobot"), LENGTHS, strict=True):
        column = episode.steps["observation/images/depth"]
        pixels = column.decode() if unit == "mm" else np.asarray(column)
        assert pixels.dtype == DTYPES[unit] and pixels.shape == (length, *SIZE, 1)
        for one in pixels:
            frame = theirs[at]["observation.images.depth"].numpy().transpose(1, 2, 0)
            np.testing.assert_allclose(one.astype(float), frame, atol=1 if unit == "mm" else 1e-5)
            at += 1
        assert quanta(Depth(unit=unit), pixels, depth_maps(length, unit)) <= 1


@pytest.mark.parametrize("unit", ["mm", "m"])
def test_files_that_we_wrote(folder, unit):
    maps = {length: {"observation/depth": depth_maps(length, unit)} for length in LENGTHS}
    episodes = [make_episode(n, seed=n, observation={"state": 3}, columns=columns) for n, columns in maps.items()]
    schema = default_schema(episodes[0])
    field = Field("observation/depth", DTYPES[unit].__name__, (*SIZE, 1))
    schema = Schema({**schema.steps, field.path: field}, schema.metadata)
    path = write_dataset(folder / f"given_{unit}", episodes, name="toy", schema=schema)
    rlds_beam.convert(path, folder / f"ours_{unit}", images="video", depth="observation/depth", **OPTIONS)
    dataset, at = opened(folder / f"ours_{unit}", depth_output_unit=unit), 0
    assert dataset.meta.depth_keys == ["observation.images.depth"]
    for episode in episodes:
        for wanted in episode.steps["observation/depth"]:
            found = dataset[at]["observation.images.depth"].numpy().transpose(1, 2, 0)
            assert quanta(Depth(unit=unit), found.astype(DTYPES[unit]), wanted) <= 1
            at += 1
    stats = dataset.meta.stats["observation.images.depth"]
    assert stats["max"].reshape(-1)[0] == pytest.approx(10_000 if unit == "mm" else 10, rel=0.01)
