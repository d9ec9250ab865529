"""Comparison with SCOPE-RL: its documented example key by key, formulas, estimators on our data, and its bugs."""

from __future__ import annotations

import warnings
from typing import Any

import gym
import numpy as np
import pytest
from d3rlpy.algos import DDPGConfig, DoubleDQNConfig
from scope_rl.dataset import SyntheticDataset as Theirs
from scope_rl.policy import head as theirs

from rlds_beam import open_dataset
from rlds_beam.drop_in.scope_rl import LoggedDataset, SyntheticDataset
from rlds_beam.jobs.convert import prepare
from rlds_beam.recording import heads
from rlds_beam.recording.record_options import RecordOptions

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import rtbgym  # noqa: F401  (registers its environments)

pytestmark = pytest.mark.filterwarnings("ignore")

INFO = {"search_volume": int, "impression": int, "click": int, "conversion": int, "average_bid_price": float}


def bidding(kind: str = "discrete") -> Any:
    # Unpatched, rtbgym refuses its own bids if numpy rounds 10**-1 down.
    bids = {"action_meaning": np.clip(np.logspace(-1, 1, 10), 0.1, 10)} if kind == "discrete" else {}
    return gym.make(f"RTBEnv-{kind}-v0", **bids)


@pytest.fixture(scope="module")
def env() -> Any:
    return bidding()


@pytest.fixture(scope="module")
def ddqn(env) -> Any:
    algorithm = DoubleDQNConfig().create()
    algorithm.build_with_env(env)
    return algorithm


@pytest.fixture(scope="module")
def behavior_policy(ddqn, env) -> Any:
    return theirs.EpsilonGreedyHead(
        ddqn, n_actions=env.action_space.n, epsilon=0.3, name="ddqn_epsilon_0.3", random_state=12345
    )


def both(env: Any, policy: Any, count: int, **arguments: Any) -> tuple[dict[str, Any], LoggedDataset]:
    """Runs the documented example with SCOPE-RL and with ours."""
    given = {
        "env": env,
        "max_episode_steps": env.step_per_episode,
        "state_keys": env.obs_keys,
        "info_keys": INFO,
        **({"action_meaning": env.action_meaning} if hasattr(env, "action_meaning") else {}),
    }
    asked = {"n_trajectories": count, "obtain_info": True, "random_state": 12345, **arguments}
    return Theirs(**given).obtain_episodes(policy, **asked), SyntheticDataset(**given).obtain_episodes(policy, **asked)


@pytest.fixture(scope="module")
def example(env, behavior_policy) -> tuple[dict[str, Any], LoggedDataset]:
    return both(env, behavior_policy, 40)


def test_the_example_of_the_document_key_by_key(example):
    expected, found = example
    assert list(found) == list(expected)
    for key, value in expected.items():
        ours = found[key]
        if key == "info":
            assert {k: (v.dtype, v.shape) for k, v in ours.items()} == {k: (v.dtype, v.shape) for k, v in value.items()}
        elif isinstance(value, np.ndarray):
            assert (ours.dtype, ours.shape) == (value.dtype, value.shape), key
        else:
            assert ours == value, key
    assert (found["size"], found["step_per_trajectory"], found["state_dim"], found["n_actions"]) == (280, 7, 7, 10)
    assert set(np.round(found["pscore"], 12)) == {0.73, 0.03}
    for key in ("done", "terminal", "action_meaning"):
        np.testing.assert_array_equal(found[key], expected[key])
    np.testing.assert_array_equal(found["state"][:, 0], np.tile(np.arange(7), 40))  # timestep
    np.testing.assert_array_equal(found["reward"], found["info"]["conversion"])


def test_the_propensities_are_those_of_their_heads(ddqn, example):
    _, found = example
    x, actions = found["state"], found["action"]
    np.testing.assert_allclose(
        found["pscore"], theirs.EpsilonGreedyHead(ddqn, "a", 10, 0.3, 1).calc_pscore_given_action(x, actions)
    )
    soft = theirs.SoftmaxHead(ddqn, "b", 10, tau=0.5, random_state=1).calc_action_choice_probability(x)
    ours = heads.SoftmaxHead(ddqn, "b", 10, tau=0.5)
    close = {"rtol": 1e-5, "atol": 1e-6}  # theirs are float32
    np.testing.assert_allclose(ours.calc_action_choice_probability(x), soft, **close)
    np.testing.assert_allclose(ours.calc_pscore_given_action(x, actions), soft[np.arange(280), actions], **close)


