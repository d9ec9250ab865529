"""LeRobot 0.3.3 opens what `convert --to=lerobot --lerobot_version=2.1` wrote: frames, windows, tasks of the source."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import lerobot_data as data
import numpy as np
import pytest

import rlds_beam

os.environ["HF_HUB_OFFLINE"] = "1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lerobot21")
    os.environ["HF_HOME"] = str(path / "hf")
    return path


@pytest.fixture(scope="module")
def source(folder: Path) -> tuple[str, list[Any]]:
    return data.write_robot_data(folder / "data")


@pytest.fixture(scope="module")
def output(folder: Path, source: tuple[str, list[Any]]) -> Path:
    rlds_beam.convert(source[0], folder / "out", to="lerobot", fps=data.FPS, shards=3, lerobot_version="2.1")
    return folder / "out"


@pytest.fixture(scope="module")
def moving(folder: Path) -> tuple[str, list[Any]]:
    return data.write_moving_data(folder / "moving")


def opened(root: Path, **options: Any) -> Any:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    return LeRobotDataset("some/name", root=root, **options)


def test_every_frame_is_the_step(source, output):
    dataset, frame = opened(output), 0
    assert len(dataset) == sum(map(len, source[1]))
    assert (dataset.num_episodes, dataset.fps) == (len(source[1]), data.FPS)
    for k, e in enumerate(source[1]):
        pixels = e.steps["observation/image_0"].decode()
        for t in range(len(e)):
            item = dataset[frame]
            assert (item["index"], item["episode_index"], item["frame_index"]) == (frame, k, t)
            assert item["task"] == e.steps["language_instruction"][t].decode()
            np.testing.assert_array_equal(item["observation.state"], e.steps["observation/state"][t])
            np.testing.assert_array_equal(item["observation.matrix"], e.steps["observation/matrix"][t])
            np.testing.assert_array_equal(item["action"], e.steps["action"][t])
            assert item["next.reward"] == e.steps["reward"][t]
            assert item["next.done"] == e.steps["is_last"][t]
            if t in (0, len(e) - 1):
                image = item["observation.images.image_0"].numpy().transpose(1, 2, 0) * 255
                assert np.abs(image - pixels[t]).mean() < 8  # another JPEG decoder, of random pixels
            frame += 1


def test_windows_and_chosen_episodes(source, output):
    windows = {"observation.state": [-0.2, -0.1, 0.0], "action": [0.0, 0.1, 0.2]}
    chosen = [1, 5]
    dataset, at = opened(output, episodes=chosen, delta_timestamps=windows), 0
    assert len(dataset) == sum(len(source[1][k]) for k in chosen)
    for place, k in enumerate(chosen):
        e = source[1][k]
        assert dataset.episode_data_index["to"][place] - dataset.episode_data_index["from"][place] == len(e)
        for t in range(len(e)):  # its own items of chosen episodes look the windows up in the wrong one
            row = dataset.hf_dataset[at]
            assert (row["episode_index"], row["frame_index"]) == (k, t)
            at += 1
    dataset, first = opened(output, delta_timestamps=windows), 0
    for k, e in enumerate(source[1]):
        for t in (0, 1, len(e) - 2, len(e) - 1):
            item = dataset[first + t]
            assert item["episode_index"] == k
            for name, path, deltas in (
                ("observation.state", "observation/state", (-2, -1, 0)),
                ("action", "action", (0, 1, 2)),
            ):
                places = [t + d for d in deltas]
                assert item[f"{name}_is_pad"].tolist() == [not 0 <= p < len(e) for p in places]
                np.testing.assert_array_equal(item[name], e.steps[path][np.clip(places, 0, len(e) - 1)])
        first += len(e)


def test_the_metadata_are_loaded(source, output):
    meta = opened(output).meta
    states = np.concatenate([e.steps["observation/state"] for e in source[1]])
    np.testing.assert_allclose(meta.stats["observation.state"]["mean"], states.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(meta.stats["observation.state"]["std"], states.std(axis=0), rtol=1e-5)
    assert meta.stats["observation.images.image_0"]["mean"].shape == (3, 1, 1)
    assert [meta.episodes[k]["file_path"] for k in range(len(source[1]))] == [f"/data/{len(e)}" for e in source[1]]
    texts = dict.fromkeys(t.decode() for e in source[1] for t in e.steps["language_instruction"])
    assert list(meta.tasks.values()) == list(texts)


@pytest.fixture(scope="module")
def videos(folder: Path, moving: tuple[str, list[Any]]) -> Path:
    out = folder / "videos"
    rlds_beam.convert(
        moving[0], out, to="lerobot", fps=data.FPS, shards=2, images="video", lerobot_version="2.1", modality="auto"
    )
    return out


def test_every_frame_of_the_videos_is_found_by_its_time(moving, videos):
    dataset, frame = opened(videos), 0
    assert dataset.meta.video_keys == ["observation.images.image_0", "observation.images.wrist"]
    assert dataset.meta.total_chunks == 1
    for e in moving[1]:
        for t in range(len(e)):
            item = dataset[frame]  # LeRobot raises where no frame is within 1e-4 s
            for camera in ("image_0", "wrist"):
                pixels = e.steps[f"observation/{camera}"][[t]].decode()[0]
                found = item[f"observation.images.{camera}"].numpy().transpose(1, 2, 0) * 255
                assert np.abs(found - pixels).mean() < 6, (frame, camera)
                bars = [np.flatnonzero(image[2:6].mean(axis=(0, 2)) > 170).mean() for image in (found, pixels)]
                assert abs(bars[0] - bars[1]) < 1  # the frame, and not the one beside it
            frame += 1
    windows = opened(videos, delta_timestamps={"observation.images.image_0": [-0.1, 0.0, 0.1]})
    assert windows[0]["observation.images.image_0_is_pad"].tolist() == [True, False, False]


def test_its_parts_are_found_as_gr00t_looks_them_up(moving, videos):
    """By modality.json and stats.json alone: a slice of a vector, a path of a video, a row of tasks.jsonl."""
    import pandas as pd

    info, modality, stats = (data.meta(videos, name) for name in ("info", "modality", "stats"))
    tasks = {line["task_index"]: line["task"] for line in data.lines(videos, "tasks")}
    for k, (line, e) in enumerate(zip(data.lines(videos, "episodes"), moving[1], strict=True)):
        place = {"episode_chunk": k // info["chunks_size"], "episode_index": k}
        rows = pd.read_parquet(videos / info["data_path"].format(**place))
        assert len(rows) == line["length"] == len(e)
        for part, key, path in (("state", "observation.state", "observation/state"), ("action", "action", "action")):
            for entry in modality[part].values():
                found = np.stack([row[entry["start"] : entry["end"]] for row in rows[entry.get("original_key", key)]])
                np.testing.assert_array_equal(found, e.steps[path])
                assert all(
                    len(np.array(v)[entry["start"] : entry["end"]]) == found.shape[1] for v in stats[key].values()
                )
        for entry in modality["video"].values():
            assert (videos / info["video_path"].format(video_key=entry["original_key"], **place)).exists()
        texts = rows[modality["annotation"]["human.task_description"]["original_key"]].map(tasks.get)
        assert [text.encode() for text in texts] == list(e.steps["language_instruction"])
    for name in (name for name, feature in info["features"].items() if "float" in feature["dtype"]):
        assert {"mean", "std", "min", "max", "q01", "q99"} <= stats[name].keys()


def test_what_lerobot_wrote_itself_is_read(moving, folder):
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    features = {
        "observation.images.top": {"dtype": "image", "shape": (64, 64, 3), "names": ["height", "width", "channels"]},
        "observation.state": {"dtype": "float32", "shape": (4,), "names": None},
        "action": {"dtype": "float32", "shape": (2,), "names": None},
    }
    made = LeRobotDataset.create("some/own", data.FPS, features, root=folder / "own", use_videos=False)
    for k, e in enumerate(moving[1][:3]):
        pixels = e.steps["observation/image_0"].decode()
        for t in range(len(e)):
            row = {"observation.state": e.steps["observation/state"][t], "action": e.steps["action"][t]}
            made.add_frame({**row, "observation.images.top": pixels[t]}, task=f"task {k}")
        made.save_episode()
    found = data.read_episodes(str(folder / "own"), "lerobot")
    assert len(found) == 3
    for k, (one, e) in enumerate(zip(found, moving[1], strict=False)):
        pixels = e.steps["observation/image_0"].decode()
        np.testing.assert_array_equal(one.steps["observation/images/top"].decode(), pixels)
        np.testing.assert_array_equal(one.steps["observation/state"], e.steps["observation/state"])
        assert set(one.steps["language_instruction"]) == {f"task {k}".encode()}
