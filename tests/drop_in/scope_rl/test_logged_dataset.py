"""SyntheticDataset and LoggedDataset: SCOPE-RL's format, and correct where SCOPE-RL is not."""

from __future__ import annotations

import gc
import itertools
from pathlib import Path

import numpy as np
import pytest
from recorded_environments import LENGTH, Walk, q_function, slide, towards_zero, walk

from rlds_beam import UsageError
from rlds_beam.drop_in.scope_rl.logged_dataset import KEYS, LoggedDataset, MultipleLoggedDataset
from rlds_beam.drop_in.scope_rl.synthetic_dataset import SyntheticDataset
from rlds_beam.recording import mask_padding
from rlds_beam.recording.heads import EpsilonGreedyHead, GaussianHead, OnlineHead

INFO = {"age": int, "place": float, "side": str}


def greedy(name: str = "greedy", epsilon: float = 0.3) -> EpsilonGreedyHead:
    return EpsilonGreedyHead(q_function, n_actions=3, epsilon=epsilon, name=name, random_state=12345)


@pytest.fixture(scope="module")
def dataset() -> SyntheticDataset:
    return SyntheticDataset(
        walk(), action_meaning=np.array([-1.0, 0.0, 1.0]), state_keys=["place", "age"], info_keys=INFO
    )


@pytest.fixture(scope="module")
def logged(dataset) -> LoggedDataset:
    return dataset.obtain_episodes(greedy(epsilon=0.9), n_trajectories=30, obtain_info=True, random_state=12345)


def test_it_has_the_documented_keys(logged):
    assert tuple(logged) == KEYS
    size = logged["size"]
    described = {key: logged[key] for key in KEYS if key not in ("state_keys", "info", "action_meaning")}
    arrays = {k: (v.dtype.name, v.shape) for k, v in described.items() if isinstance(v, np.ndarray)}
    assert arrays == {
        "state": ("float64", (size, 2)),
        "action": ("int64", (size,)),
        **dict.fromkeys(("reward", "done", "terminal", "pscore"), ("float64", (size,))),
    }
    assert {key: value for key, value in described.items() if key not in arrays} == {
        "size": size,
        "n_trajectories": 30,
        "step_per_trajectory": LENGTH,
        "action_type": "discrete",
        "n_actions": 3,
        "action_dim": None,
        "action_keys": None,
        "state_dim": 2,
        "behavior_policy": "greedy",
        "dataset_id": 0,
    }
    assert logged["state_keys"] == ["place", "age"]
    info = logged["info"]
    assert [info[key].dtype.name for key in ("age", "place")] == ["int64", "float64"]
    assert isinstance(info["side"], list) and len(info["side"]) == size and set(info["side"]) == {"left", "right"}
    assert set(np.round(logged["pscore"], 12)) == {0.3, 0.4}


def test_the_info_is_the_one_after_the_step(logged):
    follows = logged["done"][:-1] == 0
    np.testing.assert_array_equal(logged["info"]["place"][:-1][follows], logged["state"][1:, 0][follows])
    np.testing.assert_array_equal(logged["info"]["age"], logged["state"][:, 1] + 1)


def test_episodes_end_early_and_terminated_differs_from_truncated(logged):
    """SCOPE-RL continues to step after the end, and marks every end at the last step as terminal."""
    lengths, ends = logged.lengths, np.cumsum(logged.lengths) - 1
    assert len(lengths) == 30 and lengths.sum() == logged["size"] and 0 < lengths.min() < LENGTH
    assert np.flatnonzero(logged["done"]).tolist() == ends.tolist()
    np.testing.assert_array_equal(logged["terminal"][ends], lengths == LENGTH)
    over = np.abs(logged["info"]["place"][ends]) > 2
    np.testing.assert_array_equal(logged.terminated[ends], over)
    np.testing.assert_array_equal(logged.truncated[ends], ~over)
    assert over.any() and not over.all()
    assert logged.terminated.sum() + logged.truncated.sum() == 30
    np.testing.assert_array_equal(logged["state"][ends[:-1] + 1, 1], 0)  # each starts with a reset
    np.testing.assert_array_equal(logged.final_state[:, 0], logged["info"]["place"][ends])  # kept after the last state


