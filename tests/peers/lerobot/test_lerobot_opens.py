"""LeRobot opens what `convert --to=lerobot` wrote: the same frames, windows, tasks and numbers as in the source."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import lerobot_data as data
import numpy as np
import pytest

import rlds_beam
from rlds_beam import Field, Schema
from rlds_beam.encoding.tfds.rlds_records import schema_of

os.environ["HF_HUB_OFFLINE"] = "1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lerobot")
    os.environ["HF_HOME"] = str(path / "hf")
    return path


@pytest.fixture(scope="module")
def source(folder: Path) -> tuple[str, list[Any]]:
    return data.write_robot_data(folder / "data")


@pytest.fixture(scope="module")
def output(folder: Path, source: tuple[str, list[Any]]) -> Path:
    rlds_beam.convert(source[0], folder / "out", to="lerobot", fps=data.FPS, shards=3)
    return folder / "out"


def opened(root: Path, **options: Any) -> Any:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    return LeRobotDataset("some/name", root=root, **options)


def test_every_frame_is_the_step(source, output):
    dataset, frame = opened(output), 0
    assert len(dataset) == sum(map(len, source[1]))
    assert dataset.num_episodes == len(source[1])
    assert dataset.meta.fps == data.FPS
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
    windows = {
        "observation.state": [-0.2, -0.1, 0.0],
        "action": [0.0, 0.1, 0.2],
        "observation.images.image_0": [-0.1, 0.0],
    }
    chosen = [1, 5]
    dataset, at = opened(output, episodes=chosen, delta_timestamps=windows), 0
    assert len(dataset) == sum(len(source[1][k]) for k in chosen)
    for k in chosen:
        e = source[1][k]
        for t in range(len(e)):
            item = dataset[at]
            assert item["episode_index"] == k
            for name, path, deltas in (
                ("observation.state", "observation/state", (-2, -1, 0)),
                ("action", "action", (0, 1, 2)),
            ):
                places = [t + d for d in deltas]
                assert item[f"{name}_is_pad"].tolist() == [not 0 <= p < len(e) for p in places]
                np.testing.assert_array_equal(item[name], e.steps[path][np.clip(places, 0, len(e) - 1)])
            assert item["observation.images.image_0"].shape[0] == 2
            at += 1


def test_the_statistics_and_metadata_are_loaded(source, output):
    meta = opened(output).meta
    states = np.concatenate([e.steps["observation/state"] for e in source[1]])
    np.testing.assert_allclose(meta.stats["observation.state"]["mean"], states.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(meta.stats["observation.state"]["q99"], np.quantile(states, 0.99, axis=0), rtol=1e-5)
    assert meta.stats["observation.images.image_0"]["mean"].shape == (3, 1, 1)
    assert [meta.episodes[k]["file_path"] for k in range(len(source[1]))] == [f"/data/{len(e)}" for e in source[1]]
    assert meta.camera_keys


@pytest.fixture(scope="module")
def moving(folder: Path) -> tuple[str, list[Any]]:
    """Episodes with two cameras that a codec can hold: squares that move over a soft background."""
    return data.write_moving_data(folder / "moving")


@pytest.fixture(scope="module")
def videos(folder: Path, moving: tuple[str, list[Any]]) -> Path:
    rlds_beam.convert(moving[0], folder / "videos", to="lerobot", fps=data.FPS, shards=2, images="video")
    return folder / "videos"


def test_every_frame_of_the_videos_is_found_by_its_time(moving, videos):
    dataset, frame = opened(videos), 0
    assert dataset.meta.video_keys == ["observation.images.image_0", "observation.images.wrist"]
    assert "observation.images.depth" in dataset.meta.image_keys
    assert len(list(videos.glob("videos/*/*/*.mp4"))) == 4
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


def test_windows_of_videos_and_chosen_episodes(moving, videos):
    dataset = opened(videos, episodes=[2, 4], delta_timestamps={"observation.images.image_0": [-0.1, 0.0, 0.1]})
    assert len(dataset) == sum(len(moving[1][k]) for k in (2, 4))
    item = dataset[len(moving[1][2])]
    assert item["observation.images.image_0_is_pad"].tolist() == [True, False, False]
    assert item["episode_index"] == 4


def test_videos_are_read_back(moving, videos):
    found = data.read_episodes(str(videos), "lerobot")
    assert [len(e) for e in found] == [len(e) for e in moving[1]]
    for one, other in zip(found, moving[1], strict=True):
        for camera in ("image_0", "wrist"):
            pixels = [e.steps[f"observation/{camera}"].decode().astype(int) for e in (one, other)]
            assert np.abs(pixels[0] - pixels[1]).mean() < 6
        np.testing.assert_array_equal(one.steps["action"], other.steps["action"])
        assert list(one.steps["observation/depth"]) == list(other.steps["observation/depth"])


def test_two_workers_encode_the_same_bytes(moving, videos, folder):
    out = folder / "two"
    rlds_beam.convert(moving[0], out, to="lerobot", fps=data.FPS, shards=2, images="video", workers=2)
    assert data.files(out) == data.files(videos)


def test_h264_by_name(moving, folder):
    out = folder / "h264"
    rlds_beam.convert(
        moving[0],
        out,
        to="lerobot",
        fps=data.FPS,
        images="video",
        vcodec="h264",
        crf=20,
        gop=10,
        map="-observation/wrist",
    )
    info = data.meta(out, "info")["features"]["observation.images.image_0"]["info"]
    assert (info["video.codec"], info["video.crf"], info["video.g"]) == ("h264", 20, 10)
    dataset = opened(out)
    pixels = moving[1][-1].steps["observation/image_0"][[-1]].decode()[0]
    assert (
        np.abs(dataset[len(dataset) - 1]["observation.images.image_0"].numpy().transpose(1, 2, 0) * 255 - pixels).mean()
        < 6
    )


def test_what_lerobot_wrote_itself_is_read(moving, folder):
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    shape = (4,)
    features = {
        "observation.images.top": {"dtype": "image", "shape": (64, 64, 3), "names": ["height", "width", "channels"]},
        "observation.state": {"dtype": "float32", "shape": shape, "names": None},
        "action": {"dtype": "float32", "shape": (2,), "names": None},
    }
    made = LeRobotDataset.create("some/own", data.FPS, features, root=folder / "own", use_videos=False)
    for k, e in enumerate(moving[1][:3]):
        pixels = e.steps["observation/image_0"].decode()
        for t in range(len(e)):
            row = {"observation.state": e.steps["observation/state"][t], "action": e.steps["action"][t]}
            made.add_frame({**row, "observation.images.top": pixels[t], "task": f"task {k}"})
        made.save_episode()
    made.finalize()
    found = data.read_episodes(str(folder / "own"), "lerobot")
    assert len(found) == 3
    for k, (one, e) in enumerate(zip(found, moving[1], strict=False)):
        np.testing.assert_array_equal(
            one.steps["observation/images/top"].decode(), e.steps["observation/image_0"].decode()
        )
        np.testing.assert_array_equal(one.steps["observation/state"], e.steps["observation/state"])
        assert set(one.steps["language_instruction"]) == {f"task {k}".encode()}
        assert one.steps["is_last"].tolist() == [False] * (len(e) - 1) + [True]


def test_lerobot_doctor_passes(output):
    command = [str(Path(sys.executable).with_name("lerobot-doctor")), str(output), "--ci"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_lerobots_own_tools_edit_it(source, output, folder):
    from lerobot.datasets.dataset_tools import delete_episodes

    plain = folder / "plain"  # without a matrix, which these tools cannot write
    rlds_beam.convert(source[0], plain, to="lerobot", fps=data.FPS, map="-observation/matrix,-observation/depth")
    made = delete_episodes(opened(plain), [0, 2], output_dir=folder / "edited", repo_id="some/edited")
    assert len(made) == sum(len(e) for k, e in enumerate(source[1]) if k not in (0, 2))


def test_ray_reads_it(source, output):
    import ray

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        rows = ray.data.read_lerobot(str(output)).take_all()
    finally:
        ray.shutdown()
    rows.sort(key=lambda row: row["index"])
    assert len(rows) == sum(map(len, source[1]))
    np.testing.assert_array_equal(
        np.stack([row["action"] for row in rows]), np.concatenate([e.steps["action"] for e in source[1]])
    )
    assert [row["task"] for row in rows] == [t.decode() for e in source[1] for t in e.steps["language_instruction"]]


def test_act_trains_from_it(folder):
    import torch
    from lerobot.configs.types import FeatureType
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.act.modeling_act import ACTPolicy
    from lerobot.policies.factory import make_pre_post_processors
    from lerobot.utils.feature_utils import dataset_to_policy_features

    bridge = Path(__file__).resolve().parents[4] / "shared" / "data" / "bridge_dataset"
    if not bridge.exists():
        pytest.skip("the real dataset is not there")
    out = folder / "bridge"
    left_out = [f"-observation/image_{i}" for i in (1, 2, 3)]
    rlds_beam.convert(
        bridge, out, to="lerobot", fps=5, repair="missing_is_last", map=[*left_out, "-language_embedding"]
    )
    dataset = opened(out, delta_timestamps={"action": [i / 5 for i in range(4)]})
    features = dataset_to_policy_features(dataset.meta.features)
    outputs = {key: value for key, value in features.items() if value.type is FeatureType.ACTION}
    inputs = {key: value for key, value in features.items() if key not in outputs and key.startswith("observation")}
    config = ACTConfig(
        input_features=inputs, output_features=outputs, chunk_size=4, n_action_steps=4, dim_model=32, n_heads=2,
        dim_feedforward=32, n_encoder_layers=1, latent_dim=4, pretrained_backbone_weights=None, device="cpu",
    )  # fmt: skip
    policy = ACTPolicy(config)
    prepare, _ = make_pre_post_processors(config, dataset_stats=dataset.meta.stats)
    optimizer = torch.optim.Adam(policy.parameters(), 1e-3)
    batch = prepare(next(iter(torch.utils.data.DataLoader(dataset, batch_size=4, shuffle=True))))
    losses = []
    for _ in range(5):
        loss, _ = policy.forward(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert losses[-1] < losses[0]


def test_a_dataset_without_images_or_text_opens_too(folder):
    from rlds_beam.testing import make_episode, write_dataset

    path = write_dataset(folder / "plain", [make_episode(4, seed=i) for i in range(3)], name="toy")
    rlds_beam.convert(path, folder / "toy", to="lerobot", fps=5)
    dataset = opened(folder / "toy")
    assert len(dataset) == 12
    assert dataset[5]["task"] == ""
    assert json.loads((folder / "toy/meta/info.json").read_text())["total_tasks"] == 1
    shutil.rmtree(folder / "toy")


@pytest.mark.parametrize("images", ["copy", "video"])
def test_lerobots_own_converter_takes_our_v21_to_v30(moving, folder, images):
    from lerobot.scripts.convert_dataset_v21_to_v30 import convert_dataset

    out = folder / f"v21_{images}"
    rlds_beam.convert(
        moving[0], out, to="lerobot", fps=data.FPS, images=images, lerobot_version="2.1",
        map="-observation/matrix,-observation/depth",
    )  # fmt: skip
    convert_dataset("some/name", root=out, push_to_hub=False)
    dataset, frame = opened(out), 0
    assert data.meta(out, "info")["codebase_version"] == "v3.0"
    assert len(dataset) == sum(map(len, moving[1]))
    for k, e in enumerate(moving[1]):
        for t in (0, len(e) - 1):
            item = dataset[frame + t]
            assert (item["episode_index"], item["frame_index"]) == (k, t)
            assert item["task"] == e.steps["language_instruction"][t].decode()
            np.testing.assert_array_equal(item["action"], e.steps["action"][t])
            pixels = e.steps["observation/wrist"][[t]].decode()[0]
            found = item["observation.images.wrist"].numpy().transpose(1, 2, 0) * 255
            assert np.abs(found - pixels).mean() < 6
        frame += len(e)


@pytest.mark.parametrize("videos", [False, True], ids=["images", "videos"])
def test_files_that_lerobot_begins_at_its_size_limits_are_read(moving, folder, videos):
    """LeRobot's own dataset with a limit far below an episode: several data and video files."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    kind = "video" if videos else "image"
    features = {
        "observation.images.top": {"dtype": kind, "shape": (64, 64, 3), "names": ["height", "width", "channels"]},
        "observation.state": {"dtype": "float32", "shape": (4,), "names": None},
        "action": {"dtype": "float32", "shape": (2,), "names": None},
    }
    root = folder / f"small_{kind}"
    made = LeRobotDataset.create("some/small", data.FPS, features, root=root, use_videos=videos)
    made.meta.update_chunk_settings(chunks_size=2, data_files_size_in_mb=0.001, video_files_size_in_mb=0.001)
    for k, e in enumerate(moving[1]):
        pixels = e.steps["observation/image_0"].decode()
        for t in range(len(e)):
            row = {"observation.state": e.steps["observation/state"][t], "action": e.steps["action"][t]}
            made.add_frame({**row, "observation.images.top": pixels[t], "task": f"task {k}"})
        made.save_episode()
    made.finalize()
    assert len(list(root.glob("data/*/*.parquet"))) > 1 and len(list(root.glob("data/*"))) > 1
    assert not videos or len(list(root.glob("videos/*/*/*.mp4"))) > 1
    found = data.read_episodes(str(root), "lerobot")
    for k, (one, e) in enumerate(zip(found, moving[1], strict=True)):
        np.testing.assert_array_equal(one.steps["observation/state"], e.steps["observation/state"])
        assert set(one.steps["language_instruction"]) == {f"task {k}".encode()}
        pixels = [s.decode().astype(int) for s in (one.steps["observation/images/top"], e.steps["observation/image_0"])]
        assert np.abs(pixels[0] - pixels[1]).mean() < (6 if videos else 0.01)


