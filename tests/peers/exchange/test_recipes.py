"""d3rlpy and Minari get the transitions that were recorded, by the blocks of docs/how_to/rl_libraries.md."""

from __future__ import annotations

import sys

import minari
import numpy as np
import pytest
from recipes import expected, run_block, write_arrays


@pytest.fixture
def made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "recorded", raising=False)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return write_arrays(tmp_path)


@pytest.mark.parametrize("last_action", ["void", "real"])
def test_d3rlpy(made, last_action):
    dataset = run_block("d3rlpy", last_action, until="d3rlpy.algos")["dataset"]
    assert len(dataset.episodes) == len(made)
    for found, episode in zip(dataset.episodes, made, strict=True):
        observations, actions, rewards, terminal = expected(episode, last_action)
        assert (found.terminated, found.transition_count) == (terminal, len(actions))
        for i, action in enumerate(actions):
            transition = dataset.transition_picker(found, i)
            last = terminal and i == len(actions) - 1
            assert transition.terminal == last
            assert np.array_equal(transition.observation, observations[i])
            assert np.array_equal(transition.action, action) and transition.reward[0] == rewards[i]
            assert last or np.array_equal(transition.next_observation, observations[i + 1])


@pytest.mark.parametrize("last_action", ["void", "real"])
def test_minari(made, last_action):
    run_block("Minari", last_action)
    dataset = minari.load_dataset("point/mass-v0")
    for found, episode in zip(dataset.iterate_episodes(), made, strict=True):
        observations, actions, rewards, terminal = expected(episode, last_action)
        assert np.array_equal(found.observations[: len(observations)], observations)
        assert len(found.observations) == len(actions) + 1
        assert np.array_equal(found.actions, actions) and np.array_equal(found.rewards, rewards)
        end = np.arange(len(actions)) == len(actions) - 1
        assert np.array_equal(found.terminations, end & terminal)
        assert np.array_equal(found.truncations, end & (not terminal))
