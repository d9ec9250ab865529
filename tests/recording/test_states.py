"""Behavior policies with state, which is kept per environment and reset with each episode."""

from __future__ import annotations

import numpy as np
import pytest
from directories import bytes_of
from recorded import WALK, get_episodes, recorded, save_q_policy

from rlds_beam import UsageError
from rlds_beam.jobs.convert import prepare
from rlds_beam.recording.record_options import RecordOptions
from rlds_beam.recording.states import replay

REMEMBERING = "EpsilonGreedyHead(recorded_environments:Remembering, epsilon=0.3, name=remembering)"
MODULE = "ModulePolicy(recorded_environments:RememberingModule, name=module)"


def make_shards(output):
    return {name: content for name, content in bytes_of(output).items() if "tfrecord-" in name}


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    output = tmp_path_factory.mktemp("recorded") / "out"
    recorded(output, REMEMBERING, MODULE)
    return output


def test_the_action_follows_the_state_of_the_episode(both):
    for episode in get_episodes(both):
        actions = episode["steps/action"][:-1]
        count = np.arange(len(actions))
        greedy = np.where(count % 3 == actions, 0.8, 0.1)
        chances = np.exp(count[:, None] * np.array([[0.0, 0.1, 0.2]], np.float32))
        soft = (chances / chances.sum(axis=1, keepdims=True))[count, actions]
        own = greedy if episode["policy"] == b"remembering" else soft
        np.testing.assert_allclose(episode["steps/propensity"][:-1], own, rtol=1e-5)
        np.testing.assert_allclose(episode["steps/mixture_propensity"][:-1], (greedy + soft) / 2, rtol=1e-5)


@pytest.mark.parametrize("together", [1, 5])
def test_it_is_the_same_with_any_number_of_environments_and_files(tmp_path, both, together):
    recorded(tmp_path / "out", REMEMBERING, MODULE, envs_per_worker=together)
    assert make_shards(tmp_path / "out") == make_shards(both)


@pytest.mark.parametrize(
    "options",
    [{"minimum_rollout_length": 2, "maximum_rollout_length": 5}, {"single_interaction": True}],
    ids=["after other steps", "one after the other"],
)
def test_windows_begin_with_the_current_state(tmp_path, options):
    """`Remembering` asserts that its state matches the age of the environment's episode."""
    recorded(tmp_path / "out", REMEMBERING, steps=80, step_per_trajectory=8, **options)
    ages = [int(episode["start_step"]) for episode in get_episodes(tmp_path / "out")]
    assert max(ages) > 0
    for episode in get_episodes(tmp_path / "out"):
        count = np.arange(len(episode["steps/action"]) - 1) + int(episode["start_step"])
        expected = np.where(count % 3 == episode["steps/action"][:-1], 0.8, 0.1)
        np.testing.assert_allclose(episode["steps/propensity"][:-1], expected)


def test_windows_of_several_policies_are_refused(tmp_path):
    given = {"env": WALK, "policy": (REMEMBERING, "random"), "steps": 20, "logger": "own"}
    with pytest.raises(UsageError, match="remembering has a state, which is unknown at the start"):
        prepare(RecordOptions.create(tmp_path / "out", **given))


def test_a_state_keeps_its_shape(tmp_path):
    with pytest.raises(UsageError, match=r"Growing.*: the state must keep .* became .* in a step"):
        recorded(tmp_path / "out", "EpsilonGreedyHead(recorded_environments:Growing)")


def test_a_state_of_the_connectors_is_refused(tmp_path):
    (tmp_path / "states.yaml").write_text(
        "- AddObservationsFromEpisodesToBatch\n- AddTimeDimToBatchAndZeroPad: {max_seq_len: 1}\n"
        "- AddStatesFromEpisodesToBatch: {initial_state: [0.0]}\n- BatchIndividualItems\n"
    )
    policy = f"ModulePolicy(recorded_environments:RememberingModule, env_to_module={tmp_path / 'states.yaml'})"
    with pytest.raises(UsageError, match="the policy carries them itself"):
        recorded(tmp_path / "out", policy, episodes=3)


def test_replay_is_a_loop_over_each_episode():
    """Sums over the rows before each row, within its episode."""
    values, lengths = np.arange(10.0), np.array([3, 1, 4, 2])

    def step(rows, state):
        return state[0] + values[rows], (state[0] + values[rows],)

    found = replay(step, lengths, (np.array([0.0, 10.0, 20.0, 30.0]),))
    expected = [s + np.cumsum(v) for s, v in zip((0, 10, 20, 30), np.split(values, [3, 4, 8]), strict=True)]
    assert found.tolist() == np.concatenate(expected).tolist()


def test_a_recurrent_policy_of_tf_agents(tmp_path):
    """A greedy policy over an LSTM, saved by `PolicySaver`: its actions are the network's over whole episodes."""
    tf = pytest.importorskip("tensorflow")
    pytest.importorskip("tf_agents")
    from tf_agents.networks import q_rnn_network

    tf.random.set_seed(0)
    layers = {"input_fc_layer_params": None, "lstm_size": (3,), "output_fc_layer_params": None}
    network = save_q_policy(tmp_path / "saved", q_rnn_network.QRnnNetwork, **layers)
    recorded(tmp_path / "out", f"EpsilonGreedyHead(policy_saver:{tmp_path / 'saved'}, epsilon=0.6)", episodes=6)
    for episode in get_episodes(tmp_path / "out"):
        x, actions = episode["steps/observation"][:-1], episode["steps/action"][:-1]
        step_type = tf.constant([[0] + [1] * (len(x) - 1)])
        greedy = network(tf.constant(x)[None], step_type)[0].numpy()[0].argmax(axis=1)
        np.testing.assert_allclose(episode["steps/propensity"][:-1], np.where(greedy == actions, 0.6, 0.2))
