"""`The profile minari` reads what Minari wrote."""

from __future__ import annotations

import gymnasium as gym
import minari
import numpy as np
import pytest
from exchanging import export, plain, read_back
from minari.data_collector import EpisodeBuffer

from rlds_beam.images.encoded_images import EncodedImages


@pytest.mark.parametrize("jpeg", [False, True])
def test_its_own_dataset_is_read(tmp_path, monkeypatch, jpeg):
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
        jpeg_encoding=jpeg,
    )
    episodes = read_back(tmp_path / "theirs-v0", "hdf5")
    assert [len(e) for e in episodes] == [6, 4]
    for ours, theirs in zip(episodes, buffers, strict=True):
        assert ours.faults == ()
        assert np.array_equal(ours.steps["observation/state"], theirs.observations["state"])
        assert np.array_equal(ours.steps["observation/pair/0"], theirs.observations["pair"][0])
        assert plain(ours.steps["observation/pair/1"]) == [b"a"] * len(ours)
        images = ours.steps["observation/image"]
        assert isinstance(images, EncodedImages) and images.encoding == ("jpeg" if jpeg else "png")
        assert np.array_equal(ours.steps["action"][:-1], theirs.actions)
        assert ours.steps["reward"][:-1].tolist() == list(theirs.rewards)
        assert np.array_equal(ours.steps["info/speed"], theirs.infos["speed"])
        assert ours.steps["is_terminal"][-1] == theirs.terminations[-1]
    assert [bool(e.steps["is_last"][-1]) for e in episodes] == [True, True]
    report = export(tmp_path / "theirs-v0", tmp_path / "rlds", "rlds", from_="hdf5")
    assert (report.items_written, report.rejected) == (2, 0)