def test_padded_to_one_length(logged):
    padded = logged.padded()
    assert padded.keys() == {*KEYS, "mask"}
    assert padded["size"] == 30 * LENGTH == len(padded["state"]) == len(padded["info"]["side"])
    mask = padded["mask"].astype(bool)
    for key in ("state", "action", "reward", "done", "terminal", "pscore"):
        np.testing.assert_array_equal(padded[key][mask], logged[key])
    assert not padded["reward"][~mask].any() and (padded["pscore"][~mask] == 1).all()


def test_padded_rows_can_be_masked_for_estimators(logged):
    """The trajectory-wise weight of the behavior policy itself is 1, as SCOPE-RL computes it; every reward counts."""
    padded = logged.padded()
    dist = np.full((padded["size"], 3), 0.3)
    dist[np.arange(padded["size"]), padded["action"]] = np.where(padded["mask"] == 1, padded["pscore"], 0.3)
    q = np.ones((padded["size"], 3))
    given = {"same": {"evaluation_policy_action_dist": dist, "state_action_value_prediction": q, "gamma": 1.0}}
    masked, inputs = mask_padding(padded, given)

    def weights(dataset, distribution):  # `_calc_evaluation_policy_pscore_discrete` of scope_rl/ope/estimators_base.py
        ratios = distribution[np.arange(dataset["size"]), dataset["action"]] / dataset["pscore"]
        return ratios.reshape(-1, LENGTH).prod(axis=1)

    assert weights(padded, dist).min() < 0.1
    np.testing.assert_allclose(weights(masked, inputs["same"]["evaluation_policy_action_dist"]), 1)
    padding = padded["mask"] == 0
    assert not inputs["same"]["state_action_value_prediction"][padding].any()
    np.testing.assert_array_equal(inputs["same"]["evaluation_policy_action_dist"][~padding], dist[~padding])
    assert not masked["done"].any() and padded["done"].any() and (q == 1).all() and inputs["same"]["gamma"] == 1.0
    with pytest.raises(UsageError, match="the logged dataset has no mask"):
        mask_padding(logged, given)
    with pytest.raises(UsageError, match="state_action_value_prediction has 5 rows, but the logged dataset"):
        mask_padding(padded, {"same": {"state_action_value_prediction": q[:5]}})


def test_padded_rows_of_continuous_actions_can_be_masked():
    """SCOPE-RL's weight is a Gaussian kernel of two actions, divided by the product of the columns of `pscore`."""
    mask, actions = np.array([1.0, 1, 0, 0]), np.array([[0.5, 1.5], [2, 3], [2, 3], [2, 3]])
    for pscore in (np.array([0.2, 0.4, 1, 1]), np.array([[0.2, 0.2], [0.4, 0.4], [1, 1], [1, 1]])):
        padded = {"action_type": "continuous", "mask": mask, "action": actions, "pscore": pscore, "done": 1 - mask}
        masked, inputs = mask_padding(padded, {"p": {"evaluation_policy_action": actions + 1}}, bandwidth=0.5)
        distance = np.square(inputs["p"]["evaluation_policy_action"] - masked["action"]).sum(axis=1)
        kernel = np.exp(-distance / (2 * 0.5**2)) / np.sqrt(2 * np.pi * 0.5**2)
        weights = kernel / np.prod(masked["pscore"], axis=1)
        np.testing.assert_allclose(weights[2:], 1)
        np.testing.assert_allclose(weights[:2], kernel[:2] / [0.2, 0.4])
        assert masked["pscore"].shape == (4, 2)


