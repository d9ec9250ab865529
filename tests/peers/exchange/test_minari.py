"""Minari opens and iterates what `convert --to=minari` wrote; `--from=minari` reads what Minari wrote."""

from __future__ import annotations

import io

import gymnasium as gym
import minari
import numpy as np
import pytest
from exchanging import export, plain, read_back, rich_dataset
from minari.data_collector import EpisodeBuffer
from PIL import Image

from rlds_beam.images.encoded_images import EncodedImages


@pytest.fixture(scope="module")
def rich(tmp_path_factory):
    return rich_dataset(tmp_path_factory.mktemp("rich"))


@pytest.mark.parametrize("images", ["raw", "jpeg"])
def test_it_iterates(rich, tmp_path, images):
    export(rich[0], tmp_path / "out", "minari", shards=2, images=images)
    dataset = minari.MinariDataset(tmp_path / "out" / "data")
    assert (dataset.total_episodes, dataset.total_steps) == (7, sum(len(e) - 1 for e in rich[1]))
    assert dataset.action_space == gym.spaces.Discrete(4)
    assert dataset.observation_space["state"].shape == (3,)
    for i, (theirs, ours) in enumerate(zip(dataset.iterate_episodes(), rich[1], strict=True)):
        end, terminal = len(ours) - 1, bool(ours.steps["is_terminal"][-1])
        assert (theirs.id, len(theirs)) == (i, end)
        assert np.array_equal(theirs.observations["state"], ours.steps["observation/state"])
        assert theirs.observations["mission"] == [text.decode() for text in ours.steps["observation/mission"]]
        assert theirs.observations["image"].shape == (end + 1, 40, 40, 3)
        column = ours.steps["observation/image"]
        same = column.decode() if images == "raw" else [np.array(Image.open(io.BytesIO(data))) for data in column]
        assert np.array_equal(theirs.observations["image"], same)  # Minari decodes our JPEGs
        assert np.array_equal(theirs.actions, ours.steps["action"][:-1])
        assert np.array_equal(theirs.rewards, ours.steps["reward"][:-1])
        assert theirs.terminations.tolist() == [False] * (end - 1) + [terminal]
        assert theirs.truncations.tolist() == [False] * (end - 1) + [not terminal]
        assert np.array_equal(theirs.infos["propensity"], ours.steps["propensity"])
    assert [m["total_steps"] for m in dataset.storage.get_episode_metadata([2])] == [len(rich[1][2]) - 1]
    assert len(dataset.filter_episodes(lambda episode: episode.rewards.sum() > 0)) <= 7


def test_it_loads_by_name(rich, tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    export(rich[0], tmp_path / "rich-v0", "minari")
    assert minari.load_dataset("rich-v0").total_episodes == 7
    assert minari.load_dataset("rich-v0").spec.dataset_id == "rich-v0"


@pytest.mark.parametrize("data_format", ["hdf5", "arrow", "parquet"])
@pytest.mark.parametrize("jpeg", [False, True])
def test_its_own_dataset_is_read(tmp_path, monkeypatch, jpeg, data_format):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    rng = np.random.default_rng(0)
    space = gym.spaces.Dict(
        {
            "state": gym.spaces.Box(-1, 1, (2,), np.float64),
            "image": gym.spaces.Box(0, 255, (32, 36, 3), np.uint8),
            "pair": gym.spaces.Tuple((gym.spaces.Discrete(3), gym.spaces.Text(9))),
        }
    )
    buffers = []
    for steps, terminal in ((5, True), (3, False)):
        observations = {
            "state": rng.random((steps + 1, 2)),
            "image": np.full((steps + 1, 32, 36, 3), 90, np.uint8),
            "pair": (rng.integers(0, 3, steps + 1), ["a"] * (steps + 1)),
        }
        end = np.arange(steps) == steps - 1
        buffers.append(
            EpisodeBuffer(
                observations=observations,
                actions=rng.random((steps, 2)),
                rewards=list(rng.random(steps)),
                terminations=list(end & terminal),
                truncations=list(end & (not terminal)),
                infos={"speed": rng.random(steps + 1)},
            )
        )
    minari.create_dataset_from_buffers(
        "theirs-v0",
        buffers,
        observation_space=space,
        action_space=gym.spaces.Box(0, 1, (2,), np.float64),
        data_format=data_format,
        jpeg_encoding=jpeg,
    )
    episodes = read_back(tmp_path / "theirs-v0", "minari")
    assert [len(e) for e in episodes] == [6, 4]
    for ours, theirs in zip(episodes, buffers, strict=True):
        assert ours.faults == ()
        assert np.array_equal(ours.steps["observation/state"], theirs.observations["state"])
        assert np.array_equal(ours.steps["observation/pair/0"], theirs.observations["pair"][0])
        assert plain(ours.steps["observation/pair/1"]) == [b"a"] * len(ours)
        assert isinstance(ours.steps["observation/image"], EncodedImages) == jpeg
        assert np.array_equal(ours.steps["action"][:-1], theirs.actions)
        assert ours.steps["reward"][:-1].tolist() == list(theirs.rewards)
        assert np.array_equal(ours.steps["info/speed"], theirs.infos["speed"])
        assert ours.steps["is_terminal"][-1] == theirs.terminations[-1]
    assert [bool(e.steps["is_last"][-1]) for e in episodes] == [True, True]
    report = export(tmp_path / "theirs-v0", tmp_path / "rlds", "rlds", from_="minari")
    assert (report.items_written, report.rejected) == (2, 0)
