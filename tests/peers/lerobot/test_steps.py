"""`open_dataset(unit="steps")` gives the samples of LeRobotDataset: values, windows, and padding, for each frame."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lerobot_data as data
import numpy as np
import pytest
from lerobot_peer import decode_pixels, opened, write_with_lerobot

from rlds_beam import open_dataset

HISTORY, CHUNK = 3, 4
PAST = [step / data.FPS for step in range(1 - HISTORY, 1)]
AHEAD = [step / data.FPS for step in range(CHUNK)]


def assert_same_samples(root: Path, cameras: tuple[str, ...], **options: Any) -> None:
    names = {f"observation.images.{camera}": f"observation/images/{camera}" for camera in cameras}
    steps = open_dataset(root, unit="steps")
    names = {name: path if path in steps.fields else path.replace("images/", "") for name, path in names.items()}
    windows = {"observation.state": PAST, "action": AHEAD, **dict.fromkeys(names, PAST)}
    dataset = opened(root, delta_timestamps=windows, **options)
    assert len(dataset) == len(steps)
    history = dict.fromkeys(("observation/state", *names.values()), HISTORY)
    rows = iter(range(len(dataset)))
    for batch in steps.batches(5, history=history, chunk=CHUNK, columns=[*history, "action"]):
        for i in range(len(batch["action"])):
            item = dataset[next(rows)]
            for name, path in {"observation.state": "observation/state", "action": "action", **names}.items():
                assert item[f"{name}_is_pad"].tolist() == batch[f"{path}_is_pad"][i].tolist()
                if name in names:
                    images = np.stack([np.asarray(one).transpose(1, 2, 0) for one in item[name]]) * 255
                    np.testing.assert_array_equal(images.round().astype(np.uint8), batch[path][i])
                else:
                    np.testing.assert_array_equal(item[name], batch[path][i])
    assert next(rows, None) is None


def test_videos(videos):
    assert_same_samples(videos, ("image_0", "wrist"), video_backend="pyav")


@pytest.mark.parametrize("kind", ["image", "video"])
def test_datasets_written_by_lerobot(moving, folder, kind):
    root = folder / f"steps_{kind}"
    write_with_lerobot(root, moving[1][:3], kind)
    assert_same_samples(root, ("top",), video_backend="pyav")


def test_images_are_jpegs_that_another_decoder_reads(source, output):
    steps, dataset = open_dataset(output, unit="steps"), opened(output)
    for row in range(0, len(steps), 7):
        image = decode_pixels(dataset[row], "observation.images.image_0")
        assert np.abs(image - steps[row]["observation/image_0"]).mean() < 8