def test_the_same_seed_gives_the_same_data_and_the_environment_does_not_change(dataset):
    before = dataset.env.np_random.bit_generator.state if dataset.env._np_random is not None else None
    one, other, third = (dataset.obtain_episodes(greedy(), n_trajectories=5, random_state=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one["state"], other["state"])
    np.testing.assert_array_equal(one["action"], other["action"])
    assert not np.array_equal(one["state"][0], third["state"][0])
    assert one["info"] == {}
    after = dataset.env.np_random.bit_generator.state if dataset.env._np_random is not None else None
    assert before == after


def test_gaussian_heads_are_seeded_too(tmp_path):
    """SCOPE-RL's heads draw from numpy's global generator."""
    dataset = SyntheticDataset(slide(), action_keys=["x", "y"])
    head = GaussianHead(towards_zero, sigma=np.array([0.5, 0.5]), name="gaussian", random_state=1)
    found = []
    for seed in (3, 4):
        np.random.seed(seed)
        found.append(dataset.obtain_episodes(head, n_trajectories=4, random_state=7))
    one, other = found
    np.testing.assert_array_equal(one["action"], other["action"])
    assert (one["action"].shape, one["action_dim"], one["n_actions"]) == ((20, 2), 2, None)
    assert one["pscore"].shape == (20,)  # SCOPE-RL repeats it for each dimension
    assert (one["action_keys"], one["action_meaning"]) == (["x", "y"], None)
    np.testing.assert_allclose(
        one["pscore"], head.calc_pscore_given_action(one["state"].astype(np.float32), one["action"]), rtol=1e-6
    )


def test_several_policies_and_several_datasets(dataset, tmp_path):
    """In SCOPE-RL, a list with one dataset each raises AttributeError, and only the first dataset is seeded."""
    several = dataset.obtain_episodes([greedy("a"), greedy("b")], n_trajectories=6, path=str(tmp_path / "one"))
    assert isinstance(several, MultipleLoggedDataset)
    assert several.get("b", 0)["behavior_policy"] == "b"
    both = [
        dataset.obtain_episodes(
            [greedy("a"), greedy("b")], n_datasets=2, n_trajectories=6, path=str(tmp_path / name), random_state=3
        )
        for name in ("x", "y")
    ]
    assert both[0].behavior_policy_names == ["a", "b"] and both[0].n_datasets == {"a": 2, "b": 2}
    states = {}
    for name, number in itertools.product("ab", range(2)):
        one, other = (logged.get(name, number) for logged in both)
        np.testing.assert_array_equal(one["state"], other["state"])
        assert (one["dataset_id"], one["behavior_policy"], len(one.lengths)) == (number, name, 6)
        states[name, number] = one["state"][0, 0]
    assert len(set(states.values())) == 4
    with pytest.raises(UsageError, match="there is no dataset 2 of a; there are 2 of a, b"):
        both[0].get("a", 2)


def test_replaced_recordings_are_not_read(dataset, tmp_path):
    path = str(tmp_path / "out")
    first = dataset.obtain_episodes(greedy(), n_trajectories=2, path=path, random_state=1)
    dataset.obtain_episodes(greedy(), n_trajectories=2, path=path, random_state=2)
    with pytest.raises(UsageError, match="has been replaced by another recording"):
        _ = first["state"]


def test_a_temporary_dataset_is_removed_with_its_owner(dataset):
    logged = dataset.obtain_episodes(greedy(), n_trajectories=2)
    path = Path(logged.path)
    assert path.is_dir() and logged["size"]
    del logged
    gc.collect()
    assert not path.exists()


def test_obtain_steps(dataset):
    """SCOPE-RL's crashes on every call."""
    logged = dataset.obtain_steps(
        greedy(), n_trajectories=40, step_per_trajectory=4, maximum_rollout_length=10, obtain_info=True, random_state=1
    )
    assert (logged["size"], logged["n_trajectories"], logged["step_per_trajectory"]) == (160, 40, 4)
    assert set(np.round(logged["pscore"], 12)) == {0.1, 0.8}
    ages = logged["info"]["age"].reshape(40, 4)
    assert len(set(ages[:, 0].tolist())) > 3  # the numbers of steps before differ
    over = (np.abs(logged["info"]["place"]) > 2) | (logged["info"]["age"] == LENGTH)
    np.testing.assert_array_equal(logged["done"], over)  # only where the environment's episode ended
    np.testing.assert_array_equal(logged["terminal"], logged["info"]["age"] == LENGTH)
    np.testing.assert_array_equal(ages[:, 1:] == 1, over.reshape(40, 4)[:, :-1])  # a reset after each end
    single = dataset.obtain_steps(
        greedy(),
        n_trajectories=10,
        step_per_trajectory=4,
        obtain_trajectories_from_single_interaction=True,
        obtain_info=True,
        random_state=1,
    )
    age, done = single["info"]["age"], single["done"].astype(bool)
    np.testing.assert_array_equal(age[1:], np.where(done[:-1], 1, age[:-1] + 1))  # consecutive trajectories


def test_a_policy_without_propensity(dataset):
    assert dataset.obtain_episodes(OnlineHead(q_function, "online"), n_trajectories=2)["pscore"] is None


@pytest.mark.parametrize(
    ("env", "arguments", "message"),
    [
        (Walk(), {}, "give max_episode_steps"),
        (walk(), {"max_episode_steps": 0}, "expected 1 or more"),
        (object(), {}, "neither a gymnasium environment"),
    ],
)
def test_unsupported_environments(env, arguments, message):
    with pytest.raises(UsageError, match=message):
        SyntheticDataset(env, **arguments)
