"""Behavior policies: their propensities equal plain formulas and match the frequencies of samples."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
from directories import bytes_of
from recorded import GREEDY, Q, get_episodes, recorded, save_q_policy
from recorded_environments import q_function, towards_zero, walk

from rlds_beam import NotVerifiedError, UsageError
from rlds_beam.recording.bases import replay
from rlds_beam.recording.environments import as_environment
from rlds_beam.recording.heads import EpsilonGreedyHead, GaussianHead, OnlineHead, SoftmaxHead, TruncatedGaussianHead
from rlds_beam.recording.policies import (
    EpsilonGreedy,
    Gaussian,
    Random,
    SoftmaxDistribution,
    TruncatedGaussian,
    UniformOver,
)
from rlds_beam.recording.policy_loader import load_policies
from rlds_beam.recording.spaces import SpaceLeaf

N = 60_000
EMPTY = np.empty((N, 0))


def test_the_formulas_equal_those_of_scope_rl():
    """The expected figures come from SCOPE-RL itself."""
    x = np.zeros((3, 2))

    def of(head: Any, actions: Any) -> list[float]:
        return head.calc_pscore_given_action(x, np.array(actions)).tolist()

    greedy = EpsilonGreedyHead(lambda x: np.ones(len(x), int), "eg", n_actions=3, epsilon=0.3)
    np.testing.assert_allclose(of(greedy, [1, 0, 1]), [0.8, 0.1, 0.8])
    np.testing.assert_allclose(greedy.calc_action_choice_probability(x)[0], [0.1, 0.8, 0.1])
    softmax = SoftmaxHead(lambda x: np.tile([0.0, 1.0, 2.0], (len(x), 1)), "sm", n_actions=3, tau=1.0)
    np.testing.assert_allclose(of(softmax, [0, 1, 2]), [0.0900, 0.2447, 0.6652], atol=5e-5)
    gaussian = GaussianHead(lambda x: np.zeros((len(x), 2)), "g", sigma=np.array([0.5, 2.0]))
    expected = math.exp(-(0.3**2) / (2 * 0.25) - 1 / 8) / (2 * math.pi * 0.5 * 2)
    np.testing.assert_allclose(of(gaussian, [[0.3, 1.0]] * 3), expected)
    truncated = TruncatedGaussianHead(
        lambda x: np.full((len(x), 2), 0.9),
        "t",
        sigma=np.array([0.5, 2.0]),
        minimum=np.array([-1, -1]),
        maximum=np.array([1, 1]),
    )
    from scipy.stats import truncnorm

    low, high = (np.array([-1, -1]) - 0.9) / [0.5, 2], (np.array([1, 1]) - 0.9) / [0.5, 2]
    expected = truncnorm.pdf([0.3, -0.5], low, high, 0.9, [0.5, 2]).prod()
    np.testing.assert_allclose(of(truncated, [[0.3, -0.5]] * 3), expected)


def test_actions_are_as_frequent_as_their_propensity_says():
    random = np.random.default_rng(1)
    values = np.tile([0.2, 1.0, -0.5], (N, 1))
    for distribution in (EpsilonGreedy(np.full(N, 1), 0.3, 3, 0, None), SoftmaxDistribution(values, 0)):
        (actions,) = distribution.sample(random.random((N, 2)), EMPTY)
        expected = [distribution.propensity((np.full(N, a),)).value[0] for a in range(3)]
        np.testing.assert_allclose(np.bincount(actions, minlength=3) / N, expected, atol=0.01)


@pytest.mark.parametrize(("mean", "sigma"), [(0.2, 0.5), (3.0, 0.4), (-30.0, 1.0)], ids=["inside", "right", "far left"])
def test_densities_match_the_samples(mean, sigma):
    """Also if nearly all mass is outside the bounds; SCOPE-RL's formula is inaccurate there."""
    low, high = np.array([-1.0]), np.array([1.0])
    random = np.random.default_rng(2)
    of = TruncatedGaussian(np.full((N, 1), mean), np.array([sigma]), low, high)
    (actions,) = of.sample(random.random((N, 1)), EMPTY)
    assert (actions >= -1).all() and (actions <= 1).all()
    counted, edges = np.histogram(actions, bins=40, range=(-1, 1))
    grid = np.linspace(-1, 1, 4001)
    density = (
        TruncatedGaussian(np.full((4001, 1), mean), np.array([sigma]), low, high).propensity((grid[:, None],)).value
    )
    assert abs(np.trapezoid(density, grid) - 1 if hasattr(np, "trapezoid") else np.trapz(density, grid) - 1) < 2e-3
    inner = density[:-1].reshape(40, 100).mean(axis=1) * np.diff(edges)
    np.testing.assert_allclose(counted / N, inner, atol=0.01)
    gaussian = Gaussian(np.full((N, 1), mean), np.array([sigma]))
    (free,) = gaussian.sample(EMPTY, random.standard_normal((N, 1)))
    assert abs(free.mean() - mean) < 0.02 and abs(free.std() - sigma) < 0.02


