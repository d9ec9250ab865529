"""Env-to-module and module-to-env pipelines: model inputs for running episodes, and use of the outputs."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds_beam.connectors import (
    AddIdsToBatch,
    AddObservationsFromEpisodesToBatch,
    AddStatesFromEpisodesToBatch,
    Batch,
    ConnectorPipeline,
    FlattenObservations,
    FrameStacking,
    GetActions,
    HistoryWindow,
    NormalizeAndClipActions,
    PrevActionsPrevRewards,
    connect,
    env_to_module_pipeline,
    learner_pipeline,
    module_to_env_pipeline,
)
from rlds_beam.connectors.learner.actions import (
    Categorical,
    DiagonalGaussian,
    log_softmax,
)
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.errors import UsageError


def recorded(length: int, position: int = 0, **metadata: str) -> Episode:
    """A finished episode of `length` steps."""
    rng = np.random.default_rng(position)
    steps = {
        "observation": rng.normal(size=(length, 2)).astype(np.float32),
        "action": rng.integers(0, 3, length),
        "reward": rng.normal(size=length).astype(np.float32),
        "state_out/h": rng.normal(size=(length, 4)).astype(np.float32),
        "is_first": np.arange(length) == 0,
        "is_last": np.arange(length) == length - 1,
        "is_terminal": np.zeros(length, bool),
    }
    return Episode(EpisodeKey("d/1.0.0", "train", 0, position), steps, metadata)


def at(episode: Episode, t: int) -> Episode:
    """The running episode at step t: the action, reward, and outputs of its last step are not known yet."""
    steps = {path: np.array(column[: t + 1]) for path, column in episode.steps.items()}
    for path in ("action", "reward", "state_out/h"):
        steps[path][t] = 0
    return episode.replace(steps=steps)


@settings(deadline=None, max_examples=25)
@given(lengths=st.lists(st.integers(2, 9), min_size=1, max_size=3))
def test_model_inputs_of_running_episodes_equal_the_learners_rows(lengths):
    """The rows of the learner's columns equal those of the running episode, one by one."""
    episodes = [recorded(length, i) for i, length in enumerate(lengths)]
    for pieces in (
        [AddObservationsFromEpisodesToBatch(), AddIdsToBatch(), AddStatesFromEpisodesToBatch({"h": [1.0, 2, 3, 4]})],
        [PrevActionsPrevRewards(2, 2, num_actions=3)],
        [FrameStacking(3)],
        [HistoryWindow(3)],
        [FlattenObservations()],
    ):
        afterwards = connect(pieces, episodes).columns
        for t in range(max(lengths) - 1):
            running = [i for i, episode in enumerate(episodes) if t < len(episode) - 1]
            batch = ConnectorPipeline(pieces)(Batch(tuple(at(episodes[i], t) for i in running), running=True))
            for i, columns in zip(running, batch.columns, strict=True):
                assert columns.keys() == afterwards[i].keys()
                for name, column in columns.items():
                    np.testing.assert_array_equal(column, afterwards[i][name][t : t + 1])
                    assert column.dtype == afterwards[i][name].dtype


def test_a_recurrent_model_gets_a_time_axis_and_its_latest_state():
    episodes = (at(recorded(5, 0), 0), at(recorded(5, 1), 3))
    given_ = env_to_module_pipeline(recurrent=True, initial_state={"h": [9.0] * 4})(Batch(episodes, running=True))
    columns = given_.modules["default_policy"]
    assert columns["obs"].shape == (2, 1, 2)
    np.testing.assert_array_equal(columns["state_in/h"], [[9.0] * 4, recorded(5, 1).steps["state_out/h"][2]])
    assert columns.keys() == {"obs", "state_in/h"}  # nothing is padded, so nothing is masked
    outputs = {"actions": np.array([[[0.5]], [[-1.0]]]), "state_out/h": np.zeros((2, 4))}
    done = module_to_env_pipeline(for_env=NormalizeAndClipActions(0, 10))(
        given_.replace(modules={"default_policy": outputs})
    )
    np.testing.assert_array_equal(done.vector["actions"], [[0.5], [-1.0]])
    np.testing.assert_array_equal(done.vector["actions_for_env"], [[7.5], [0.0]])
    assert done.vector["state_out"]["h"].shape == (2, 4)


