"""Shared code of the LeRobot comparison tests, for format v3.0 or v2.1, whichever the installed LeRobot uses."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import lerobot_data as data
import numpy as np

from rlds_beam.episodes.episode import Episode

os.environ["HF_HUB_OFFLINE"] = "1"


def _format_version() -> str:
    try:
        installed = metadata.version("lerobot")
    except metadata.PackageNotFoundError:  # tests that import it fail
        return "3.0"
    return "2.1" if tuple(map(int, installed.split(".")[:2])) < (0, 4) else "3.0"


FORMAT_VERSION = _format_version()
OPTIONS: dict[str, Any] = {"to": "lerobot", "fps": data.FPS, "lerobot_version": FORMAT_VERSION}
"""Options of `rlds_beam.convert`."""
WINDOWS = {"observation.state": [-0.2, -0.1, 0.0], "action": [0.0, 0.1, 0.2]}
"""Windows in seconds, as `assert_windows` expects them."""


def opened(root: Path, **options: Any) -> Any:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    return LeRobotDataset("some/name", root=root, **options)


def decode_pixels(item: Any, feature: str) -> Any:
    """Returns an image of an item as floats from 0 to 255, channels last."""
    return item[feature].numpy().transpose(1, 2, 0) * 255


def assert_windows(item: Any, episode: Episode, t: int) -> None:
    """Asserts that the windows of an item stay within its episode and are padded at the ends."""
    for name, path, deltas in (
        ("observation.state", "observation/state", (-2, -1, 0)),
        ("action", "action", (0, 1, 2)),
    ):
        places = [t + d for d in deltas]
        assert item[f"{name}_is_pad"].tolist() == [not 0 <= p < len(episode) for p in places]
        np.testing.assert_array_equal(item[name], episode.steps[path][np.clip(places, 0, len(episode) - 1)])


def write_with_lerobot(root: Path, episodes: Sequence[Episode], kind: str = "image", **chunk_settings: Any) -> None:
    """Writes a dataset with LeRobot itself: one camera ("image" or "video"), the task `task K` in episode K."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    features = {
        "observation.images.top": {"dtype": kind, "shape": (64, 64, 3), "names": ["height", "width", "channels"]},
        "observation.state": {"dtype": "float32", "shape": (4,), "names": None},
        "action": {"dtype": "float32", "shape": (2,), "names": None},
    }
    dataset = LeRobotDataset.create("some/own", data.FPS, features, root=root, use_videos=kind == "video")
    if chunk_settings:
        dataset.meta.update_chunk_settings(**chunk_settings)
    for k, e in enumerate(episodes):
        pixels = e.steps["observation/image_0"].decode()
        for t in range(len(e)):
            row = {
                "observation.state": e.steps["observation/state"][t],
                "action": e.steps["action"][t],
                "observation.images.top": pixels[t],
            }
            if FORMAT_VERSION == "2.1":
                dataset.add_frame(row, task=f"task {k}")
            else:
                dataset.add_frame({**row, "task": f"task {k}"})
        dataset.save_episode()
    if FORMAT_VERSION == "3.0":
        dataset.finalize()


def assert_reads_what_lerobot_wrote(root: Path, episodes: Sequence[Episode], error: float = 0.0) -> None:
    """Asserts that `--from=lerobot` reads the episodes that `write_with_lerobot` wrote.

    Args:
      root: the dataset.
      episodes: the episodes that were written.
      error: the largest accepted mean difference of pixels.
    """
    read = data.read_episodes(str(root), "lerobot")
    for k, (one, e) in enumerate(zip(read, episodes, strict=True)):
        np.testing.assert_array_equal(one.steps["observation/state"], e.steps["observation/state"])
        assert set(one.steps["language_instruction"]) == {f"task {k}".encode()}
        assert one.steps["is_last"].tolist() == [False] * (len(e) - 1) + [True]
        pixels = [s.decode().astype(int) for s in (one.steps["observation/images/top"], e.steps["observation/image_0"])]
        assert np.abs(pixels[0] - pixels[1]).mean() <= error