@pytest.mark.parametrize("made", ["copy", "video"])
def test_lerobot_packs_our_files_up_to_its_size_limits(moving, made, folder):
    """Its aggregation of our datasets, into few files and into many, has the same frames."""
    from lerobot.datasets.aggregate import aggregate_datasets

    ours = folder / f"packed_{made}"  # without a matrix, which these tools cannot write
    left_out = "-observation/matrix,-observation/depth"
    rlds_beam.convert(moving[0], ours, to="lerobot", fps=data.FPS, shards=2, images=made, map=left_out)
    for limit, name in ((1e-4, "many"), (100, "few")):
        root = folder / f"aggregated_{made}_{name}"
        aggregate_datasets(
            ["some/one", "some/two"], "some/both", roots=[ours, ours], aggr_root=root, chunk_size=2,
            data_files_size_in_mb=limit, video_files_size_in_mb=limit,
        )  # fmt: skip
        assert (len(list(root.glob("data/*/*.parquet"))) > 1) == (name == "many")
        both, one = opened(root), opened(ours)
        assert len(both) == 2 * len(one)
        for frame in range(0, len(both), 7):
            found, wanted = both[frame], one[frame % len(one)]
            np.testing.assert_array_equal(found["action"], wanted["action"])
            assert found["task"] == wanted["task"]
            for camera in one.meta.camera_keys:
                assert np.abs(found[camera].numpy() - wanted[camera].numpy()).mean() < 0.02
        episodes = data.read_episodes(str(root), "lerobot")
        assert sum(map(len, episodes)) == len(both)


def test_a_data_file_above_the_limit_and_ragged_columns_open(folder):
    """One range, 110 MB: LeRobot begins another file at 100 MB, and reads larger ones. Its episodes have lists."""
    from rlds_beam.testing import make_episode, write_dataset

    episodes = [make_episode(1500, seed=i, observation={"state": 2300}) for i in range(8)]
    episodes = [e.replace(metadata={"marks": np.arange(i)}) for i, e in enumerate(episodes)]
    schema = schema_of(episodes[0])
    schema = Schema(schema.steps, {"marks": Field("marks", "int64", (None,))})
    path = write_dataset(folder / "large", episodes, name="large", schema=schema)
    data.convert_here(path, folder / "large_out", fps=10, shards=1)
    (file,) = (folder / "large_out").glob("data/*/*.parquet")
    assert file.stat().st_size > 100e6
    dataset = opened(folder / "large_out")
    assert len(dataset) == 12_000
    for frame in (0, 1499, 1500, 11_999):
        step = episodes[frame // 1500].steps["observation/state"][frame % 1500]
        np.testing.assert_array_equal(dataset[frame]["observation.state"], step)
    assert [list(dataset.meta.episodes[k]["marks"]) for k in range(8)] == [list(range(k)) for k in range(8)]