def test_one_module_is_recurrent_and_another_is_not():
    running = (at(recorded(4, 0, module_id="p0"), 2), at(recorded(4, 1, module_id="p1"), 2))
    batch = env_to_module_pipeline(recurrent=["p1"])(Batch(running, running=True))
    assert batch.modules["p0"].keys() == {"obs"}
    assert (batch.modules["p0"]["obs"].shape, batch.modules["p1"]["obs"].shape) == ((1, 2), (1, 1, 2))
    outputs = {"p0": {"actions": np.array([4])}, "p1": {"actions": np.array([[5]])}}
    assert module_to_env_pipeline()(batch.replace(modules=outputs)).vector["actions"].tolist() == [4, 5]


def test_rollout_with_a_policy_that_follows_its_observation():
    """Both pipelines around a model for two environments, and the learner's batch from the resulting episodes."""
    to_module, to_env = env_to_module_pipeline(), module_to_env_pipeline(GetActions("categorical", explore=False))
    goals = np.array([2, 0])
    episodes = [at(recorded(6, i), 0) for i in range(2)]
    for t in range(3):
        batch = to_module(Batch(tuple(episodes), running=True))
        logits = np.eye(3, dtype=np.float32)[goals] + 0 * batch.modules["default_policy"]["obs"][:, :1]
        vector = to_env(batch.replace(modules={"default_policy": {"action_dist_inputs": logits}})).vector
        np.testing.assert_array_equal(vector["actions"], goals)
        assert "action_logp" not in vector
        for i, action in enumerate(vector["actions"]):
            grown = {path: np.array(column[: t + 2]) for path, column in recorded(6, i).steps.items()}
            grown["action"][:t] = episodes[i].steps["action"][:t]
            grown["action"][t], grown["action"][t + 1] = action, 0
            episodes[i] = episodes[i].replace(steps=grown)
    actions = connect([learner_pipeline()], episodes).modules["default_policy"]["actions"]
    np.testing.assert_array_equal(actions, [2, 2, 2, 0, 0, 0])


def test_several_agents_of_several_environments():
    of = {"left": "p1", "right": "p0"}
    names = [("left", 0), ("right", 0), ("right", 1), ("left", 1)]
    running = tuple(at(recorded(4, i, agent_id=agent), 1) for agent, i in names)
    batch = env_to_module_pipeline(modules=of)(Batch(running, running=True))
    assert list(batch.modules) == ["p0", "p1"]
    outputs = {"p0": {"actions": np.array([10, 11])}, "p1": {"actions": np.array([20, 21])}}
    done = module_to_env_pipeline(several_agents=True)(batch.replace(modules=outputs))
    assert done.vector == {"actions": [{"left": 20, "right": 10}, {"right": 11, "left": 21}]}
    assert all("module_id" not in episode.metadata for episode in done.episodes)


def actions(of: GetActions, inputs, *, count: int = 1, t: int = 1, first: int = 0):
    running = tuple(at(recorded(t + 2, first + i), t) for i in range(count))
    batch = Batch(running, running=True, modules={"default_policy": {"action_dist_inputs": np.asarray(inputs)}})
    return pickle.loads(pickle.dumps(of))(batch).modules["default_policy"]


def test_sampled_actions_follow_the_models_distribution():
    count, probabilities = 4000, np.array([0.2, 0.5, 0.3])
    logits = np.tile(np.log(probabilities).astype(np.float32) + 3, (count, 1))
    made = actions(GetActions(seed=1), logits, count=count)
    assert made["actions"].dtype == np.int64
    np.testing.assert_allclose(np.bincount(made["actions"]) / count, probabilities, atol=0.04)
    np.testing.assert_allclose(np.exp(made["action_logp"]), probabilities[made["actions"]], rtol=1e-5)
    gaussian = np.tile(np.array([1.0, -2.0, np.log(0.5), np.log(2.0)], np.float32), (count, 1))
    made = actions(GetActions("diagonal_gaussian", seed=1), gaussian, count=count)
    assert made["actions"].dtype == made["action_logp"].dtype == np.float32
    np.testing.assert_allclose(made["actions"].mean(axis=0), [1, -2], atol=0.15)
    np.testing.assert_allclose(made["actions"].std(axis=0), [0.5, 2], rtol=0.06)
    several = np.concatenate([logits, logits[:, :2]], axis=1)
    made = actions(GetActions("multi_categorical", sizes=[3, 2]), several, count=count)
    np.testing.assert_allclose(np.bincount(made["actions"][:, 1]) / count, [2 / 7, 5 / 7], atol=0.04)


