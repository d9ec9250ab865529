"""What episodes may lack, and steps that a profile adds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from exchanging import export, read_back
from hdf5_robots import isaaclab

from rlds_beam.episodes.episode import Episode
from rlds_beam.formats.hdf5.options import Hdf5Options
from rlds_beam.formats.hdf5.source import Hdf5Source
from rlds_beam.reading.plan import plan_ranges
from rlds_beam.reading.reader import EpisodeReader


def without(path: Path, *attributes: str) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "a") as root:
        for attribute in attributes:
            del root["data/demo_1"].attrs[attribute]


def read_with(directory: Path, text: str) -> list[Episode]:
    """The episodes of files, read with a profile of this text."""
    profile = directory / "profile.yaml"
    profile.write_text(text)
    source = Hdf5Source.open(str(directory), options=Hdf5Options(profile=str(profile)))
    reader = EpisodeReader(source)
    works = plan_ranges(source)
    return [episode for work in works for s in work.segments for episode in reader.read(work.split, s)]


def test_an_episode_may_lack_attributes(tmp_path: Path) -> None:
    isaaclab(tmp_path / "in", [4, 5, 3])
    without(tmp_path / "in/dataset.hdf5", "seed", "success")
    episodes = read_back(tmp_path / "in", "hdf5")
    assert not any(episode.faults for episode in episodes)
    assert [int(episode.metadata["seed"]) for episode in episodes] == [0, 0, 2]
    assert [bool(episode.metadata["success"]) for episode in episodes] == [True, False, True]
    assert not episodes[1].steps["is_terminal"].any()
    report = export(tmp_path / "in", tmp_path / "out", "rlds", from_="hdf5")
    assert (report.items_written, report.rejected) == (3, 0)


def test_text_and_arrays_that_an_episode_lacks(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    for i in range(2):
        with h5py.File(tmp_path / f"{i}.hdf5", "w") as root:
            root["qpos"], root["action"] = np.ones((3, 2)), np.ones((3, 2))
            if i == 0:
                root.attrs["who"], root["pose"], root["words"] = "me", np.ones((2, 2), "f4"), np.array([b"a", b"b"])
    one = "fields: {observation/state: qpos, action: action}\n"
    metadata = 'metadata: {who: "@who", pose: pose, words: words}\n'
    full, bare = read_with(tmp_path, f"name: mine\nepisodes: file\n{one}{metadata}")
    assert (full.metadata["who"], bare.metadata["who"]) == (b"me", b"")
    assert full.metadata["pose"].tolist() == [[1, 1], [1, 1]] and bare.metadata["pose"].tolist() == [[0, 0], [0, 0]]
    assert bare.metadata["words"].tolist() == [b"", b""]


@pytest.mark.parametrize("steps", [1, 4])
def test_an_added_last_step(tmp_path: Path, steps: int) -> None:
    h5py = pytest.importorskip("h5py")
    action, state = np.arange(2.0 * steps).reshape(steps, 2) + 1, np.ones((steps, 3), np.float32)
    image = np.full((steps, 16, 16, 3), 9, np.uint8)
    with h5py.File(tmp_path / "one.hdf5", "w") as root:
        root["action"], root["qpos"], root["image"] = action, state, image
        root["reward"], root["done"] = np.ones(steps), np.arange(steps) == steps - 1
    (episode,) = read_with(
        tmp_path,
        "name: mine\nepisodes: file\nlast_step: added\nreward: reward\nterminal: done\n"
        "fields: {observation/state: qpos, observation/image: image, action: action}\n",
    )
    assert not episode.faults
    assert episode.steps["reward"].tolist() == [1.0] * steps + [0.0]
    assert np.array_equal(episode.steps["action"], np.vstack([action, np.zeros((1, 2))]))
    assert np.array_equal(episode.steps["observation/state"], np.vstack([state, np.zeros((1, 3))]))
    pixels = episode.steps["observation/image"]
    assert len(pixels) == steps + 1
    assert episode.steps["is_last"].tolist() == episode.steps["is_terminal"].tolist() == [False] * steps + [True]
    assert episode.steps["discount"].tolist()[-2:] == [0.0, 0.0]
