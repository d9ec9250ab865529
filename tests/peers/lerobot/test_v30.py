"""Tests specific to v3.0: items of selected episodes, files with several episodes, other codecs."""

from __future__ import annotations

import json
import shutil

import lerobot_data as data
import numpy as np
import pytest
from lerobot_peer import (
    OPTIONS,
    WINDOWS,
    assert_reads_what_lerobot_wrote,
    assert_windows,
    decode_pixels,
    opened,
    write_with_lerobot,
)

import rlds_beam


def test_windows_and_chosen_episodes(source, output):
    windows = {**WINDOWS, "observation.images.image_0": [-0.1, 0.0]}
    chosen = [1, 5]
    dataset, at = opened(output, episodes=chosen, delta_timestamps=windows), 0
    assert len(dataset) == sum(len(source[1][k]) for k in chosen)
    for k in chosen:
        for t in range(len(source[1][k])):
            item = dataset[at]
            assert item["episode_index"] == k
            assert_windows(item, source[1][k], t)
            assert item["observation.images.image_0"].shape[0] == 2
            at += 1


def test_quantiles_are_loaded(source, output):
    states = np.concatenate([e.steps["observation/state"] for e in source[1]])
    stats = opened(output).meta.stats
    np.testing.assert_allclose(stats["observation.state"]["q99"], np.quantile(states, 0.99, axis=0), rtol=1e-5)


def test_windows_of_videos_and_chosen_episodes(moving, videos):
    dataset = opened(videos, episodes=[2, 4], delta_timestamps={"observation.images.image_0": [-0.1, 0.0, 0.1]})
    assert len(dataset) == sum(len(moving[1][k]) for k in (2, 4))
    item = dataset[len(moving[1][2])]
    assert item["observation.images.image_0_is_pad"].tolist() == [True, False, False]
    assert item["episode_index"] == 4


def test_videos_are_read_back(moving, videos):
    episodes = data.read_episodes(str(videos), "lerobot")
    assert [len(e) for e in episodes] == [len(e) for e in moving[1]]
    for one, other in zip(episodes, moving[1], strict=True):
        for camera in ("image_0", "wrist"):
            pixels = [e.steps[f"observation/{camera}"].decode().astype(int) for e in (one, other)]
            assert np.abs(pixels[0] - pixels[1]).mean() < 6
        np.testing.assert_array_equal(one.steps["action"], other.steps["action"])
        assert list(one.steps["observation/depth"]) == list(other.steps["observation/depth"])


def test_h264_by_name(moving, folder):
    out = folder / "h264"
    rlds_beam.convert(
        moving[0], out, images="video", vcodec="h264", crf=20, gop=10, map="-observation/wrist", **OPTIONS
    )
    info = data.meta(out, "info")["features"]["observation.images.image_0"]["info"]
    assert (info["video.codec"], info["video.crf"], info["video.g"]) == ("h264", 20, 10)
    dataset = opened(out)
    pixels = moving[1][-1].steps["observation/image_0"][[-1]].decode()[0]
    assert np.abs(decode_pixels(dataset[len(dataset) - 1], "observation.images.image_0") - pixels).mean() < 6


def test_a_dataset_without_images_or_text_opens(folder):
    from rlds_beam.testing import make_episode, write_dataset

    path = write_dataset(folder / "plain", [make_episode(4, seed=i) for i in range(3)], name="toy")
    rlds_beam.convert(path, folder / "toy", to="lerobot", fps=5)
    dataset = opened(folder / "toy")
    assert len(dataset) == 12
    assert dataset[5]["task"] == ""
    assert json.loads((folder / "toy/meta/info.json").read_text())["total_tasks"] == 1
    shutil.rmtree(folder / "toy")


@pytest.mark.parametrize("kind", ["image", "video"])
def test_files_that_lerobot_begins_at_its_size_limits_are_read(moving, folder, kind):
    """LeRobot writes a dataset with a size limit far below an episode: several data and video files."""
    root = folder / f"small_{kind}"
    limits = {"chunks_size": 2, "data_files_size_in_mb": 0.001, "video_files_size_in_mb": 0.001}
    write_with_lerobot(root, moving[1], kind, **limits)
    assert len(list(root.glob("data/*/*.parquet"))) > 1 and len(list(root.glob("data/*"))) > 1
    assert kind == "image" or len(list(root.glob("videos/*/*/*.mp4"))) > 1
    assert_reads_what_lerobot_wrote(root, moving[1], error=6 if kind == "video" else 0.01)