def test_their_continuous_heads():
    env = bidding("continuous")
    ddpg = DDPGConfig().create()
    ddpg.build_with_env(env)
    random = np.random.default_rng(0)
    x = random.normal(size=(50, 7)).astype(np.float32)
    greedy = ddpg.predict(x)
    action = greedy + random.normal(size=greedy.shape) * 0.1
    sigma, low, high = np.array([0.5]), np.array([-2.0]), np.array([2.0])
    gaussian = theirs.GaussianHead(ddpg, "g", sigma=sigma, random_state=1)
    truncated = theirs.TruncatedGaussianHead(ddpg, "t", sigma=sigma, minimum=low, maximum=high, random_state=1)
    for their, our in (
        (gaussian, heads.GaussianHead(ddpg, "g", sigma)),
        (truncated, heads.TruncatedGaussianHead(ddpg, "t", sigma, low, high)),
    ):
        np.testing.assert_allclose(
            our.calc_pscore_given_action(x, action), their.calc_pscore_given_action(x, action), rtol=1e-5
        )


def test_their_estimators_take_our_data(env, ddqn, behavior_policy):
    """On-policy, the estimate equals the mean return, on our data and on theirs."""
    from scope_rl.ope import CreateOPEInput, OffPolicyEvaluation
    from scope_rl.ope.discrete import PerDecisionImportanceSampling, TrajectoryWiseImportanceSampling

    for logged in both(env, behavior_policy, 30):
        logged = dict(logged)
        inputs = CreateOPEInput(env=env).obtain_whole_inputs(
            logged_dataset=logged, evaluation_policies=[behavior_policy], random_state=1
        )
        ope = OffPolicyEvaluation(
            logged_dataset=logged,
            ope_estimators=[TrajectoryWiseImportanceSampling(), PerDecisionImportanceSampling()],
            disable_reward_after_done=False,
        )
        found = ope.estimate_policy_value(inputs)["ddqn_epsilon_0.3"]
        returns = logged["reward"].reshape(30, -1).sum(axis=1).mean()
        np.testing.assert_allclose([found["tis"], found["pdis"]], returns)


class EndsEarly(gym.Env):
    """An environment that ends after two steps."""

    observation_space = gym.spaces.Box(-100, 100, (1,))
    action_space = gym.spaces.Box(-1, 1, (2,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._age = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self._age += 1
        return np.full(1, self._age, np.float32), 1.0, self._age >= 2, False, {}


@pytest.fixture(scope="module")
def gaussian() -> Any:
    ddpg = DDPGConfig().create()
    ddpg.build_with_env(EndsEarly())
    return theirs.GaussianHead(ddpg, "gaussian", sigma=np.array([2.0, 2.0]), random_state=1)


def test_an_early_end_is_acted_on_here(gaussian):
    given = {"env": EndsEarly(), "max_episode_steps": 4}
    expected = Theirs(**given).obtain_episodes(gaussian, n_trajectories=2, random_state=1)
    assert expected["state"].ravel().tolist() == [0, 1, 2, 3] * 2  # it continues after the end
    assert expected["done"].tolist() == [0, 1, 1, 1] * 2
    found = SyntheticDataset(**given).obtain_episodes(gaussian, n_trajectories=2, random_state=1)
    assert found["state"].ravel().tolist() == [0, 1] * 2
    assert found["done"].tolist() == [0, 1] * 2
    assert found["terminal"].tolist() == [0, 0] * 2  # it did not reach the step limit
    assert found.terminated.tolist() == [False, True] * 2


def test_the_propensity_is_that_of_the_stored_action_here(gaussian):
    given = {"env": EndsEarly(), "max_episode_steps": 2}
    expected, found = (
        kind(**given).obtain_episodes(gaussian, n_trajectories=20) for kind in (Theirs, SyntheticDataset)
    )

    def again(logged: Any) -> Any:
        return gaussian.calc_pscore_given_action(logged["state"].astype(np.float32), logged["action"])

    assert expected["pscore"].shape == (40, 2)  # one number, twice
    assert not np.allclose(again(expected), expected["pscore"][:, 0])
    assert found["pscore"].shape == (40,)
    np.testing.assert_allclose(again(found), found["pscore"], rtol=1e-5)


def test_a_saved_model_of_d3rlpy_by_name(ddqn, env, tmp_path):
    """Each worker loads it; the propensities equal those of the model."""
    ddqn.save(str(tmp_path / "model.d3"))
    policy = f"EpsilonGreedyHead(d3rlpy:{tmp_path / 'model.d3'}, epsilon=0.5)"
    job = prepare(
        RecordOptions.create(
            tmp_path / "out", env=env, policy=(policy,), episodes=3, step_per_trajectory=7, name="bidding"
        )
    )
    job.convert_here()
    for row in open_dataset(tmp_path / "out"):
        x, actions = row["steps/observation"][:-1], row["steps/action"][:-1]
        expected = theirs.EpsilonGreedyHead(ddqn, "a", 10, 0.5, 1).calc_pscore_given_action(
            x.astype(np.float32), actions
        )
        np.testing.assert_allclose(row["steps/propensity"][:-1], expected)