@pytest.mark.parametrize(
    "leaf",
    [
        SpaceLeaf("", "box", "float32", (2,), np.array([-1.0, 0.0]), np.array([1.0, 4.0])),
        SpaceLeaf("", "box", "float64", (3,), np.array([0, -np.inf, -np.inf]), np.array([np.inf, 2, np.inf])),
        SpaceLeaf("", "box", "int32", (2,), np.array([0, -3]), np.array([7, 3])),
        SpaceLeaf("", "discrete", "int64", sizes=5, start=-2),
        SpaceLeaf("", "multi_discrete", "int64", (2, 2), sizes=np.array([[2, 3], [4, 5]])),
    ],
    ids=lambda leaf: f"{leaf.kind}-{leaf.dtype}",
)
def test_random_is_uniform(leaf):
    random = np.random.default_rng(3)
    of = UniformOver(leaf)
    (actions,) = of.sample(random.random((N, leaf.size)), random.standard_normal((N, leaf.size)))
    assert actions.shape == (N, *leaf.shape)
    propensity = of.propensity((actions,))
    np.testing.assert_allclose(np.log(propensity.value), propensity.log)
    if leaf.dtype == "float64":
        assert (actions[:, 0] >= 0).all() and (actions[:, 1] <= 2).all()
        x = actions[0]
        normal = math.exp(-(x[2] ** 2) / 2) / math.sqrt(2 * math.pi)
        assert math.isclose(propensity.value[0], math.exp(-x[0]) * math.exp(x[1] - 2) * normal)
        return
    expected = {"float32": 1 / 2 / 4, "int32": 1 / 8 / 7}.get(leaf.dtype, 1 / 5 if leaf.kind == "discrete" else 1 / 120)
    np.testing.assert_allclose(propensity.value, expected)
    if leaf.kind != "box":
        flat = actions.reshape(N, -1)
        assert flat.min(axis=0).tolist() == ([-2] if leaf.kind == "discrete" else [0, 0, 0, 0])
        assert flat.max(axis=0).tolist() == ([2] if leaf.kind == "discrete" else [1, 2, 3, 4])


def test_policies_by_name():
    truncated = (
        "TruncatedGaussianHead(recorded_environments:towards_zero, sigma=[0.5, 1.0], minimum=[-1, -1], maximum=1)"
    )
    policies = load_policies(("random", f"SoftmaxHead({Q}, tau=0.5, name=soft)", GREEDY, truncated))
    assert [policy.name for policy in policies] == ["random", "soft", "greedy", "TruncatedGaussianHead"]
    assert policies[1].tau == 0.5 and policies[3].sigma.tolist() == [0.5, 1.0]
    assert isinstance(load_policies(("rlds_beam.recording.policies:Random",))[0], Random)


