"""Models between connector pipelines as behavior policies, and TF-Agents' saved policies."""

from __future__ import annotations

import numpy as np
import pytest
from directories import bytes_of
from recorded import get_episodes, recorded, save_q_policy
from recorded_environments import q_function

from rlds_beam.connectors.learner.actions import (
    Categorical,
    DiagonalGaussian,
)


def test_log_probabilities_of_given_actions_equal_those_of_samples():
    random = np.random.default_rng(0)
    for distribution, width, noise in (
        (Categorical(), 5, 1),
        (Categorical([2, 3]), 5, 2),
        (DiagonalGaussian(), 6, 3),
        (DiagonalGaussian(squashed=True), 6, 3),
    ):
        inputs = random.normal(size=(40, width))
        drawn = random.normal(size=(40, noise)) if distribution.normal else random.random((40, noise))
        actions, logp = distribution.sample(inputs, drawn)
        np.testing.assert_allclose(distribution.log_probability(inputs, actions), logp, rtol=1e-6)
        few = inputs.astype(np.float32)
        actions, logp = distribution.sample(few, drawn)
        dtypes = {column.dtype.name for column in (logp, distribution.log_probability(few, actions))}
        assert dtypes == {"float32"}, distribution  # also with numpy 2


def test_a_model_gives_the_distribution(tmp_path):
    recorded(tmp_path / "out", "ModulePolicy(recorded_environments:of_walk, name=module)", "random")
    for episode in get_episodes(tmp_path / "out")[:20]:
        x, actions = episode["steps/observation"][:-1], episode["steps/action"][:-1]
        values = np.exp(2 * q_function(x).astype(np.float32))
        expected = (values / values.sum(axis=1, keepdims=True))[np.arange(len(x)), actions]
        np.testing.assert_allclose(episode["steps/propensity"][:-1], expected, rtol=1e-5)
        np.testing.assert_allclose(episode["steps/mixture_propensity"][:-1], (expected + 1 / 3) / 2, rtol=1e-5)


def test_user_connectors_see_the_history(tmp_path):
    (tmp_path / "stack.yaml").write_text(
        "- FrameStacking: {num_frames: 3}\n- AddObservationsFromEpisodesToBatch\n- BatchIndividualItems\n"
    )
    policy = f"ModulePolicy(recorded_environments:of_stacked, env_to_module={tmp_path / 'stack.yaml'})"
    recorded(tmp_path / "out", policy, episodes=10)
    for episode in get_episodes(tmp_path / "out"):
        place, actions = episode["steps/observation"][:-1, 0], episode["steps/action"][:-1]
        stacked = np.array([place[max(0, t - 2) : t + 1].sum() for t in range(len(place))])
        values = np.exp(np.stack([stacked, 0 * stacked, -stacked], axis=1))
        expected = (values / values.sum(axis=1, keepdims=True))[np.arange(len(place)), actions]
        np.testing.assert_allclose(episode["steps/propensity"][:-1], expected, rtol=1e-4)
    recorded(tmp_path / "again", policy, episodes=10, envs_per_worker=3)
    ours, others = bytes_of(tmp_path / "out"), bytes_of(tmp_path / "again")
    assert [ours[name] == others[name] for name in ours if "tfrecord-" in name] == [True]


def test_the_environment_gets_actions_within_its_bounds(tmp_path):
    recorded(tmp_path / "out", "ModulePolicy(recorded_environments:of_slide)", env="recorded_environments:slide")
    stored = np.concatenate([episode["steps/action"][:-1] for episode in get_episodes(tmp_path / "out")])
    assert np.abs(stored).max() > 1  # the unclipped output of the module; `Slide` asserts that it gets no such action


def test_a_saved_policy_of_tf_agents(tmp_path):
    """A greedy Q policy, saved by `PolicySaver` and loaded by name; its actions are those of the network."""
    tf = pytest.importorskip("tensorflow")
    pytest.importorskip("tf_agents")
    from tf_agents.networks import q_network

    network = save_q_policy(tmp_path / "saved", q_network.QNetwork, fc_layer_params=(4,))
    recorded(tmp_path / "out", f"EpsilonGreedyHead(policy_saver:{tmp_path / 'saved'}, epsilon=0.6)", episodes=4)
    for episode in get_episodes(tmp_path / "out"):
        x, actions = episode["steps/observation"][:-1], episode["steps/action"][:-1]
        greedy = network(tf.constant(x))[0].numpy().argmax(axis=1)
        np.testing.assert_allclose(episode["steps/propensity"][:-1], np.where(greedy == actions, 0.6, 0.2))
