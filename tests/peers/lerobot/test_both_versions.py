"""LeRobot opens what `convert --to=lerobot` wrote: the same frames, tasks and numbers as in the source."""

from __future__ import annotations

import lerobot_data as data
import numpy as np
from lerobot_peer import assert_reads_what_lerobot_wrote, decode_pixels, opened, write_with_lerobot


def test_every_frame_is_the_step(source, output):
    dataset, frame = opened(output), 0
    assert len(dataset) == sum(map(len, source[1]))
    assert (dataset.num_episodes, dataset.meta.fps) == (len(source[1]), data.FPS)
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
                image = decode_pixels(item, "observation.images.image_0")
                assert np.abs(image - pixels[t]).mean() < 8  # another JPEG decoder, and random pixels
            frame += 1


def test_the_statistics_and_metadata_are_loaded(source, output):
    meta = opened(output).meta
    states = np.concatenate([e.steps["observation/state"] for e in source[1]])
    np.testing.assert_allclose(meta.stats["observation.state"]["mean"], states.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(meta.stats["observation.state"]["std"], states.std(axis=0), rtol=1e-5)
    assert meta.stats["observation.images.image_0"]["mean"].shape == (3, 1, 1)
    assert [meta.episodes[k]["file_path"] for k in range(len(source[1]))] == [f"/data/{len(e)}" for e in source[1]]
    assert meta.camera_keys


def test_every_frame_of_the_videos_is_found_by_its_time(moving, videos):
    dataset, frame = opened(videos), 0
    assert dataset.meta.video_keys == ["observation.images.image_0", "observation.images.wrist"]
    for e in moving[1]:
        for t in range(len(e)):
            item = dataset[frame]  # LeRobot raises if no frame is within 1e-4 s
            for camera in ("image_0", "wrist"):
                pixels = e.steps[f"observation/{camera}"][[t]].decode()[0]
                decoded = decode_pixels(item, f"observation.images.{camera}")
                assert np.abs(decoded - pixels).mean() < 6, (frame, camera)
                bars = [np.flatnonzero(image[2:6].mean(axis=(0, 2)) > 170).mean() for image in (decoded, pixels)]
                assert abs(bars[0] - bars[1]) < 1  # this frame, not its neighbor
            frame += 1
    windows = opened(videos, delta_timestamps={"observation.images.image_0": [-0.1, 0.0, 0.1]})
    assert windows[0]["observation.images.image_0_is_pad"].tolist() == [True, False, False]


def test_datasets_written_by_lerobot_are_read(moving, folder):
    write_with_lerobot(folder / "own", moving[1][:3])
    assert_reads_what_lerobot_wrote(folder / "own", moving[1][:3])