def test_heads_pickle_and_are_called_by_hand():
    x = np.random.default_rng(0).normal(size=(50, 2))
    for head in (
        EpsilonGreedyHead(q_function, "a", n_actions=3, epsilon=0.5, random_state=1),
        SoftmaxHead(q_function, "b", n_actions=3, tau=0.7, random_state=1),
        GaussianHead(towards_zero, "c", sigma=np.full(2, 0.3), random_state=1),
        TruncatedGaussianHead(
            towards_zero, "d", sigma=np.full(2, 0.3), minimum=-np.ones(2), maximum=np.ones(2), random_state=1
        ),
    ):
        again = pickle.loads(pickle.dumps(head))
        np.random.seed(5)
        actions, pscore = head.sample_action_and_output_pscore(x)
        np.random.seed(6)  # SCOPE-RL's Gaussian heads draw from this generator
        others, _ = again.sample_action_and_output_pscore(x)
        np.testing.assert_array_equal(actions, others)
        np.testing.assert_allclose(pscore, head.calc_pscore_given_action(x, actions))
        assert np.ndim(head.sample_action_and_output_pscore_online(x[0])[1]) == 0
        assert head.sample_action_online(x[0]).shape == actions.shape[1:]


def test_a_clipped_action_has_the_propensity_of_the_clipped_one(tmp_path):
    """SCOPE-RL stores the clipped action with the density of the unclipped one."""
    head = "GaussianHead(recorded_environments:towards_zero, sigma=1.0, name=g)"
    recorded(tmp_path / "clipped", head, env="recorded_environments:slide", episodes=10)
    recorded(
        tmp_path / "as_sampled", head, env="recorded_environments:slide", episodes=10, record_unclipped_action=True
    )
    g = GaussianHead(towards_zero, sigma=1.0)
    outside = 0
    for one, other in zip(get_episodes(tmp_path / "clipped"), get_episodes(tmp_path / "as_sampled"), strict=True):
        np.testing.assert_array_equal(one["steps/observation"], other["steps/observation"])
        clipped, sampled = one["steps/action"][:-1], other["steps/action"][:-1]
        np.testing.assert_array_equal(clipped, np.clip(sampled, -1, 1))
        outside += (clipped != sampled).sum()
        for episode, actions in ((one, clipped), (other, sampled)):
            x = episode["steps/observation"][:-1]
            np.testing.assert_allclose(
                episode["steps/propensity"][:-1], g.calc_pscore_given_action(x, actions), rtol=1e-6
            )
            assert episode["steps/propensity"].shape == (len(actions) + 1,)  # one number per step, not per dimension
    assert outside > 20


def test_a_truncated_gaussian_stays_within_its_bounds(tmp_path):
    head = "TruncatedGaussianHead(recorded_environments:towards_zero, sigma=[2.0, 0.1])"
    recorded(tmp_path / "out", head, env="recorded_environments:slide", episodes=10)
    for episode in get_episodes(tmp_path / "out"):
        assert np.abs(episode["steps/action"]).max() <= 1
        assert np.isfinite(episode["steps/log_propensity"]).all()


def test_a_policy_with_hidden_state_is_detected(tmp_path):
    with pytest.raises(NotVerifiedError, match=r"with propensity .*, but .* gives .* must be a function of the"):
        recorded(tmp_path / "out", "EpsilonGreedyHead(recorded_environments:counting)", episodes=3, envs_per_worker=1)
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert not [*(tmp_path / "out").glob("*.tfrecord-*")]


def test_an_online_head_has_no_propensity(tmp_path):
    recorded(tmp_path / "out", f"OnlineHead({Q})", episodes=3)
    episode = get_episodes(tmp_path / "out")[0]
    assert "steps/propensity" not in episode
    environment = as_environment(walk(), "walk")
    head = OnlineHead(q_function)
    head.bind(environment.observation, environment.action)
    with pytest.raises(UsageError, match="are unknown"):
        head.calc_pscore_given_action(np.zeros((1, 2)), np.zeros(1))


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
