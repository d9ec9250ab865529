"""d3rlpy reads what `convert --to=d3rlpy` wrote and trains BC and CQL on it; `--from=d3rlpy` reads d3rlpy's files."""

from __future__ import annotations

from pathlib import Path

import d3rlpy
import numpy as np
import pytest
from exchanging import export, read_back

from rlds_beam.testing import make_episode, write_dataset

EPISODES = [make_episode(6 + i, seed=i, terminal=i % 2 == 0) for i in range(12)]


@pytest.fixture(scope="module")
def continuous(tmp_path_factory):
    directory = tmp_path_factory.mktemp("continuous")
    export(write_dataset(directory / "data", EPISODES, shards=2), directory / "out", "d3rlpy", shards=2)
    return load(directory / "out" / "testing-train.h5")


def load(path: Path) -> d3rlpy.dataset.ReplayBuffer:
    with path.open("rb") as file:
        return d3rlpy.dataset.ReplayBuffer.load(file, d3rlpy.dataset.InfiniteBuffer())


def test_the_episodes_are_ours(continuous):
    assert continuous.transition_count == sum(len(e) - 1 for e in EPISODES)
    for theirs, ours in zip(continuous.episodes, EPISODES, strict=True):
        terminal = bool(ours.steps["is_terminal"][-1])
        rows = len(ours) - terminal
        assert (theirs.terminated, theirs.size(), theirs.transition_count) == (terminal, rows, len(ours) - 1)
        for name, path in (("observations", "observation"), ("actions", "action")):
            assert np.array_equal(getattr(theirs, name), ours.steps[path][:rows])
        assert np.array_equal(theirs.rewards[:, 0], ours.steps["reward"][:rows])


@pytest.mark.parametrize("algorithm", ["BC", "CQL"])
def test_it_learns_continuous_actions(continuous, algorithm):
    learner = getattr(d3rlpy.algos, f"{algorithm}Config")(batch_size=8).create(device="cpu:0")
    learner.build_with_dataset(continuous)
    batch = continuous.sample_transition_batch(8)
    assert batch.observations.shape == (8, 3) and batch.actions.shape == (8, 2)
    losses = learner.update(batch)
    assert losses and all(np.isfinite(loss) for loss in losses.values())


@pytest.mark.parametrize("algorithm", ["DiscreteBC", "DiscreteCQL"])
def test_it_learns_discrete_actions_from_images(tmp_path, algorithm):
    rng = np.random.default_rng(0)
    episodes = [
        make_episode(
            6,
            seed=i,
            columns={
                "observation": rng.integers(0, 255, (6, 84, 84, 1), np.uint8),
                "action": rng.integers(0, 3, 6, np.int64),
            },
        )
        for i in range(4)
    ]
    export(write_dataset(tmp_path / "data", episodes), tmp_path / "out", "d3rlpy")
    buffer = load(tmp_path / "out" / "testing-train.h5")
    assert buffer.episodes[0].observations.shape == (5, 1, 84, 84)  # channels first, as its encoders expect
    learner = getattr(d3rlpy.algos, f"{algorithm}Config")(batch_size=4).create(device="cpu:0")
    learner.build_with_dataset(buffer)
    losses = learner.update(buffer.sample_transition_batch(4))
    assert losses and all(np.isfinite(loss) for loss in losses.values())


def test_its_own_file_is_read(tmp_path):
    """Writing and loading it again gives the same buffer."""
    rng = np.random.default_rng(0)
    ends = np.zeros(20, bool)
    ends[[6, 13]] = True
    timeouts = np.zeros(20, bool)
    timeouts[19] = True
    observations = (rng.random((20, 4), np.float32), rng.random((20, 2), np.float32))
    actions, rewards = rng.random((20, 2), np.float32), rng.random(20, np.float32)
    dataset = d3rlpy.dataset.MDPDataset(
        observations, actions, rewards, ends.astype(np.float32), timeouts.astype(np.float32)
    )
    with (tmp_path / "theirs.h5").open("w+b") as file:
        dataset.dump(file)
    episodes = read_back(tmp_path / "theirs.h5", "d3rlpy")
    assert [len(e) - 1 for e in episodes] == [e.transition_count for e in dataset.episodes] == [7, 7, 5]
    data = write_dataset(tmp_path / "rlds", episodes)
    export(data, tmp_path / "out", "d3rlpy")
    again = load(tmp_path / "out" / "testing-train.h5")
    for one, other in zip(dataset.episodes, again.episodes, strict=True):
        assert one.terminated == other.terminated
        for a, b in zip(
            [*one.observations, one.actions, one.rewards],
            [*other.observations, other.actions, other.rewards],
            strict=True,
        ):
            assert np.array_equal(a, b)