def test_an_episode_does_not_depend_on_other_running_episodes():
    logits = np.zeros((6, 50), np.float32)
    together = actions(GetActions(seed=3), logits, count=6)["actions"]
    for i in range(6):
        alone = actions(GetActions(seed=3), logits[:1], first=i)["actions"]
        np.testing.assert_array_equal(alone, together[i : i + 1])
    assert len(set(together.tolist())) > 1
    assert (actions(GetActions(seed=4), logits, count=6)["actions"] != together).any()
    assert (actions(GetActions(seed=3), logits, count=6, t=2)["actions"] != together).any()


def test_densities_against_plain_formulas():
    rng = np.random.default_rng(0)
    inputs, noise = rng.normal(size=(5, 6)), rng.normal(size=(5, 3))
    made, logp = DiagonalGaussian().sample(inputs, noise)
    for n in range(5):
        expected = 0.0
        for a in range(3):
            mean, std = inputs[n, a], math.exp(inputs[n, 3 + a])
            expected -= (made[n, a] - mean) ** 2 / (2 * std**2) + math.log(std * math.sqrt(2 * math.pi))
        assert math.isclose(logp[n], expected, rel_tol=1e-9)
    squashed, squashed_logp = DiagonalGaussian(squashed=True).sample(inputs, noise)
    np.testing.assert_allclose(squashed, np.tanh(made))
    np.testing.assert_allclose(squashed_logp, logp - np.log(1 - np.tanh(made) ** 2).sum(axis=1), rtol=1e-6)
    grid = np.linspace(-0.9999, 0.9999, 200_001)  # the density of tanh(x) integrates to 1
    _, density = DiagonalGaussian(squashed=True).sample(
        np.tile([0.3, 0.1], (len(grid), 1)), ((np.arctanh(grid) - 0.3) / np.exp(0.1))[:, None]
    )
    assert abs((np.exp(density[:-1]) * np.diff(grid)).sum() - 1) < 1e-3
    np.testing.assert_allclose(np.exp(log_softmax(rng.normal(size=(4, 3)) * 100)).sum(axis=1), 1)


def test_the_most_likely_action():
    for name, inputs, expected in (
        ("categorical", [[0, 2, 1]], [1]),
        ("diagonal_gaussian", [[0.5, 3.0]], [[0.5]]),
        ("squashed_gaussian", [[0.5, 3.0]], [[math.tanh(0.5)]]),
    ):
        made = actions(GetActions(name, explore=False), np.array(inputs, np.float32))
        np.testing.assert_allclose(made["actions"], expected, rtol=1e-6)
        assert "action_logp" not in made
    assert Categorical([2, 3]).mode(np.array([[1.0, 2, 9, 8, 7]])).tolist() == [[1, 0]]


def test_actions_for_env_match_the_picture():
    column = np.array([-1.0, 0, 1, 2], np.float32)[:, None]
    of = Batch((at(recorded(3), 1),), ({"actions": column[:1], "actions/b": column[:1]},), running=True)
    for piece, expected in (
        (NormalizeAndClipActions(0, 10), [0, 5, 10, 10]),
        (NormalizeAndClipActions([0], [10], normalize_actions=False, clip_actions=True), [0, 0, 1, 2]),
        (NormalizeAndClipActions(-math.inf, 10), [-1, 0, 1, 2]),
    ):
        made = [piece(of.replace(columns=({"actions": column[i : i + 1]},))).columns[0] for i in range(4)]
        np.testing.assert_array_equal([c["actions_for_env"][0, 0] for c in made], expected)
        assert made[0]["actions_for_env"].dtype == np.float32
        np.testing.assert_array_equal([c["actions"][0, 0] for c in made], column[:, 0])
    nested = of.replace(columns=({"actions/arm": column[:1], "actions/hand": np.array([1])},))
    bounds = {"arm": [-2.0], "hand": 0}, {"arm": [2.0], "hand": 3}
    made = NormalizeAndClipActions(*bounds)(nested).columns[0]
    assert (made["actions_for_env/arm"].item(), made["actions_for_env/hand"].item()) == (
        -2.0,
        1,
    )  # integers are not scaled
    with pytest.raises(UsageError, match="no bound for actions/hand, only for arm"):
        NormalizeAndClipActions({"arm": 0}, {"arm": 1})(nested)
    assert "actions_for_env" not in NormalizeAndClipActions(normalize_actions=False)(of).columns[0]
